"""A pipeline with a lookup that a test kills: ``python -m tests.lookup.victim FOLDER RECORDS``.

It prints how many records are in its sink whenever that changes, and ends once all of them are.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import millwheel as mw


class Keep(mw.Computation):
    """Keeps what it saw, and sends it on."""

    def process_record(self, record: mw.Record) -> None:
        self.state.setdefault("seen", []).append(record.value["read"])
        self.produce("kept", record.value)


class Readings:
    """Another table at every reading, whichever process reads it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> list[dict[str, Any]]:
        with open(self._path, "a") as file:
            file.write("x")
        read = self._path.stat().st_size
        return [{"id": id, "read": read} for id in range(7)]


def main(folder: Path, records: int) -> None:
    kept = mw.sinks.JsonLines(folder / "kept")
    p = mw.Pipeline("enriched")
    given = p.inject("in", mw.injectors.Files(str(folder / "in" / "*.jsonl"), timestamp="at"))
    found = given.lookup(Readings(folder / "readings"), on="id", refresh=mw.MILLISECOND)
    found.sink(mw.sinks.JsonLines(folder / "found"))
    found.key_by("id").process(Keep(), outputs=["kept"]).sink(kept)
    pause, before = threading.Event(), -1
    compact = 0 if (folder / "wide").exists() else 4_000
    with mw.start(p, store=str(folder / "store"), compact_below=compact, progress=False):
        while before < records:
            count = len(list(kept.records()))
            if count != before:
                print(count, flush=True)
            before = count
            pause.wait(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
