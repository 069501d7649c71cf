"""What every store promises of a shard: an ordered map of bytes with atomic writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel.store.base import Get, Shard, Store
from millwheel.store.memory import MemoryStore
from tests.store.driving import contents


class Refused(Exception):
    """What the guards of these tests raise."""


def refuse(get: Get) -> None:
    raise Refused


@pytest.fixture
def shard(store: Store) -> Shard:
    return store.shards[0]


class TestReading:
    def test_a_key_that_is_not_there_is_none(self, shard: Shard) -> None:
        with shard.snapshot() as snapshot:
            assert snapshot.get(b"nothing") is None

    def test_a_key_that_was_put_has_its_value(self, shard: Shard) -> None:
        shard.write([(b"k", b"v")])
        with shard.snapshot() as snapshot:
            assert snapshot.get(b"k") == b"v"

    def test_an_empty_value_is_a_value(self, shard: Shard) -> None:
        shard.write([(b"k", b"")])
        with shard.snapshot() as snapshot:
            assert snapshot.get(b"k") == b""
            assert snapshot.get_each([b"k"]) == [b""]
            assert list(snapshot.scan(b"a", b"z")) == [(b"k", b"")]

    def test_get_each_gives_none_for_what_is_not_there(self, shard: Shard) -> None:
        shard.write([(b"a", b"1"), (b"c", b"3")])
        with shard.snapshot() as snapshot:
            assert snapshot.get_each([b"a", b"b", b"c", b"d"]) == [b"1", None, b"3", None]

    def test_get_each_takes_keys_in_any_order_and_none_at_all(self, shard: Shard) -> None:
        shard.write([(b"a", b"1"), (b"c", b"3")])
        with shard.snapshot() as snapshot:
            assert snapshot.get_each([b"c", b"a"]) == [b"3", b"1"]
            assert snapshot.get_each([]) == []

    def test_a_reading_does_not_see_another_shard(self, make_store: Callable[..., Store]) -> None:
        store = make_store(4)
        store.shards[0].write([(b"k", b"0")])
        store.journal.write([(b"k", b"journal")])
        assert [contents(shard).get(b"k") for shard in store.shards] == [b"0", None, None, None]


class TestScanning:
    def test_a_scan_is_in_the_order_of_bytes(self, shard: Shard) -> None:
        keys = [b"b", b"a\x00", b"a", b"a\xff", b"\xff", b"\x00", b"ab"]
        shard.write([(key, b"") for key in keys])
        assert list(contents(shard)) == sorted(keys)

    def test_a_scan_begins_with_its_start_and_ends_before_its_stop(self, shard: Shard) -> None:
        shard.write([(bytes([i]), bytes([i])) for i in range(1, 10)])
        with shard.snapshot() as snapshot:
            assert [key for key, _ in snapshot.scan(b"\x03", b"\x06")] == [b"\x03", b"\x04", b"\x05"]

    def test_bounds_need_not_be_keys(self, shard: Shard) -> None:
        shard.write([(b"b", b""), (b"d", b"")])
        with shard.snapshot() as snapshot:
            assert [key for key, _ in snapshot.scan(b"a", b"c")] == [b"b"]
            assert [key for key, _ in snapshot.scan(b"c", b"zz")] == [b"d"]

    def test_a_scan_of_nothing_is_empty(self, shard: Shard) -> None:
        with shard.snapshot() as snapshot:
            assert list(snapshot.scan(b"a", b"z")) == []
        shard.write([(b"m", b"")])
        with shard.snapshot() as snapshot:
            assert list(snapshot.scan(b"n", b"z")) == []
            assert list(snapshot.scan(b"m", b"m")) == []
            assert list(snapshot.scan(b"z", b"a")) == []

    def test_a_scan_that_is_left_early_harms_nothing(self, shard: Shard) -> None:
        shard.write([(bytes([i]), b"") for i in range(1, 10)])
        with shard.snapshot() as snapshot:
            assert next(snapshot.scan(b"\x00", b"\xff"))[0] == b"\x01"
        shard.write([], [b"\x01"])
        assert len(contents(shard)) == 8


class TestWriting:
    def test_a_put_replaces_what_was_there(self, shard: Shard) -> None:
        shard.write([(b"k", b"long before")])
        shard.write([(b"k", b"now")])
        assert contents(shard) == {b"k": b"now"}

    def test_a_delete_removes_and_one_of_nothing_is_no_error(self, shard: Shard) -> None:
        shard.write([(b"k", b"v"), (b"l", b"v")])
        shard.write([], [b"k", b"never there"])
        assert contents(shard) == {b"l": b"v"}

    def test_deletes_come_before_puts(self, shard: Shard) -> None:
        shard.write([(b"k", b"old")])
        shard.write([(b"k", b"new")], [b"k"])
        assert contents(shard) == {b"k": b"new"}

    def test_the_last_put_of_a_key_wins(self, shard: Shard) -> None:
        shard.write([(b"k", b"1"), (b"k", b"2")])
        assert contents(shard) == {b"k": b"2"}

    def test_an_empty_write_changes_nothing(self, shard: Shard) -> None:
        shard.write([(b"k", b"v")])
        shard.write([])
        assert contents(shard) == {b"k": b"v"}

    def test_a_key_of_511_bytes_is_taken(self, shard: Shard) -> None:
        longest = [b"\xff" * 511, b"\x00" * 511, b"\x00" * 510]
        shard.write([(key, key) for key in longest])
        with shard.snapshot() as snapshot:
            assert snapshot.get_each(longest) == longest

    def test_values_of_any_size_are_taken(self, shard: Shard) -> None:
        sizes = [0, 1, 100, 2000, 4096, 70_000, 5_000_000]
        shard.write([(str(size).encode(), b"x" * size) for size in sizes])
        assert sorted(len(value) for value in contents(shard).values()) == sizes


class TestGuards:
    def test_a_guard_sees_what_was_there_before_the_write(self, shard: Shard) -> None:
        shard.write([(b"k", b"before")])
        seen: list[bytes | None] = []

        def look(get: Get) -> None:
            seen.extend((get(b"k"), get(b"new")))

        shard.write([(b"k", b"after"), (b"new", b"")], [b"k"], look)
        assert seen == [b"before", None]
        assert contents(shard) == {b"k": b"after", b"new": b""}

    def test_nothing_is_written_where_the_guard_raises(self, shard: Shard) -> None:
        shard.write([(b"k", b"v"), (b"gone", b"?")])
        with pytest.raises(Refused):
            shard.write([(b"k", b"other"), (b"new", b"")], [b"gone"], refuse)
        assert contents(shard) == {b"k": b"v", b"gone": b"?"}

    def test_a_shard_is_as_usable_after_a_refusal_as_before(self, shard: Shard) -> None:
        with pytest.raises(Refused):
            shard.write([(b"k", b"v")], [], refuse)
        shard.write([(b"k", b"v")], [], lambda get: None)
        assert contents(shard) == {b"k": b"v"}


class TestAtomicity:
    def test_nothing_is_written_where_a_put_cannot_be(self, shard: Shard) -> None:
        if isinstance(shard, type(MemoryStore().shards[0])):
            pytest.skip("a store in memory is given bytes only by code of ours")
        shard.write([(b"k", b"v")])
        with pytest.raises(Exception, match=r"."):
            shard.write([(b"a", b""), (b"b", "no bytes"), (b"c", b"")], [b"k"])  # type: ignore[list-item]
        assert contents(shard) == {b"k": b"v"}


_HIDDEN = (b"\x00writes", b"\x00log")  # entries of a store itself; keys of the layout begin with a letter
_keys = st.binary(min_size=1, max_size=12).filter(lambda key: key not in _HIDDEN)
_writes = st.lists(
    st.tuples(
        st.lists(st.tuples(_keys, st.binary(max_size=40)), max_size=6),
        st.lists(_keys, max_size=4),
        st.booleans(),
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=_writes, start=_keys, stop=_keys)
def test_any_sequence_of_writes_leaves_what_a_dict_would_hold(
    make_store: Callable[..., Store],
    writes: list[tuple[list[tuple[bytes, bytes]], list[bytes], bool]],
    start: bytes,
    stop: bytes,
) -> None:
    store = make_store()
    shard = store.shards[0]
    model: dict[bytes, bytes] = {}
    for puts, deletes, refused in writes:
        if refused:
            with pytest.raises(Refused):
                shard.write(puts, deletes, refuse)
            continue
        shard.write(puts, deletes)
        for key in deletes:
            model.pop(key, None)
        model.update(puts)
    with shard.snapshot() as snapshot:
        assert snapshot.get_each(sorted(model)) == [model[key] for key in sorted(model)]
        expected = sorted((key, value) for key, value in model.items() if start <= key < stop)
        assert list(snapshot.scan(start, stop)) == expected
    store.close()


def test_an_entry_without_a_value_may_be_there_already(store: Store) -> None:
    shard = store.shards[0]
    shard.write([(b"a", b""), (b"b", b"1"), (b"c", b"")])
    shard.write([(b"a", b""), (b"b", b""), (b"c", b"2"), (b"d", b"")])
    assert contents(shard) == {b"a": b"", b"b": b"", b"c": b"2", b"d": b""}


def test_one_that_is_there_already_does_not_get_past_the_guard(store: Store) -> None:
    shard = store.shards[0]
    shard.write([(b"a", b"")])

    def refuse(get: Get) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        shard.write([(b"a", b""), (b"b", b"1")], (), refuse)
    assert contents(shard) == {b"a": b""}
