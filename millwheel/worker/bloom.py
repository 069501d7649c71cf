"""A Bloom filter for seen IDs (6.1.1): finds new IDs without reading the store.

A filter is soft state of a worker. It is built from the log of IDs in the store, and updated from the
log before each epoch, so it does not matter which worker wrote the epochs before. It may contain IDs that
the store has expired, or that belong to other intervals of the shard: their lookups find nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from millwheel.store.base import Range, Snapshot
from millwheel.store.keyspace import DIGEST, after, id_log_prefix, time_bytes

_BITS = 10  # for each ID of its capacity: 7 probes have a false positive rate of 1 in 120
_PROBES = 7
_LEAST = 1 << 16  # IDs: the smallest capacity of a filter
_NEWS = 256  # expected log entries of an epoch in a shard: one for each of its intervals and input streams
_EPOCH = slice(11, 19)  # of a log entry's key, after the letter, the computation and the expiry


class Bloom:
    """A set of digests with false positives, but no false negatives."""

    def __init__(self, room: int) -> None:
        bits = 1 << (max(room, _LEAST) * _BITS - 1).bit_length()
        self._mask = np.uint64(bits - 1)
        self._bytes = np.zeros(bits // 8, dtype=np.uint8)
        self.room = bits // _BITS
        self.count = 0

    def add(self, digests: bytes) -> None:
        """Adds digests, which are concatenated."""
        self.count += len(digests) // DIGEST
        for place in self._places(digests):
            np.bitwise_or.at(self._bytes, place >> np.uint64(3), _bit(place))

    def may_have(self, digests: bytes) -> list[bool]:
        """By digest: False if it was never added."""
        found = np.ones(len(digests) // DIGEST, dtype=bool)
        for place in self._places(digests):
            found &= (self._bytes[place >> np.uint64(3)] & _bit(place)) != 0
        answers: list[bool] = found.tolist()
        return answers

    def _places(self, digests: bytes) -> Iterable[Any]:
        """The bits of each digest, by probe: a digest is two random numbers already."""
        halves = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
        place, step = halves[:, 0].copy(), halves[:, 1] | np.uint64(1)
        for _ in range(_PROBES):
            yield place & self._mask
            place += step

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return int(self._bytes.nbytes)

    @property
    def error(self) -> float:
        """Its false positive rate: new IDs that are looked up in the store for nothing."""
        filled = 1 - math.exp(-_PROBES * self.count / (8 * self.size))
        return float(filled**_PROBES)


def _bit(place: Any) -> Any:
    return np.left_shift(np.uint8(1), (place & np.uint64(7)).astype(np.uint8))


class IdFilter:
    """The filter of one computation in one shard, up to the previous epoch."""

    def __init__(self, computation: int) -> None:
        self._prefix = id_log_prefix(computation)
        self._epoch = -1
        self._since = 0
        self.bloom = Bloom(0)

    def bring_up(self, snapshot: Snapshot, epoch: int, now: int, retentions: Iterable[int]) -> None:
        """Adds what any worker has logged since the last call.

        An entry's expiry is the time of its epoch plus a retention, and times do not go back: so the new
        entries are adjacent, for each retention. After an epoch that was planned with a wrong clock they are
        not, and the whole log is read again.
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
        """The ranges of the log that this filter has not read; none before its first use."""
        if self._epoch < 0 or now < self._since:
            return []
        times = [(_key_time(self._since + kept), _key_time(now + kept)) for kept in set(retentions)]
        return [(self._prefix + start, after(self._prefix + stop), _NEWS) for start, stop in times]

    def _build(self, snapshot: Snapshot) -> None:
        """Builds it from the whole log, with twice the capacity needed."""
        logged = [value for _, value in snapshot.scan(self._prefix, after(self._prefix))]
        self.bloom = Bloom(2 * sum(map(len, logged)) // DIGEST)
        for value in logged:
            self.bloom.add(value)


def _key_time(time: int) -> bytes:
    return time_bytes(min(time, 2**63 - 1))
