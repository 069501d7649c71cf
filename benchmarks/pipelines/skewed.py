"""Streams whose keys are not alike, and a computation that works for each record."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import millwheel as mw
from millwheel.model.injector import RecordBatch
from millwheel.model.keys import TABLETS, tablet

KEYS = 10_000
HOT = 1_000
"""So many of the hottest keys lie, where luck is bad, in one half of the tablets."""
ZIPF = 1.2
_PAGE = bytes(16 << 10)
_BLOCK = 2_000  # records that are drawn together
_PARTITIONS = 4


def zipf(*, unlucky: bool) -> list[str]:
    """Keys by rank; where luck is bad, the hottest of them all belong to the first slot of two."""
    names = (f"key-{number}" for number in itertools.count())
    if not unlucky:
        return list(itertools.islice(names, KEYS))
    first = (name for name in names if tablet(name) < TABLETS // 2)
    hot = list(itertools.islice(first, HOT))
    return hot + [f"cold-{number}" for number in range(KEYS - HOT)]


class Drawn(mw.Injector):
    """Records with drawn keys: by ``weights``, or with ranges of tablets that take turns being hot."""

    bounded = True

    def __init__(
        self,
        records: int,
        keys: Sequence[str],
        weights: Sequence[float] | None = None,
        shift: int | None = None,
    ) -> None:
        self._records = records // _PARTITIONS
        self._keys = list(keys)
        self._weights = None if weights is None else list(itertools.accumulate(weights))
        self._shift = None if shift is None else max(shift // _PARTITIONS, _BLOCK)
        ranges: list[list[str]] = [[] for _ in range(8)]
        for key in keys:
            ranges[tablet(key) * 8 // TABLETS].append(key)
        self._ranges = [ranges[index] for index in (0, 5, 2, 7)] if shift else []

    def poll(self) -> Mapping[str, Any]:
        return {str(number): self._records for number in range(_PARTITIONS)}

    def bound(self, partition: str, start: Any, end: Any, records: int) -> Any:
        return min(end, (start or 0) + records)

    def low_watermark(self, partition: str, offset: Any) -> int:
        return mw.MAX_TIME if (offset or 0) >= self._records else (offset or 0) * 10

    def read_batches(self, partition: str, start: Any, end: Any) -> Iterator[RecordBatch]:
        start = start or 0
        for block in range(start // _BLOCK, -(-end // _BLOCK)):
            keys = self._draw(int(partition), block)
            first, last = max(start - block * _BLOCK, 0), min(end - block * _BLOCK, _BLOCK)
            times = [(block * _BLOCK + i) * 10 for i in range(first, last)]
            yield RecordBatch(times, [None] * len(times), None, keys[first:last])

    def _draw(self, partition: int, block: int) -> list[str]:
        source = random.Random(block * _PARTITIONS + partition)
        if self._shift is None:
            return source.choices(self._keys, cum_weights=self._weights, k=_BLOCK)
        hot = self._ranges[block * _BLOCK // self._shift % len(self._ranges)]
        chosen = source.choices(hot, k=_BLOCK * 9 // 10) + source.choices(self._keys, k=_BLOCK // 10)
        source.shuffle(chosen)
        return chosen


class Works(mw.Computation):
    """Counts a key's records, and hashes 16 kB, so many times, for each that comes: about 20 microseconds."""

    def __init__(self, hashes: int = 1) -> None:
        self._hashes = hashes

    def process_record(self, record: mw.Record) -> None:
        for _ in range(self._hashes):
            hashlib.blake2b(_PAGE).digest()
        window = record.timestamp // mw.SECOND
        self.state[window] = self.state.get(window, 0) + (record.value or 1)
        self.set_timer(str(window), (window + 1) * mw.SECOND)

    def process_timer(self, timer: mw.Timer) -> None:
        self.count("counted", self.state.pop(int(timer.tag)))
        if not self.state:
            del self.state


def pipeline(injector: Drawn, *, hashes: int = 1, combine: Any = None) -> mw.Pipeline:
    """One stage."""
    p = mw.Pipeline("skewed")
    p.inject("records", injector)
    p.add(Works(hashes), inputs={"records": mw.by_key}, combine=combine)
    return p
