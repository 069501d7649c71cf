"""Any store as the harness wants it: its writes can be taken back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from millwheel.errors import StoreError
from millwheel.store.base import Guard, Shard, Snapshot, Store
from tests.store.driving import contents

_Log = list[tuple[Shard, dict[bytes, bytes | None]]]


class _UndoingShard:
    def __init__(self, shard: Shard, log: _Log) -> None:
        self._shard = shard
        self._log = log

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        return self._shard.snapshot()

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
        *,
        kept: bool = False,
    ) -> None:
        puts, deletes = list(puts), list(deletes)
        keys = sorted({key for key, _ in puts} | set(deletes))
        with self._shard.snapshot() as snapshot:
            before = dict(zip(keys, snapshot.get_each(keys), strict=True))
        self._shard.write(puts, deletes, guard, kept=kept)
        self._log.append((self._shard, before))


class Undoing(Store):
    """A store with `mark` and `undo`, as `MemoryStore` has them; begins empty, and is never closed."""

    def __init__(self, base: Store) -> None:
        self._base = base
        self._log: _Log = []
        self._owner: str | None = None
        self.address = base.address
        self.journal = _UndoingShard(base.journal, self._log)
        self.shards: Sequence[Shard] = [_UndoingShard(shard, self._log) for shard in base.shards]
        for shard in (base.journal, *base.shards):
            shard.write([], list(contents(shard)))

    def lock(self, owner: str, *, takeover: bool = False) -> None:
        """As `MemoryStore` does: one test has it at a time."""
        if self._owner is not None and not takeover:
            raise StoreError(f"this store is in use by {self._owner}")
        self._owner = owner

    def close(self) -> None:
        """Whoever made the base closes it."""
        self._owner = None

    def size(self) -> int:
        return self._base.size()

    def mark(self) -> None:
        """Everything written from here on can be undone."""
        self._log.clear()

    def undo(self) -> None:
        """Takes back every write since the mark."""
        for shard, before in reversed(self._log):
            there = [(key, value) for key, value in before.items() if value is not None]
            shard.write(there, [key for key, value in before.items() if value is None])
        self._log.clear()
