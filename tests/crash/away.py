"""The pipeline that runs while its store is away for a while, and what is behind its sinks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import millwheel as mw

EPOCHS = 24


class Windows(mw.Computation):
    """Counts a key's records per window of two epochs."""

    def process_record(self, record: mw.Record) -> None:
        window = record.timestamp // 2000
        self.state[window] = self.state.get(window, 0) + 1
        self.set_timer(str(window), 2000 * (window + 1))

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("windows", [timer.timestamp, self.state.pop(int(timer.tag))])


class Totals(mw.Computation):
    """Adds up, under another key: a second level."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + record.value[1]
        self.produce("totals", self.state["n"])


def pipeline(sinks: dict[str, mw.Sink], per_epoch: int = 30) -> mw.Pipeline:
    """Two levels."""
    p = mw.Pipeline("failing over")
    records = [
        mw.Record(value=0, timestamp=1000 * epoch + number, key=f"k{number % 11}", id=1000 * epoch + number)
        for epoch in range(EPOCHS)
        for number in range(30)
    ]
    p.inject("in", mw.injectors.Records(records, per_epoch=per_epoch))
    p.add(Windows(), inputs={"in": mw.by_key}, outputs=["windows"])
    p.add(Totals(), inputs={"windows": lambda record: record.key[-1]}, outputs=["totals"])
    for stream, sink in sinks.items():
        p.sink(stream, sink)
    return p


def sinks_in_memory() -> dict[str, mw.sinks.Collect]:
    """For both streams."""
    return {"windows": mw.sinks.Collect(), "totals": mw.sinks.Collect()}


def output_of(sinks: dict[str, mw.sinks.Collect]) -> dict[str, Counter[str]]:
    """What came, by stream, in any order."""
    return {
        stream: Counter(f"{record.key} {record.timestamp} {record.value}" for record in sink.records)
        for stream, sink in sinks.items()
    }


class Disturbed(mw.Sink):
    """Calls something in the middle of some epochs, while tasks run and before they have committed."""

    def __init__(self, disturb: Callable[[], None]) -> None:
        self._disturb = disturb
        self._writes = itertools.count()

    def write(self, epoch: int, shard: int, records: object) -> None:
        if next(self._writes) in (6, 15):
            self._disturb()
