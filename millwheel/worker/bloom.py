"""A Bloom filter before the seen IDs (6.1.1): it says that an ID is new without a look at the store.

A filter is soft state of a worker. It is made from the log of IDs in the store, and brought up from the
log before each epoch, so it does not matter which worker wrote the epochs before. It may know IDs that
the store has forgotten, or that belong to other intervals of the shard: those are looked up in vain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from millwheel.store.base import Range, Snapshot
from millwheel.store.keyspace import DIGEST, after, id_log_prefix, time_bytes

_BITS = 10  # for each ID that there is room for; with so many, 7 probes err once in 120 times
_PROBES = 7
_LEAST = 1 << 16  # IDs that a filter has room for
_NEWS = 256  # log entries that an epoch adds to a shard: one for each of its intervals and input streams
_EPOCH = slice(11, 19)  # of a log entry's key, behind the letter, the computation and the expiry


class Bloom:
    """A set of digests that errs on one side: what it does not have was never added."""

    def __init__(self, room: int) -> None:
        bits = 1 << (max(room, _LEAST) * _BITS - 1).bit_length()
        self._mask = np.uint64(bits - 1)
        self._bytes = np.zeros(bits // 8, dtype=np.uint8)
        self.room = bits // _BITS
        self.count = 0

    def add(self, digests: bytes) -> None:
        """Adds digests, which stand one after the other."""
        self.count += len(digests) // DIGEST
        for place in self._places(digests):
            np.bitwise_or.at(self._bytes, place >> np.uint64(3), _bit(place))

    def may_have(self, digests: bytes) -> list[bool]:
        """Of each digest: False where it was never added."""
        found = np.ones(len(digests) // DIGEST, dtype=bool)
        for place in self._places(digests):
            found &= (self._bytes[place >> np.uint64(3)] & _bit(place)) != 0
        answers: list[bool] = found.tolist()
        return answers

    def _places(self, digests: bytes) -> Iterable[Any]:
        """The bits of each digest, probe by probe: a digest is two random numbers already."""
        halves = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
        place, step = halves[:, 0].copy(), halves[:, 1] | np.uint64(1)
        for _ in range(_PROBES):
            yield place & self._mask
            place += step

    @property
    def size(self) -> int:
        """Its bytes."""
        return int(self._bytes.nbytes)

    @property
    def error(self) -> float:
        """The share of new IDs for which the store is asked all the same."""
        filled = 1 - math.exp(-_PROBES * self.count / (8 * self.size))
        return float(filled**_PROBES)


def _bit(place: Any) -> Any:
    return np.left_shift(np.uint8(1), (place & np.uint64(7)).astype(np.uint8))


class IdFilter:
    """The filter of one computation in one shard, up to the epoch before the one in hand."""

    def __init__(self, computation: int) -> None:
        self._prefix = id_log_prefix(computation)
        self._epoch = -1
        self._since = 0
        self.bloom = Bloom(0)

    def bring_up(self, snapshot: Snapshot, epoch: int, now: int, retentions: Iterable[int]) -> None:
        """Adds what was logged since the last time, by whatever worker.

        An entry's expiry is the time of its epoch and a retention, and times do not go back: so the new
        entries stand together, for each retention that there is. Where they did, behind an epoch that was
        planned by a clock that was wrong, all is read again.
        """
        if epoch - 1 <= self._epoch:
            return
        if self._epoch < 0 or now < self._since:
            self._build(snapshot)
        else:
            for start, stop, _ in self.news(now, retentions):
                for key, value in snapshot.scan(start, stop):
                    if self._epoch < int.from_bytes(key[_EPOCH], "big") < epoch:
                        self.bloom.add(value)
            if self.bloom.count > self.bloom.room:
                self._build(snapshot)
        self._epoch, self._since = epoch - 1, now

    def news(self, now: int, retentions: Iterable[int]) -> list[Range]:
        """Where that stands in the log which this filter does not know yet; nothing before its first use."""
        if self._epoch < 0 or now < self._since:
            return []
        times = [(_key_time(self._since + kept), _key_time(now + kept)) for kept in set(retentions)]
        return [(self._prefix + start, after(self._prefix + stop), _NEWS) for start, stop in times]

    def _build(self, snapshot: Snapshot) -> None:
        """From the whole log, with room for as many again."""
        logged = [value for _, value in snapshot.scan(self._prefix, after(self._prefix))]
        self.bloom = Bloom(2 * sum(map(len, logged)) // DIGEST)
        for value in logged:
            self.bloom.add(value)


def _key_time(time: int) -> bytes:
    return time_bytes(min(time, 2**63 - 1))
