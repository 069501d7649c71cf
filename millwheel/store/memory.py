"""A store in this process's memory, for the harness and the simulator.

Like a durable store it keeps only bytes, written atomically. `MemoryStore.undo` reverts all
writes since `MemoryStore.mark`, which is how the harness restores everything after an error.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from millwheel.errors import StoreError
from millwheel.model.keys import TABLETS
from millwheel.store.base import Guard, Range, Shard, Store
from millwheel.store.formats import check_tablets

_Undo = list[tuple["MemoryShard", bytes, bytes | None]]


class MemoryShard:
    """An ordered map in memory."""

    def __init__(self, log: _Undo) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._log = log

    @contextmanager
    def snapshot(self) -> Iterator[MemoryShard]:
        yield self

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._values.get, keys))

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        first = bisect.bisect_left(self._keys, start)
        for key in self._keys[first : bisect.bisect_left(self._keys, stop, first)]:
            yield key, self._values[key]

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Does nothing: a read costs nothing here."""

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
        *,
        kept: bool = False,
    ) -> None:
        if guard is not None:
            guard(self.get)
        for key in deletes:
            self.restore(key, None)
        for key, value in puts:
            self.restore(key, value)

    def size(self) -> int:
        """The size of all keys and values in bytes."""
        return sum(len(key) + len(value) for key, value in self._values.items())

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Sets or removes one value, and logs the previous one."""
        old = self._values.get(key)
        self._log.append((self, key, old))
        if value is None:
            if old is not None:
                del self._values[key]
                del self._keys[bisect.bisect_left(self._keys, key)]
            return
        if old is None:
            bisect.insort(self._keys, key)
        self._values[key] = value


class MemoryStore(Store):
    """A journal and shards in memory, lost with the process."""

    def __init__(self, shards: int = 1, tablets: int = TABLETS) -> None:
        check_tablets(shards, tablets)
        self._log: _Undo = []
        self.tablets = tablets
        self.address = "memory:"
        self.all_shards = [MemoryShard(self._log) for _ in range(shards + 1)]
        self.journal: Shard = self.all_shards[0]
        self.shards: Sequence[Shard] = self.all_shards[1:]
        self._owner: str | None = None

    def lock(self, owner: str, *, takeover: bool = False) -> None:
        if self._owner is not None and not takeover:
            raise StoreError(f"this store is in use by {self._owner}")
        self._owner = owner

    def close(self) -> None:
        self._owner = None

    def size(self) -> int:
        return sum(shard.size() for shard in self.all_shards)

    def mark(self) -> None:
        """Starts the log of writes that `undo` reverts."""
        self._log.clear()

    def undo(self) -> None:
        """Reverts every write since the mark."""
        log = list(self._log)
        for shard, key, old in reversed(log):
            shard.restore(key, old)
        self._log.clear()
