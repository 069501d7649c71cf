"""The store in memory takes back what was written since a mark, which the harness relies on."""

from __future__ import annotations

import pytest

from millwheel.errors import StoreError
from millwheel.store.memory import MemoryStore
from tests.store.driving import contents


def test_undo_takes_back_puts_deletes_and_replacements_in_every_shard() -> None:
    store = MemoryStore(2)
    store.shards[0].write([(b"kept", b"1"), (b"deleted", b"2"), (b"replaced", b"3")])
    store.mark()
    store.shards[0].write([(b"new", b"4"), (b"replaced", b"5")], [b"deleted"])
    store.shards[1].write([(b"other", b"6")])
    store.journal.write([(b"journal", b"7")])
    store.undo()
    assert contents(store.shards[0]) == {b"kept": b"1", b"deleted": b"2", b"replaced": b"3"}
    assert contents(store.shards[1]) == {}
    assert contents(store.journal) == {}


def test_what_came_before_the_mark_stays() -> None:
    store = MemoryStore()
    store.shards[0].write([(b"k", b"v")])
    store.mark()
    store.undo()
    assert contents(store.shards[0]) == {b"k": b"v"}


def test_two_drivers_cannot_have_one_memory_store() -> None:
    store = MemoryStore()
    store.lock("the first")
    with pytest.raises(StoreError, match="the first"):
        store.lock("the second")


def test_a_store_that_was_closed_can_be_locked_again() -> None:
    store = MemoryStore()
    store.lock("the first")
    store.close()
    store.lock("the second")
