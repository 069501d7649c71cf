"""A working copy that is used before it is filled."""

from __future__ import annotations

import itertools
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgpack
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel.errors import StoreError
from millwheel.objects import Folder
from millwheel.store.base import Get, Snapshot, SnapshotLost, read
from millwheel.store.objects import lazy_copy
from millwheel.store.objects.blocks import Block, runs
from millwheel.store.objects.object_store import ObjectStore
from millwheel.store.objects.shard import Clocks, ObjectShard
from tests.spark.waiting import eventually
from tests.store.conftest import Host
from tests.store.driving import contents
from tests.store.gaps import with_small_blocks

Lazy = Callable[..., ObjectStore]


def _shard(store: ObjectStore) -> ObjectShard:
    shard = store.shards[0]
    assert isinstance(shard, ObjectShard)
    return shard


def _key(tablet: int, name: str = "x") -> bytes:
    return b"R\x00\x00" + bytes((tablet << 2,)) + name.encode()


def _parts(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "objects" / "shard-00" / "parts").iterdir())


def _gaps(store: ObjectStore) -> int:
    """The number of gaps of the store's copy."""
    shard = _shard(store)
    shard.catch_up()
    with shard.copy.shard.snapshot() as snapshot:
        return len(lazy_copy.Gaps.read(snapshot).blocks)


def _close(store: ObjectStore, count: int | None = None) -> None:
    _shard(store).catch_up()
    for _ in itertools.islice(_shard(store).lazy.close_gaps(), count):
        pass


@pytest.fixture
def lazy(host: Host) -> Lazy:
    """Opens the store as hosts whose copies begin with gaps alone, one for each entry."""
    return lambda name, **options: with_small_blocks(host(name), **options)


@pytest.fixture
def filled(lazy: Lazy) -> ObjectStore:
    """A store with 64 entries in a snapshot."""
    store = lazy("one")
    store.shards[0].write([(_key(n), b"%d" % n) for n in range(64)])
    _shard(store).checkpoint()
    return store


