"""Records of a size, keys of a number, state of a size, levels of a depth: what throughput depends on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import millwheel as mw
from benchmarks.pipelines.load import Nowhere, Windower

_SPREAD = 2_654_435_761  # Knuth's: neighbours go far apart, and every key gets its share
_RATE = 20_000  # records in a second of event time, for those that close windows


class Make:
    """The record of a number: at first every key once, then keys in no order."""

    def __init__(self, keys: int, size: int = 10) -> None:
        self._keys = keys
        self._value = bytes(size)

    def __call__(self, number: int) -> mw.Record:
        key = number if number < self._keys else number * _SPREAD % (1 << 32) % self._keys
        return mw.Record(key=f"key-{key}", value=self._value, timestamp=number * mw.SECOND // _RATE)


class Keeps(mw.Computation):
    """Counts a key's records, in a state of a size; a further level gets each record."""

    def __init__(self, size: int = 0, stream: str | None = None) -> None:
        self._size = size
        self._stream = stream

    def initial_state(self) -> dict[str, object]:
        return {"count": 0, "rest": bytes(self._size)} if self._size else {"count": 0}

    def process_record(self, record: mw.Record) -> None:
        self.state["count"] += 1
        if self._stream is not None:
            self.produce(self._stream, record.value)


class Coarser:
    """Another key for another level, so that records change their place."""

    def __init__(self, level: int) -> None:
        self._level = level

    def __call__(self, record: mw.Record) -> str:
        return f"{self._level}-{record.key}"


def pipeline(*, records: int, keys: int, size: int = 10, state: int = 0, levels: int = 1) -> mw.Pipeline:
    """Records into state; what is measured is one of the numbers."""
    p = mw.Pipeline("sweeps")
    p.inject("level-0", mw.injectors.Generator(Make(keys, size), count=records, partitions=2))
    for level in range(1, levels + 1):
        stream = f"level-{level}" if level < levels else None
        p.add(
            Keeps(state, stream),
            name=f"Level{level}",
            inputs={f"level-{level - 1}": mw.by_key if level == 1 else Coarser(level)},
            outputs=[stream] if stream is not None else [],
        )
    return p


def endless(keys: int, records: int) -> mw.Pipeline:
    """Windows by key, for as long as one likes."""
    p = mw.Pipeline("growth")
    p.inject("records", mw.injectors.Generator(Make(keys), count=records, partitions=2))
    p.add(Windower(), inputs={"records": mw.by_key}, outputs=["windows"])
    p.sink("windows", Nowhere())
    return p


class Beats(mw.Sink):
    """Says when records came: a file for each write, with the time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        if records:
            staged = self._folder / f".{epoch}-{shard}"
            staged.write_text(str(time.time_ns()))
            staged.rename(self._folder / f"{epoch}-{shard}.time")


class Beat(mw.Computation):
    """Hands on what comes a few times in a second, whatever else there is."""

    def process_record(self, record: mw.Record) -> None:
        self.state["count"] = self.state.get("count", 0) + 1
        self.produce("beats", self.state["count"])


class Holds(mw.Computation):
    """Keeps bytes for a key that do not compress; a tick of a key is handed on."""

    def __init__(self, size: int) -> None:
        self._size = size

    def process_record(self, record: mw.Record) -> None:
        if "rest" not in self.state:
            self.state["rest"] = hashlib.shake_128(record.key.encode()).digest(self._size)
        self.state["count"] = self.state.get("count", 0) + 1
        if record.stream == "ticks":
            self.produce("beats", self.state["count"])


def beating(keys: int, out: Path, size: int | None = None) -> mw.Pipeline:
    """Keys with state, made once, and a light load that goes on for ever.

    The load has keys of its own; with a ``size`` of each key's state in bytes, a hundred of those keys.
    """
    p = mw.Pipeline("recovery")
    p.inject("keys", mw.injectors.Generator(Make(keys), count=keys, partitions=2))
    p.inject("ticks", mw.injectors.Generator(Make(100), rate=500.0))
    if size is None:
        p.add(Keeps(size=100), name="Keeps", inputs={"keys": mw.by_key})
        p.add(Beat(), inputs={"ticks": mw.by_key}, outputs=["beats"])
    else:
        p.add(Holds(size), inputs={"keys": mw.by_key, "ticks": mw.by_key}, outputs=["beats"])
    p.sink("beats", Beats(out))
    return p
