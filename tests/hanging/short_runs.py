"""Several short runs in one process, on two cores of Spark, which share its Python workers; then it ends."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import millwheel as mw
from millwheel.spark.session import local_session

TOTAL = 200
"""The records of a run."""

_POLLS = 8
_COMPACT_BELOW = (0, 4_000, 0, 50, 50)
RUNS = len(_COMPACT_BELOW)


class Growing(mw.Injector):
    """A few records with each poll, and most of them with the last one."""

    def __init__(self) -> None:
        self.polls = 0

    def poll(self) -> Mapping[str, int]:
        self.polls += 1
        return {"all": TOTAL if self.polls >= _POLLS else 5 * self.polls}

    def read(self, partition: str, start: int | None, end: int) -> Iterable[mw.Record]:
        for number in range(start or 0, end):
            yield mw.Record(value={"user": number % 7}, timestamp=number, id=number)

    def low_watermark(self, partition: str, offset: int | None) -> int:
        return mw.MAX_TIME if offset == TOTAL else offset or 0


class Count(mw.Computation):
    """Numbers the records of a key."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("counts", self.state["n"])


class Parts(mw.Computation):
    """Counts what it is sent until event time ends."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.set_timer("end", mw.MAX_TIME)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("parts", self.state["n"])


def _part(record: mw.Record) -> str:
    return f"part {record.value % 3}"


def pipeline(folder: Path, *, strong: bool) -> mw.Pipeline:
    """Records of seven keys, counted by one computation behind another one."""
    p = mw.Pipeline("short runs")
    p.inject("in", Growing())
    p.add(Count(), inputs={"in": mw.by("user")}, outputs=["counts"], strong_productions=strong)
    p.add(Parts(), inputs={"counts": _part}, outputs=["parts"], strong_productions=strong)
    p.sink("parts", mw.sinks.JsonLines(folder / "out"))
    return p


def main(folder: Path, *, strong: bool) -> None:
    """Runs it again and again, each time on a store of its own, and prints how many records each counted.

    Its epochs are jobs of many tasks, go through a resident task, or are the one after the other.
    """
    local_session("local[2]")
    for number, compact_below in enumerate(_COMPACT_BELOW):
        own = folder / str(number)
        mw.run(pipeline(own, strong=strong), store=own / "store", compact_below=compact_below)
        print(sum(record.value for record in mw.sinks.JsonLines(own / "out").records()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), strong=sys.argv[2] == "strong")
