"""Rows that wait in runs: written at once as one entry, brought into their places later, and never missed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millwheel.errors import StoreError
from millwheel.model.codec import pack
from millwheel.store.base import just
from millwheel.store.keyspace import interval_key
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.postgres import row_runs
from millwheel.store.postgres.postgres_shard import PostgresShard
from millwheel.store.postgres.postgres_store import PostgresStore
from millwheel.store.postgres.row_runs import Log, Rows
from millwheel.store.tools.copy import copy
from tests.servers.postgres import Cluster
from tests.servers.proxy import Moment, proxy
from tests.store.conftest import Open
from tests.store.driving import contents
from tests.store.postgres_rows import count_waits
from tests.store.postgres_rows import rows as stored


def _rows(value: bytes, first: int = 0, count: int = 100) -> list[tuple[bytes, bytes]]:
    return [(b"R\x00\x01%05d" % key, value) for key in range(first, first + count)]


def _runs(store: PostgresStore) -> list[bytes]:
    return sorted(filter(row_runs.is_run, stored(store)))


def _shard(store: PostgresStore) -> PostgresShard:
    shard = store.shards[0]
    assert isinstance(shard, PostgresShard)
    return shard


# Of the runs alone.


def _name(number: int) -> bytes:
    return b"L" + number.to_bytes(8, "big") + b"whatever"


def test_a_run_stands_behind_those_that_wait() -> None:
    rows: Rows = {b"R%d" % key: b"1" for key in range(100)}
    log = Log()
    first = log.next(rows, [])
    assert first is not None
    again = log.next(rows, [])
    assert again is not None
    assert first[0] != again[0], "no two have the same name"
    ninth = log.next(rows, [(_name(8), 10)])
    assert ninth is not None
    assert _name(8) < ninth[0] < _name(10)


@pytest.mark.parametrize(
    ("rows", "listed"),
    [
        (63, []),  # few: as well written at once
        (100, [(_name(n), 10) for n in range(15)]),  # many wait
        (100, [(_name(1), 4 << 20)]),  # much waits
    ],
)
def test_rows_do_not_wait_where_they_are_few_or_many_wait_already(
    rows: int, listed: list[tuple[bytes, int]]
) -> None:
    assert Log().next({b"R%d" % key: b"1" for key in range(rows)}, listed) is None


def test_few_rows_stand_behind_what_waits() -> None:
    assert Log().next({b"R": b"1"}, [(_name(1), 10)]) is not None


def test_of_several_runs_the_last_one_says_what_a_row_is() -> None:
    waiting: list[Rows] = [{b"Ra": b"1", b"Rb": b"1"}, {b"Ra": None}, {b"Rb": b"3", b"Rd": b"3"}]
    assert row_runs.look_up(waiting, [b"Ra", b"Rb", b"Rc"]) == {b"Ra": None, b"Rb": b"3"}
    entries = [(b"Q", b"0"), (b"Ra", b"0"), (b"Rc", b"0")]
    found = list(row_runs.laid_over(entries, waiting, b"A", b"Z"))
    assert found == [(b"Q", b"0"), (b"Rb", b"3"), (b"Rc", b"0"), (b"Rd", b"3")]
    assert list(row_runs.laid_over(entries[:1], waiting, b"A", b"Rb")) == [(b"Q", b"0")]


def test_rows_wait_whether_or_not_they_are_written_again() -> None:
    log = Log()
    for number in range(3):
        rows: Rows = {b"R%d" % key: b"1" for key in range(100 * number, 100 * number + 100)}
        log.add(_name(number), rows)
        assert log.next(rows, []) is not None
    log.brought_in()
    assert log.next({b"R%d" % key: b"1" for key in range(100)}, []) is not None


# In a store.


def test_rows_wait_and_then_all_are_in_their_places(open_it: Open) -> None:
    store = open_it()
    shard = store.shards[0]
    for number in range(15):
        shard.write([*_rows(b"%d" % number, 10 * number), (b"M", b"%d" % number)], kept=True)
        assert len(_runs(store)) == number + 1
    assert set(stored(store)) == {b"M", *_runs(store)}
    model = dict(entry for number in range(15) for entry in _rows(b"%d" % number, 10 * number))
    assert contents(shard) == {b"M": b"14", **model}
    shard.write([], [key for key, _ in _rows(b"", 0, 5)], kept=True)  # there are sixteen now
    model = {key: value for key, value in model.items() if key >= b"R\x00\x0100005"}
    assert stored(store) == contents(shard) == {b"M": b"14", **model}
    packing = _shard(store).packing
    assert packing is not None
    assert packing.log.known == {}, "what waits no more takes no memory"


def test_a_write_that_is_not_kept_brings_in_what_waits(open_it: Open) -> None:
    store = open_it()
    shard = store.shards[0]
    shard.write(_rows(b"1"), kept=True)
    shard.write([(b"M", b"1")])
    assert len(_runs(store)) == 1, "it has nothing to do with rows"
    shard.write(_rows(b"2", 50, 1))
    assert stored(store) == {b"M": b"1", **dict(_rows(b"1")), **dict(_rows(b"2", 50, 1))}


def test_a_row_that_waits_is_not_asked_for_and_one_that_does_not_is(open_it: Open) -> None:
    store = open_it()
    shard = store.shards[0]
    shard.write(_rows(b"0", 0, 200))
    shard.write(_rows(b"1"), kept=True)
    with shard.snapshot() as snapshot:
        snapshot.prefetch([just(b"M")])
        assert count_waits(store, lambda: snapshot.get_each([key for key, _ in _rows(b"")])) == (0, 0)
        assert count_waits(store, lambda: snapshot.get_each([key for key, _ in _rows(b"", 99, 2)])) == (1, 1)
        assert snapshot.get_each([key for key, _ in _rows(b"", 99, 2)]) == [b"1", b"0"]


def test_another_process_fetches_a_run_once(open_it: Open) -> None:
    open_it().shards[0].write(_rows(b"1"), kept=True)
    store = open_it()
    wanted = [key for key, _ in _rows(b"")]
    for waits in (1, 0):
        with store.shards[0].snapshot() as snapshot:
            snapshot.prefetch([just(b"M")])
            assert count_waits(store, lambda snapshot=snapshot: snapshot.get_each(wanted))[0] == waits  # type: ignore[misc]


def test_a_reading_sees_the_runs_that_there_were_when_it_began(open_it: Open) -> None:
    store, other = open_it(), open_it()
    store.shards[0].write(_rows(b"1"), kept=True)
    key = _rows(b"")[0][0]
    with store.shards[0].snapshot() as snapshot:
        snapshot.prefetch([just(b"M")])
        other.shards[0].write(_rows(b"2"), kept=True)
        other.shards[0].write(_rows(b"3"))
        assert snapshot.get(key) == b"1"
        assert dict(snapshot.scan(b"R", b"S")) == dict(_rows(b"1"))
    with store.shards[0].snapshot() as snapshot:
        assert snapshot.get(key) == b"3"


def test_a_guard_sees_rows_that_wait(open_it: Open) -> None:
    store = open_it()
    store.shards[0].write(_rows(b"0", 0, 101))
    store.shards[0].write(_rows(b"1"), kept=True)
    seen: list[bytes | None] = []
    store.shards[0].write(
        [(b"M", b"")], (), lambda get: seen.extend(get(key) for key, _ in _rows(b"", 99, 2))
    )
    assert seen == [b"1", b"0"]


@pytest.mark.parametrize("kept", [True, False], ids=["to wait", "to bring in"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_write_that_is_made_again_is_one_all_the_same(
    open_it: Open, postgres: Cluster, schema_url: str, moment: Moment, kept: bool
) -> None:
    open_it().shards[0].write(_rows(b"0"))
    open_it().shards[0].write(_rows(b"1", 50), kept=True)
    with proxy(postgres.port) as server:
        store = open_it(schema_url.replace(f":{postgres.port}/", f":{server.port}/"))
        server.arm(b"COMMIT\x00", moment)
        store.shards[0].write(_rows(b"2", 75), kept=kept)
        assert server.cuts == 1
        assert bool(_runs(store)) == kept
        expected = {**dict(_rows(b"0", 0, 50)), **dict(_rows(b"1", 50, 25)), **dict(_rows(b"2", 75))}
        assert contents(store.shards[0]) == contents(open_it().shards[0]) == expected
        store.close()


def test_a_write_that_is_refused_leaves_no_run(open_it: Open) -> None:
    store = open_it()

    def refuse(get: object) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        store.shards[0].write(_rows(b"1"), (), refuse, kept=True)
    assert stored(store) == {}
    assert contents(store.shards[0]) == {}


def test_a_run_is_no_entry(open_it: Open) -> None:
    store = open_it()
    shard = store.shards[0]
    shard.write(_rows(b"1"), kept=True)
    (run,) = _runs(store)
    with shard.snapshot() as snapshot:
        snapshot.prefetch([(b"L", b"M", 9)])
        assert list(snapshot.scan(b"L", b"M")) == []
        assert list(snapshot.scan(run, b"R")) == []
        assert snapshot.get(run) is None
        assert snapshot.get_each([run, b"L"]) == [None, None]
    for puts, deletes in (([(run, b"")], []), ([], [run])):
        with pytest.raises(StoreError, match="is not an entry's key"):
            shard.write(puts, deletes)
    assert contents(shard) == dict(_rows(b"1"))


def test_large_rows_wait_in_small_numbers(open_it: Open) -> None:
    store = open_it()
    shard = store.shards[0]
    entries = {key: os.urandom(30_000) for key, _ in _rows(b"")}
    shard.write(list(entries.items()), kept=True)
    assert len(_runs(store)) == 1
    shard.write(list(entries.items()), kept=True)
    assert _runs(store) == [], "together they are more than may wait"
    assert contents(shard) == entries
    large = [(key, value * 2) for key, value in entries.items()]
    shard.write(large, kept=True)
    assert _runs(store) == []
    assert contents(shard) == dict(large)


def test_the_journal_has_none(open_it: Open) -> None:
    store = open_it()
    store.journal.write(_rows(b"1"), kept=True)
    assert contents(store.journal) == dict(_rows(b"1"))
    assert store.sessions.run(
        lambda session: session.rows(f"SELECT count(*) FROM {store.tables[0]} WHERE key < 'R'")
    ) == [(0,)]


def test_a_copy_has_the_rows_that_wait(open_it: Open, tmp_path: Path) -> None:
    store = open_it()
    store.journal.write([(b"driver", b""), (b"pipeline", pack("some"))])
    store.shards[0].write([*_rows(b"1"), (interval_key(1, 0), b"1")], kept=True)
    store.shards[0].write(_rows(b"2", 50, 1), [_rows(b"", 51)[0][0]], kept=True)
    expected = contents(store.shards[0])
    assert len(expected) == 100
    target = LmdbStore(tmp_path / "copy", shards=1)
    copy(store, target)
    assert contents(target.shards[0]) == expected
    target.close()
