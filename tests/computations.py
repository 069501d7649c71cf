"""Computations and pipelines that many tests use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import millwheel as mw
from millwheel.model.keys import KeyExtractor

OnRecord = Callable[["Hooks", mw.Record], None]
OnTimer = Callable[["Hooks", mw.Timer], None]


class Hooks(mw.Computation):
    """Runs the functions it was given; its ``__init__`` does not call the base's, which is allowed."""

    def __init__(self, on_record: OnRecord | None = None, on_timer: OnTimer | None = None) -> None:
        self.on_record = on_record
        self.on_timer = on_timer

    def process_record(self, record: mw.Record) -> None:
        if self.on_record is not None:
            self.on_record(self, record)

    def process_timer(self, timer: mw.Timer) -> None:
        if self.on_timer is not None:
            self.on_timer(self, timer)


class Idle(mw.Computation):
    """Takes its records, and does nothing with them."""

    def process_record(self, record: mw.Record) -> None:
        pass


class Echo(mw.Computation):
    """Forwards each record's value to one stream."""

    def __init__(self, stream: str = "out") -> None:
        self.stream = stream

    def process_record(self, record: mw.Record) -> None:
        self.produce(self.stream, record.value)


class Log(mw.Computation):
    """Produces a line for each record it gets: key, value, timestamp, whether it is late."""

    def process_record(self, record: mw.Record) -> None:
        self.produce("log", [record.key, record.value, record.timestamp, record.late])


class Counter(mw.Computation):
    """Counts a key's records; emits the count after each."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("counts", self.state["n"])


class Windower(mw.Computation):
    """Counts a key's records per window of ``size``; emits a window once it is complete."""

    def __init__(self, stream: str = "windows", size: int = mw.SECOND, stamp: int = 0) -> None:
        self.stream = stream
        self.size = size
        self.stamp = stamp

    def process_record(self, record: mw.Record) -> None:
        bucket = record.timestamp // self.size
        self.state[bucket] = self.state.get(bucket, 0) + 1
        self.set_timer(str(bucket), (bucket + 1) * self.size)

    def process_timer(self, timer: mw.Timer) -> None:
        count = self.state.pop(int(timer.tag))
        value = {"key": self.key, "window": int(timer.tag), "count": count}
        self.produce(self.stream, value, timestamp=timer.timestamp + self.stamp)


def single(
    computation: mw.Computation,
    *,
    key: KeyExtractor = mw.by_key,
    outputs: Iterable[str] = ("out",),
    **options: Any,
) -> mw.Pipeline:
    """A pipeline of one computation, named C, that reads the stream "in"."""
    p = mw.Pipeline("single")
    p.inject("in", mw.injectors.Records([]))
    p.add(computation, name="C", inputs={"in": key}, outputs=outputs, **options)
    return p


def hooks(on_record: OnRecord | None = None, on_timer: OnTimer | None = None, **options: Any) -> mw.Pipeline:
    """A pipeline of one computation, named C, made of functions."""
    return single(Hooks(on_record, on_timer), **options)


def values(records: Iterable[mw.Record]) -> list[Any]:
    """The values alone."""
    return [record.value for record in records]