@pytest.fixture
def read_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each request for a part."""
    found: list[int] = []
    get = Folder.get

    def counted(self: Folder, name: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        data = get(self, name, start=start, length=length)
        if "/parts/" in name:
            found.append(len(data or b""))
        return data

    monkeypatch.setattr(Folder, "get", counted)
    return found


class TestReading:
    def test_only_the_block_of_a_key_is_read(self, host: Host, read_parts: list[int]) -> None:
        store = with_small_blocks(host("one"), block=10_000)
        store.shards[0].write([(_key(n, str(m)), b"%d" % m * 500) for n in range(64) for m in range(50)])
        _shard(store).checkpoint()
        other = with_small_blocks(host("other"))
        with other.shards[0].snapshot() as snapshot:
            assert read_parts == []
            assert snapshot.get(_key(7, "31")) == b"31" * 500
            assert snapshot.get(_key(7, "not there")) is None
            assert next(snapshot.scan(_key(7, "31"), _key(9)))[0] == _key(7, "31")
        assert len(read_parts) <= 3
        assert sum(read_parts) < 30_000

    def test_what_was_read_once_is_not_read_again_by_the_next_step(
        self, filled: ObjectStore, lazy: Lazy, read_parts: list[int]
    ) -> None:
        other = lazy("other")
        for _ in range(5):
            assert read(other.shards[0], lambda snapshot: snapshot.get(_key(3))) == b"3"
        assert len(read_parts) == 1

    def test_what_is_small_is_there_at_once(self, host: Host, read_parts: list[int]) -> None:
        store = with_small_blocks(host("one"), block=1000)
        small = [(b"C" + bytes((n, 0, 0)), b"counters") for n in range(20)]
        store.shards[0].write([*small, *((_key(n), b"%05d" % n * 2000) for n in range(64))])
        _shard(store).checkpoint()
        other = with_small_blocks(host("other"), first=1500)
        with other.shards[0].snapshot() as snapshot:
            at_once = list(read_parts)
            assert list(snapshot.scan(b"C", b"D")) == small
        assert read_parts == at_once
        assert _gaps(other) in range(30, 64)

    def test_what_was_written_and_deleted_since_wins(self, filled: ObjectStore, lazy: Lazy) -> None:
        filled.shards[0].write([(_key(1), b"new")], [_key(2), _key(3)])
        filled.shards[0].write([(_key(3), b"again"), (_key(4, "y"), b"added")])
        other = lazy("other")
        other.shards[0].write([(_key(5), b"here")], [_key(6)])
        expected = {_key(n): b"%d" % n for n in range(64) if n not in (2, 6)}
        expected |= {_key(1): b"new", _key(3): b"again", _key(4, "y"): b"added", _key(5): b"here"}
        assert contents(other.shards[0]) == dict(sorted(expected.items()))
        keys = [_key(n) for n in range(8)]
        with other.shards[0].snapshot() as snapshot:
            assert snapshot.get_each(keys) == [expected.get(key) for key in keys]
            assert [snapshot.get(key) for key in keys] == [expected.get(key) for key in keys]
        _close(other)
        assert contents(other.shards[0]) == contents(filled.shards[0]) == dict(sorted(expected.items()))

    def test_many_keys_are_read_in_few_requests(
        self, filled: ObjectStore, lazy: Lazy, read_parts: list[int]
    ) -> None:
        with lazy("other").shards[0].snapshot() as snapshot:
            assert snapshot.get_each([_key(n) for n in range(64)]) == [b"%d" % n for n in range(64)]
        assert len(read_parts) <= 64 / 16

    def test_a_guard_reads_through_gaps(self, filled: ObjectStore, lazy: Lazy) -> None:
        other = lazy("other")
        seen: list[bytes | None] = []
        other.shards[0].write([(_key(1), b"new")], (), lambda get: seen.append(get(_key(9))))
        assert seen == [b"9"]

    def test_a_snapshot_stays_as_it_was_while_gaps_are_closed_and_others_write(
        self, filled: ObjectStore, lazy: Lazy
    ) -> None:
        other = lazy("other")
        expected = contents(other.shards[0])
        with other.shards[0].snapshot() as snapshot:
            assert snapshot.get(_key(0)) == b"0"
            again = lazy("other")  # another process of this host
            _close(again, 32)
            again.shards[0].write([(_key(1), b"new")], [_key(2), _key(60)])
            _close(again)
            assert dict(snapshot.scan(b"A", b"Z")) == expected
            assert snapshot.get(_key(60)) == b"60"

    def test_a_block_that_is_damaged_is_refused_and_named(
        self, filled: ObjectStore, lazy: Lazy, tmp_path: Path
    ) -> None:
        (part,) = _parts(tmp_path)
        part.write_bytes(part.read_bytes()[:-1] + b"!")
        other = lazy("other")
        with other.shards[0].snapshot() as snapshot:
            assert snapshot.get(_key(0)) == b"0"
            with pytest.raises(StoreError, match=r"parts/.* is damaged"):
                snapshot.get(_key(63))
        with pytest.raises(StoreError, match=r"parts/.* is damaged"):
            _close(other)


class TestClosingGaps:
    def test_it_stops_anywhere_and_another_process_goes_on(self, filled: ObjectStore, lazy: Lazy) -> None:
        other = lazy("other")
        _close(other, 20)
        assert _gaps(other) == 44
        other.close()
        again = lazy("other")
        assert _gaps(again) == 44
        assert contents(again.shards[0]) == contents(filled.shards[0])
        _close(again)
        assert _gaps(again) == 0
        assert contents(again.shards[0]) == contents(filled.shards[0])

    def test_two_processes_of_a_host_do_it_at_once(self, filled: ObjectStore, lazy: Lazy) -> None:
        one, other = lazy("other"), lazy("other")
        _shard(one).catch_up(), _shard(other).catch_up()
        for _ in itertools.zip_longest(_shard(one).lazy.close_gaps(), _shard(other).lazy.close_gaps()):
            pass
        assert _gaps(one) == _gaps(other) == 0
        assert contents(one.shards[0]) == contents(filled.shards[0])

    def test_a_write_between_its_reading_and_its_transaction_wins(
        self, filled: ObjectStore, lazy: Lazy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other, writer = lazy("other"), lazy("other")
        original = lazy_copy.filled
        seen: set[int] = set()

        def meanwhile(snapshot: Snapshot, index: int, entries: dict[bytes, bytes]) -> object:
            found = original(snapshot, index, entries)
            if index not in seen and len(seen) < 10:
                seen.add(index)
                key = next(iter(entries))
                writer.shards[0].write(*(([], [key]) if index % 2 else ([(key, b"new")],)))
            return found

        monkeypatch.setattr(lazy_copy, "filled", meanwhile)
        _close(other)
        found = contents(other.shards[0])
        assert found == contents(filled.shards[0])
        assert len(found) < 64
        assert b"new" in found.values()

    def test_it_goes_on_beside_the_work_and_then_no_part_is_read(
        self, filled: ObjectStore, lazy: Lazy, read_parts: list[int]
    ) -> None:
        other = lazy("other")
        _shard(other).background = True
        other.shards[0].write([(b"fence", b"1")])
        assert _gaps(other) == 64  # a driver does no more than that
        other.shards[0].write([(b"work", b"1")])
        eventually(lambda: _gaps(other) == 0)
        before = len(read_parts)
        assert len(contents(other.shards[0])) == 66
        assert len(read_parts) == before

    def test_a_process_that_ends_is_replaced_by_another(self, filled: ObjectStore, lazy: Lazy) -> None:
        one, other = lazy("other"), lazy("other")
        _shard(one).catch_up()
        with _shard(one).copy.closing_gaps() as mine:
            assert mine
            _shard(other).background = True
            for _ in range(3):
                other.shards[0].write([(b"work", b"1")])
            assert _gaps(other) == 64
        eventually(lambda: _gaps(other) == 0)

    def test_closing_the_store_ends_it(self, filled: ObjectStore, lazy: Lazy) -> None:
        other = lazy("other")
        _shard(other).background = True
        for _ in range(3):
            other.shards[0].write([(b"work", b"1")])
        other.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "millwheel-gaps"]


class TestPartsThatWereRemoved:
    @pytest.fixture
    def lacking(self, filled: ObjectStore, lazy: Lazy) -> ObjectStore:
        """A copy with gaps whose part is gone, and of whose keys none was written since."""
        other = lazy("other")
        _close(other, 10)
        _shard(filled).snapshots.block = 1000
        for value in (b"1", b"2"):
            filled.shards[0].write([(b"n", value)])
            _shard(other).catch_up()
            _shard(filled).checkpoint(grace=0, full=True)
        return other

    def test_a_read_begins_again_on_a_new_copy(self, lacking: ObjectStore, filled: ObjectStore) -> None:
        with pytest.raises(SnapshotLost), lacking.shards[0].snapshot() as snapshot:
            snapshot.get(_key(40))
        assert read(lacking.shards[0], lambda snapshot: snapshot.get(_key(40))) == b"40"
        assert contents(lacking.shards[0]) == contents(filled.shards[0])

    def test_a_guard_begins_again_on_a_new_copy(self, lacking: ObjectStore, filled: ObjectStore) -> None:
        seen: list[bytes | None] = []
        lacking.shards[0].write([(_key(1), b"new")], (), lambda get: seen.append(get(_key(40))))
        assert seen == [b"40"]
        assert contents(lacking.shards[0]) == contents(filled.shards[0])

    def test_a_snapshot_is_taken_of_a_new_copy(self, lacking: ObjectStore, filled: ObjectStore) -> None:
        filled.shards[0].write([(_key(1), b"new")])
        _shard(lacking).catch_up()
        _shard(lacking).checkpoint(full=True)
        assert contents(lacking.shards[0]) == contents(filled.shards[0])

    def test_the_thread_that_finds_it_out_has_the_copy_made_again(
        self, lacking: ObjectStore, filled: ObjectStore
    ) -> None:
        _shard(lacking).background = True
        for number in range(2):
            lacking.shards[0].write([(b"work", b"%d" % number)])

        def is_filled() -> bool:
            lacking.shards[0].write([(b"work", b"more")])
            return _gaps(lacking) == 0

        eventually(is_filled)
        assert contents(lacking.shards[0]) == contents(filled.shards[0])

    def test_one_that_the_newest_snapshot_names_is_damage(
        self, filled: ObjectStore, lazy: Lazy, tmp_path: Path
    ) -> None:
        (part,) = _parts(tmp_path)
        other = lazy("other")
        _shard(other).catch_up()
        part.unlink()
        with pytest.raises(StoreError, match=r"parts/.* is damaged: it is missing"):
            contents(other.shards[0])
        with pytest.raises(StoreError, match=r"parts/.* is damaged: it is missing"):
            other.shards[0].write([], (), lambda get: get(_key(1)) and None)

    def test_a_copy_whose_parts_may_soon_be_removed_is_made_again_before(
        self, filled: ObjectStore, lazy: Lazy
    ) -> None:
        now = [0.0]
        other = lazy("other")
        _shard(other).clocks = Clocks(lambda: now[0], lambda: 5.0)
        _shard(other).catch_up()
        base = _shard(other).lazy.base()
        for name in (b"1", b"2"):
            filled.shards[0].write([(b"n", name)])
            _shard(filled).checkpoint()
        _shard(other).grace = 1e-9  # whatever two snapshots lie apart
        now[0] = 1.0
        _shard(other).catch_up()
        assert base is not None
        assert (_shard(other).lazy.base() or 0) > base


class TestSnapshotsOfIt:
    def test_only_what_was_written_is_read_for_one(
        self, filled: ObjectStore, lazy: Lazy, read_parts: list[int]
    ) -> None:
        other = lazy("other")
        other.shards[0].write([(_key(3, "y"), b"new")], [_key(4)])
        _shard(other).checkpoint()
        assert len(read_parts) == 2  # the ranges of tablets 3 and 4
        assert _gaps(other) == 64
        assert contents(lazy("third").shards[0]) == contents(filled.shards[0])

    def test_a_whole_one_is_the_same(self, filled: ObjectStore, lazy: Lazy) -> None:
        other = lazy("other")
        other.shards[0].write([(_key(3, "y"), b"new")], [_key(4)])
        expected = contents(filled.shards[0])
        _shard(other).checkpoint(full=True, grace=0)
        assert contents(lazy("third").shards[0]) == contents(other.shards[0]) == expected

    def test_a_manifest_of_before_blocks_is_read(
        self, filled: ObjectStore, host: Host, lazy: Lazy, tmp_path: Path
    ) -> None:
        filled.shards[0].write([(b"M\x01", b"short")])
        _shard(filled).snapshots.block = 1 << 20
        _shard(filled).checkpoint(full=True)
        snapshots = _shard(filled).snapshots
        manifest = snapshots.needed(snapshots.newest())
        place = f"{filled.address.rpartition('id=')[2]}/shard-00"
        ranges = {key: [b.part, b.offset, b.length, b.checksum] for key, (b,) in manifest.ranges.items()}
        packed = zlib.compress(
            msgpack.packb([place, manifest.number, manifest.until, ranges, manifest.parts])
        )
        path = tmp_path / "objects" / "shard-00" / "snapshots" / f"{manifest.number:020d}"
        path.write_bytes(b"MWS1" + xxhash.xxh3_128_digest(packed) + packed)
        assert contents(lazy("other").shards[0]) == contents(filled.shards[0])


def test_neighbours_are_read_in_one_request() -> None:
    def block(part: str, offset: int) -> Block:
        return Block(b"", b"", part, offset, 1 << 20, b"")

    blocks = [block("a", 0), block("b", 0), block("a", 1 << 20), block("a", 5 << 20), block("b", 1 << 20)]
    found = [[(one.part, one.offset >> 20) for one in run] for run in runs(blocks)]
    assert found == [[("a", 0), ("a", 1)], [("a", 5)], [("b", 0), ("b", 1)]]


_KEYS = st.tuples(st.integers(0, 5), st.sampled_from("abc"))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.lists(_KEYS, max_size=4), st.lists(_KEYS, max_size=3)),
        st.sampled_from(["snapshot", "full", "remove", "lose", "close", "other"]),
        st.integers(0, 6),
    ),
    max_size=20,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS, bounds=st.tuples(_KEYS, _KEYS), block=st.sampled_from([1, 20, 1000]))
def test_writes_snapshots_and_gaps_that_close_in_any_order_leave_what_a_dict_would_hold(
    steps: list[object],
    bounds: tuple[tuple[int, str], tuple[int, str]],
    block: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path_factory.mktemp("store")
    model: dict[bytes, bytes] = {}
    hosts: list[ObjectStore] = []
    lost = 0

    def opened(name: str) -> ObjectStore:
        monkeypatch.setenv("MILLWHEEL_COPIES", str(folder / f"copies-{name}"))
        return with_small_blocks(ObjectStore(f"file://{folder}/objects"), block=block)

    def check(store: ObjectStore) -> None:
        keys = [_key(tablet, name) for tablet in range(6) for name in "abc"]
        start, stop = sorted(_key(*bound) for bound in bounds)

        def look(snapshot: Snapshot) -> None:
            snapshot.prefetch([(start, stop, 3), (keys[3], keys[3] + b"\x00", 1)])
            assert snapshot.get_each(keys) == [model.get(key) for key in keys]
            assert [snapshot.get(key) for key in keys] == [model.get(key) for key in keys]
            inside = [(key, model[key]) for key in sorted(model) if start <= key < stop]
            assert list(snapshot.scan(start, stop)) == inside

        read(store.shards[0], look)
        assert contents(store.shards[0]) == dict(sorted(model.items()))

    hosts = [opened("a"), opened("b")]
    for number, step in enumerate(steps):
        store = hosts[0]
        if step == "lose":
            lost += 1
            store.close()
            hosts[0] = opened(f"a{lost}")
        elif step == "other":
            hosts.reverse()
        elif step in ("snapshot", "full", "remove"):
            for each in hosts:  # none is behind by more than what is removed: it has looked just now
                _shard(each).catch_up()
            _shard(store).checkpoint(grace=0.0 if step == "remove" else 3600.0, full=step != "snapshot")
        elif isinstance(step, int) or step == "close":
            with suppress(lazy_copy.PartGone):
                _close(store, step if isinstance(step, int) else None)
        else:
            puts, deletes = step  # type: ignore[misc]
            entries = [(_key(tablet, name), b"%d" % number) for tablet, name in puts]
            gone = [_key(tablet, name) for tablet, name in deletes]

            def guard(get: Get, gone: list[bytes] = gone) -> None:
                assert [get(key) for key in gone] == [model.get(key) for key in gone]

            store.shards[0].write(entries, gone, guard)
            for key in gone:
                model.pop(key, None)
            model.update(entries)
        check(hosts[0])
    check(hosts[1])
    for store in hosts:
        store.close()
