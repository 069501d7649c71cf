"""Counts by key and one-second window."""

from __future__ import annotations

import os

import millwheel as mw
from benchmarks import data


class Windower(mw.Computation):
    """Counts a key's records per one-second bucket; emits a bucket once it is complete."""

    def initial_state(self) -> dict[int, int]:
        return {}

    def process_record(self, record: mw.Record) -> None:
        bucket = record.timestamp // mw.SECOND
        self.state[bucket] = self.state.get(bucket, 0) + 1
        self.set_timer(str(bucket), (bucket + 1) * mw.SECOND)

    def process_timer(self, timer: mw.Timer) -> None:
        count = self.state.pop(int(timer.tag))
        self.produce("windows", count, timestamp=timer.timestamp)


def pipeline(pattern: str, out: os.PathLike[str]) -> mw.Pipeline:
    """The job on millwheel."""
    p = mw.Pipeline("throughput")
    p.inject("queries", mw.injectors.Files(pattern, timestamp="time", slack=data.DISORDER))
    p.add(Windower(), inputs={"queries": mw.by("query")}, outputs=["windows"])
    p.sink("windows", mw.sinks.JsonLines(out))
    return p


def operators(pattern: str, out: os.PathLike[str]) -> mw.Pipeline:
    """The same job, in operators."""
    p = mw.Pipeline("throughput")
    queries = p.inject("queries", mw.injectors.Files(pattern, timestamp="time", slack=data.DISORDER))
    counted = queries.key_by("query").window(mw.windows.tumbling(mw.SECOND)).count("windows")
    counted.sink(mw.sinks.JsonLines(out))
    return p
