"""A materialised view that a test kills: ``python -m tests.input.changes_victim URL FOLDER WIDE``.

It prints how many records are in its sink whenever that changes, and ends when its input is closed.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import millwheel as mw


class View(mw.Computation):
    """The newest row of each key, which it sends on with every change."""

    def process_record(self, record: mw.Record) -> None:
        self.state["changes"] = self.state.get("changes", 0) + 1
        self.state["row"] = record.value["after"]
        value = {"changes": self.state["changes"], "row": record.value["after"], "id": int(self.key)}
        self.produce("view", value)


def main(url: str, folder: Path, wide: bool) -> None:
    out = mw.sinks.JsonLines(folder / "view")
    p = mw.Pipeline("view")
    changes = p.inject("changes", mw.injectors.PostgresChanges(url, "pub"))
    changes.sink(mw.sinks.JsonLines(folder / "changes"))
    changes.key_by("key.id").process(View(), outputs=["view"]).sink(out)
    before, ended = -1, threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with mw.start(p, store=str(folder / "store"), compact_below=0 if wide else 4_000, progress=False) as job:
        while not ended.is_set():
            count = len(list(out.records()))
            if count != before:
                print(count, flush=True)
            before = count
            job.wait(0.02)  # raises the job's error


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "1")
