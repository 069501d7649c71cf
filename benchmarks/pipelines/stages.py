"""Three stages of windows, each keyed another way: what a low watermark has to pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import millwheel as mw

STAGES = ("First", "Second", "Third")


class Stage(mw.Computation):
    """Counts per one-second window, under a key that the next stage takes another part of."""

    def __init__(self, stream: str) -> None:
        self._stream = stream

    def process_record(self, record: mw.Record) -> None:
        bucket = record.timestamp // mw.SECOND
        self.state[bucket] = self.state.get(bucket, 0) + 1
        self.set_timer(str(bucket), (bucket + 1) * mw.SECOND)

    def process_timer(self, timer: mw.Timer) -> None:
        count = self.state.pop(int(timer.tag))
        self.produce(self._stream, {"key": self.key, "count": count}, timestamp=timer.timestamp - 1)


def _shorter(record: mw.Record) -> str:
    """The key without its last character: a coarser one, so that records change their place."""
    key: Any = record.value["key"]
    return str(key)[:-1]


def pipeline(source: Path) -> mw.Pipeline:
    """Queries by query, then by two coarser keys."""
    p = mw.Pipeline("lag")
    files = mw.injectors.Files(source / "*.jsonl", timestamp="time", follow=True, watermark="monotonic")
    p.inject("queries", files)
    p.add(Stage("first"), name="First", inputs={"queries": mw.by("query")}, outputs=["first"])
    p.add(Stage("second"), name="Second", inputs={"first": _shorter}, outputs=["second"])
    p.add(Stage("third"), name="Third", inputs={"second": _shorter}, outputs=["third"])
    return p
