"""A store whose user dies at a write: before it is made, or right after it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from millwheel.store.base import Shard, Snapshot, Store


class Died(BaseException):
    """The process is gone: nothing behind this point has happened."""


class Mortal(Store):
    """Counts the writes of a run to another store; dies at number ``at``, which is made or not."""

    def __init__(self, base: Store, at: int, *, made: bool) -> None:
        self._base = base
        self._at = at
        self._made = made
        self.writes = 0
        self.address = base.address
        self.journal: Shard = _MortalShard(self, base.journal)
        self.shards: Sequence[Shard] = [_MortalShard(self, shard) for shard in base.shards]

    def around(self, shard: Shard, *arguments: Any, **options: Any) -> None:
        """Makes a write, unless it comes to that."""
        self.writes += 1
        if self.writes == self._at and not self._made:
            raise Died
        shard.write(*arguments, **options)
        if self.writes == self._at:
            raise Died

    def lock(self, owner: str, *, takeover: bool = False) -> None:
        self._base.lock(owner, takeover=takeover)

    def close(self) -> None:
        self._base.close()

    def size(self) -> int:
        return self._base.size()


class _MortalShard:
    def __init__(self, store: Mortal, shard: Shard) -> None:
        self._store = store
        self._shard = shard

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        return self._shard.snapshot()

    def write(self, *arguments: Any, **options: Any) -> None:
        self._store.around(self._shard, *arguments, **options)
