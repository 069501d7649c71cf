"""Stores on object storage whose working copies have gaps."""

from __future__ import annotations

from typing import Any

from millwheel.store.base import Store
from millwheel.store.objects.object_store import ObjectStore
from millwheel.store.objects.shard import ObjectShard


def with_small_blocks(store: ObjectStore, *, block: int = 1, first: int = 0) -> ObjectStore:
    """Gives each entry a block of its own, and a new copy none of them; nothing runs beside the test."""
    for shard in (store.journal, *store.shards):
        assert isinstance(shard, ObjectShard)
        shard.snapshots.block = block
        shard.first = first
        shard.background = False
    return store


def full_of_gaps(store: Store) -> ObjectStore:
    """Takes a snapshot after every write, and loses the copy: everything is read from parts."""
    assert isinstance(store, ObjectStore)
    with_small_blocks(store)
    for shard in (store.journal, *store.shards):
        assert isinstance(shard, ObjectShard)

        def write(
            *arguments: Any, shard: ObjectShard = shard, inner: Any = shard.write, **options: Any
        ) -> None:
            inner(*arguments, **options)
            shard.checkpoint()
            shard.copy.discard()

        shard.write = write  # type: ignore[method-assign]
    return store
