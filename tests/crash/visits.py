"""A pipeline of many keys, each of which comes twice: ``python visits.py KEYS STORE OUTPUT MASTER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import millwheel as mw

SLOTS = 4
_FILES = 8


class Visits(mw.Computation):
    """Counts how often a key came, and tells it each time."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("visits", self.state["n"])


def write(folder: Path, keys: int) -> None:
    """Writes every key once, and once more."""
    per_file = 2 * keys // _FILES
    for number in range(_FILES):
        first = number * per_file
        lines = (f'{{"at": {place}, "key": "k{place % keys}"}}\n' for place in range(first, first + per_file))
        (folder / f"{number}.jsonl").write_text("".join(lines))


def main() -> None:
    """Runs to the end."""
    source, store, output, master = sys.argv[1:]
    from millwheel.spark.session import local_session

    local_session(master)
    p = mw.Pipeline("visits")
    p.inject("keys", mw.injectors.Files(Path(source) / "*.jsonl", timestamp="at"))
    p.add(Visits(), inputs={"keys": mw.by("key")}, outputs=["visits"])
    p.sink("visits", mw.sinks.JsonLines(output))
    print("running", flush=True)
    report = mw.run(p, store=store, slots=SLOTS, compact_below=0, target=0.5, progress=False)
    print(json.dumps({"records": report.records_in, "epochs": report.epochs}), flush=True)


if __name__ == "__main__":
    main()
