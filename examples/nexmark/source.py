"""The events of the house as injectors: made where they are read, or from files of JSON lines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson

import millwheel as mw
from examples.nexmark.events import KINDS, PER_ROUND, ROUND, House, Kind

_AT_ONCE = 20_000  # events made in one go: large enough for NumPy, small enough for a processor's cache


class Events(mw.Injector):
    """Makes the events of one kind. An offset is a position in the sequence of all events.

    The house knows how far its events are out of order, so the low watermark is exact: nothing is late.

    >>> injector = Events(House(count=100), "persons")
    >>> [record.value["id"] for record in injector.read("house", None, 100)]
    [1000, 1001]
    """

    def __init__(self, house: House, kind: Kind) -> None:
        self._house = house
        self._kind = kind

    def poll(self) -> Mapping[str, int]:
        return {"house": self._house.count}

    def read_batches(self, partition: str, start: int | None, end: int) -> Iterator[mw.RecordBatch]:
        for begin in range(start or 0, end, _AT_ONCE):
            yield mw.RecordBatch(*self._house.read(self._kind, begin, min(begin + _AT_ONCE, end)))

    def low_watermark(self, partition: str, offset: int | None) -> int:
        position = offset or 0
        return mw.MAX_TIME if position >= self._house.count else self._house.watermark(position)

    def bound(self, partition: str, start: int | None, end: int, records: int) -> int:
        return min(end, (start or 0) + max(records * ROUND // PER_ROUND[self._kind], 1))

    def size(self, partition: str, start: int | None, end: int) -> int:
        return max((end - (start or 0)) * PER_ROUND[self._kind] // ROUND, 1)


def made(house: House) -> dict[Kind, mw.Injector]:
    """An injector for each kind of event."""
    return {kind: Events(house, kind) for kind in KINDS}


def files(folder: str | os.PathLike[str], house: House) -> dict[Kind, mw.Injector]:
    """Injectors of what `write` has left in a folder."""
    return {
        kind: mw.injectors.Files(Path(folder) / f"{kind}-*.jsonl", timestamp="dateTime", slack=house.slack)
        for kind in KINDS
    }


def write(folder: str | os.PathLike[str], house: House, *, parts: int = 2) -> None:
    """Writes the events of a house: ``bids-0000.jsonl`` and so on, each behind the one before it."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    share = house.count // parts + 1
    for part in range(parts):
        for kind in KINDS:
            _, values = house.read(kind, part * share, (part + 1) * share)
            lines = b"".join(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE) for value in values)
            (place / f"{kind}-{part:04d}.jsonl").write_bytes(lines)
