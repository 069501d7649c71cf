"""Two stages that are keyed differently (8.1), under the guarantees that one asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import millwheel as mw
from benchmarks.pipelines.numbers import Numberer, Stamped


class Passes(mw.Computation):
    """The second stage: counts, and hands on."""

    def process_record(self, record: mw.Record) -> None:
        self.state["count"] = self.state.get("count", 0) + 1
        self.produce("passed", record.value)


def _by_number(record: mw.Record) -> str:
    return str(record.value["number"] % 100)


def pipeline(
    source: Path, out: Path, *, exactly_once: bool, strong: bool, follow: bool, stamped: bool
) -> mw.Pipeline:
    """Records carry IDs; with ``exactly_once`` off nobody looks at them."""
    p = mw.Pipeline("guarantees")
    ids = "number" if exactly_once else None
    files = mw.injectors.Files(
        source / "*.jsonl", timestamp="time", id=ids, follow=follow, watermark="events", slack=2 * mw.SECOND
    )
    p.inject("queries", files)
    guarantees: dict[str, Any] = {"exactly_once": exactly_once, "strong_productions": strong}
    p.add(Numberer(), inputs={"queries": mw.by("query")}, outputs=["numbered"], **guarantees)
    p.add(Passes(), inputs={"numbered": _by_number}, outputs=["passed"], **guarantees)
    p.sink("passed", Stamped(out) if stamped else mw.sinks.JsonLines(out))
    return p
