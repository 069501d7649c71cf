"""Timers in bundles and rows in runs: nobody above a shard of PostgreSQL sees that they are packed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel.errors import StoreError
from millwheel.store.base import Get, Range, just
from millwheel.store.keyspace import KIND_WATERMARK, after, timer_key, timer_prefix
from millwheel.store.postgres import schema, snapshot, timer_bundles
from millwheel.store.postgres.packing import Packing
from millwheel.store.postgres.postgres_shard import PostgresShard
from millwheel.store.postgres.postgres_store import PostgresStore
from millwheel.store.postgres.row_runs import Log
from millwheel.store.postgres.timer_bundles import Bundler
from tests.servers.postgres import Cluster
from tests.servers.proxy import Moment, proxy
from tests.store.conftest import Open
from tests.store.driving import contents
from tests.store.postgres_rows import count_waits, rows

GROUPS = [b"T" + bytes(12), b"T" + bytes(11) + b"\x01", b"T\x00\x01" + b"\xff" * 10, b"T" + b"\xff" * 12]
SUFFIXES = [b"\x00", b"\x00\x00", b"a", b"a\x00", b"ab", b"b", b"\xff", b"\xff\xff"]
MARKS = [group + suffix for group in GROUPS for suffix in SUFFIXES]
ROWS = [b"R", b"R" * 21, b"Ra", b"Rb", b"R\xff"]
OTHERS = [
    b"L",
    b"L" * 16,
    b"L" * 18,
    b"Q",
    b"S",
    b"T",
    GROUPS[1],
    GROUPS[1] + b"x" * 500,
    b"U",
    b"U" * 20,
    b"U" * 22,
    b"V",
]


def timers(time: int, count: int, first: int = 0) -> list[tuple[bytes, bytes]]:
    """Index entries of one tablet, kind and time."""
    return [
        (timer_key(1, b"\x00" * 8 + b"%04d" % key, KIND_WATERMARK, time, 64), b"")
        for key in range(first, first + count)
    ]


def bundles(store: PostgresStore) -> list[int]:
    """How many marks each bundle has."""
    return sorted(
        timer_bundles.count(value) for key, value in rows(store).items() if timer_bundles.is_bundle(key)
    )


# Any write and any reading, against a dict.

_mark = st.sampled_from(MARKS)
_key = st.one_of(_mark, _mark, _mark, st.sampled_from(ROWS), st.sampled_from(OTHERS))
_value = st.sampled_from([b"", b"", b"", b"", b"v"])
_run = st.builds(  # the marks of a group, or most of them: as timers are set and fall due
    lambda group, count, first: [group + suffix for suffix in SUFFIXES[first : first + count]],
    st.sampled_from(GROUPS),
    st.integers(2, len(SUFFIXES)),
    st.integers(0, 3),
)
_bound = st.one_of(
    _key,
    _key.map(lambda key: key + b"\x00"),
    st.tuples(_mark, st.integers(0, 14)).map(lambda cut: cut[0][: cut[1]]),
    st.sampled_from([b"", b"S", b"T", b"U", b"V", b"\xff" * 30]),
)


@dataclass
class Write:
    puts: list[tuple[bytes, bytes]]
    more: list[bytes]
    deletes: list[bytes]
    also: list[bytes]
    twice: bool = False
    refused: bool = False
    restart: bool = False
    kept: bool = False
    rows: list[tuple[bytes, bytes]] = field(default_factory=list)
    second: bool = False

    def all_puts(self) -> list[tuple[bytes, bytes]]:
        return [*self.puts, *((key, b"") for key in self.more), *self.rows]


@dataclass
class Read:
    ranges: list[Range]
    scans: list[tuple[bytes, bytes]]
    gets: list[bytes]
    left: int = field(default=1000)
    second: bool = False


_writes = st.builds(
    Write,
    puts=st.lists(st.tuples(_key, _value), max_size=4),
    more=st.one_of(st.just([]), _run),
    deletes=st.lists(_key, max_size=4),
    also=st.one_of(st.just([]), _run),
    twice=st.booleans(),
    refused=st.sampled_from([False, False, False, True]),
    restart=st.sampled_from([False, False, True]),
    kept=st.booleans(),
    rows=st.lists(st.tuples(st.sampled_from(ROWS), st.sampled_from([b"1", b"2", b"3", b""])), max_size=3),
    second=st.booleans(),
)
_reads = st.builds(
    Read,
    ranges=st.lists(st.tuples(_bound, _bound, st.integers(0, 9)), max_size=3),
    scans=st.lists(st.tuples(_bound, _bound), max_size=3),
    gets=st.lists(_key, max_size=5),
    left=st.one_of(st.just(1000), st.integers(0, 5)),
    second=st.booleans(),
)


class Refused(Exception):
    """What the guards of these tests raise."""


@pytest.fixture(scope="module")
def any_store(postgres: Cluster) -> Iterator[list[PostgresStore]]:
    """Two handles of one store, as two processes have them."""
    url = postgres.make_database("bundles")
    stores = [PostgresStore(url), PostgresStore(url)]
    yield stores
    for store in stores:
        store.close()


def _pack_much(shard: PostgresShard) -> None:
    """Packs what is small already, and remembers nothing of what it has packed."""
    shard.packing = Packing(Bundler(size=14, most=5, least=2), Log(most=4, size=120, least=1))


def _check_write(shard: PostgresShard, model: dict[bytes, bytes], step: Write) -> None:
    puts, deletes = step.all_puts(), step.deletes + step.also
    asked = [key for key, _ in puts]

    def guard(get: Get) -> None:
        assert [get(key) for key in asked] == [model.get(key) for key in asked]
        if step.refused:
            raise Refused

    if step.restart:
        _pack_much(shard)
    if step.refused:
        with pytest.raises(Refused):
            shard.write(puts, deletes, guard, kept=step.kept)
        return
    shard.write(puts, deletes, guard, kept=step.kept)
    if step.twice:
        shard.write(puts, deletes, kept=step.kept)
    for key in deletes:
        model.pop(key, None)
    model.update(puts)


def _check_read(shard: PostgresShard, model: dict[bytes, bytes], step: Read) -> None:
    with shard.snapshot() as snapshot:
        snapshot.prefetch([*step.ranges, *map(just, step.gets[:2])])
        assert [snapshot.get(key) for key in step.gets] == [model.get(key) for key in step.gets]
        assert snapshot.get_each(step.gets) == [model.get(key) for key in step.gets]
        for start, stop in [*(part[:2] for part in step.ranges), *step.scans]:
            expected = sorted((key, value) for key, value in model.items() if start <= key < stop)
            assert list(itertools.islice(snapshot.scan(start, stop), step.left)) == expected[: step.left]
            assert list(snapshot.scan(start, stop)) == expected


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(st.one_of(_writes, _reads), max_size=12))
def test_any_sequence_of_writes_and_readings_is_that_of_a_dict(
    any_store: list[PostgresStore], monkeypatch: pytest.MonkeyPatch, steps: list[Write | Read]
) -> None:
    monkeypatch.setattr(snapshot, "FIRST_ROWS", 2)
    first = any_store[0]
    first.sessions.run(lambda session: session.send(f"TRUNCATE {first.tables[1]}") and session.sync())
    shards = [store.shards[0] for store in any_store]
    for shard in shards:
        assert isinstance(shard, PostgresShard)
        _pack_much(shard)
    model: dict[bytes, bytes] = {}
    for step in steps:
        shard = shards[step.second]
        assert isinstance(shard, PostgresShard)
        if isinstance(step, Write):
            _check_write(shard, model, step)
        else:
            _check_read(shard, model, step)
    everything = Read([(b"", b"\xff", 3)], [(b"", b"\xff")], [*MARKS, *ROWS, *OTHERS])
    for shard in shards:
        assert isinstance(shard, PostgresShard)
        _check_read(shard, model, everything)
    shards[0].write([], [*model, b"R"])  # a row, at least: so all that wait are brought in
    assert rows(first) == {}


# What stands in the table.


def test_timers_of_one_time_are_one_row_and_leave_none_behind(open_it: Open) -> None:
    store = open_it()
    shard = store.shards[0]
    shard.write([*timers(5, 40), *timers(6, 1)])
    assert bundles(store) == [40]
    assert len(rows(store)) == 2
    assert contents(shard) == dict([*timers(5, 40), *timers(6, 1)])
    shard.write([], [key for key, _ in timers(5, 39)])
    assert contents(shard) == dict([*timers(5, 1, 39), *timers(6, 1)])
    shard.write([], [key for key, _ in [*timers(5, 40), *timers(6, 1)]])
    assert rows(store) == {}


def test_bundles_stay_small_and_a_group_has_few_of_them(open_it: Open) -> None:
    store = open_it()
    for turn in range(3):
        store.shards[0].write(timers(5, 600, 600 * turn))
    assert sum(bundles(store)) == 1024
    assert max(map(len, rows(store).values())) <= 1900
    assert contents(store.shards[0]) == dict(timers(5, 1800))
    store.shards[0].write([], [key for key, _ in timers(5, 1800)])
    assert rows(store) == {}


def test_the_journal_packs_nothing(open_it: Open) -> None:
    store = open_it()
    entries = [*timers(5, 9), (b"U" * 21, b"of no bundle")]
    store.journal.write(entries)
    assert contents(store.journal) == dict(entries)
    assert len(store.sessions.run(lambda session: session.rows(f"SELECT * FROM {store.tables[0]}"))) == 10
    store.journal.write([], [key for key, _ in entries])
    assert contents(store.journal) == {}


def test_a_bundle_is_no_entry(open_it: Open) -> None:
    store = open_it()
    shard = store.shards[0]
    shard.write(timers(5, 9))
    (bundle,) = rows(store)
    with shard.snapshot() as snapshot:
        snapshot.prefetch([(b"U", b"V", 9)])
        assert list(snapshot.scan(b"U", b"V")) == []
        assert list(snapshot.scan(bundle, b"\xff")) == []
        assert snapshot.get(bundle) is None
        assert snapshot.get_each([bundle]) == [None]
    for puts, deletes in (([(bundle, b"")], []), ([], [bundle])):
        with pytest.raises(StoreError, match="is not an entry's key"):
            shard.write(puts, deletes)
    assert contents(shard) == dict(timers(5, 9))


# Writes that are made again.


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_write_that_is_made_again_leaves_each_timer_once(
    open_it: Open, postgres: Cluster, schema_url: str, moment: Moment
) -> None:
    open_it().shards[0].write(timers(5, 20))
    with proxy(postgres.port) as server:
        store = open_it(schema_url.replace(f":{postgres.port}/", f":{server.port}/"))
        seen: list[bytes | None] = []
        server.arm(b"COMMIT\x00", moment)
        store.shards[0].write(
            [*timers(6, 10), (b"R", b"1")],
            [key for key, _ in timers(5, 12)],
            lambda get: seen.append(get(b"R")),
        )
        assert server.cuts == 1
        assert seen == ([None, None] if moment == "before" else [None, b"1", b"1"])
        assert contents(store.shards[0]) == {b"R": b"1", **dict([*timers(5, 8, 12), *timers(6, 10)])}
        assert bundles(store) == [8, 10]
        store.close()


def test_a_row_that_is_there_already_does_not_keep_the_bundles_of_its_write_out(open_it: Open) -> None:
    store = open_it()
    shard = store.shards[0]
    shard.write([*timers(5, 1), *timers(6, 10)])
    shard.write([*timers(5, 1), *timers(7, 10)], [key for key, _ in timers(6, 8)])
    assert contents(shard) == dict([*timers(5, 1), *timers(6, 2, 8), *timers(7, 10)])
    assert bundles(store) == [2, 10]


def test_a_server_that_knows_no_merge_cuts_bundles_too(
    open_it: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.store.postgres.postgres_shard.MERGES", 10**9)
    store = open_it()
    store.shards[0].write(timers(5, 9))
    store.shards[0].write(timers(5, 3), [key for key, _ in timers(5, 6, 3)])
    assert contents(store.shards[0]) == dict(timers(5, 3))


# What it costs.


def test_to_remove_timers_costs_no_round_trip_where_there_is_a_guard(open_it: Open) -> None:
    store = open_it()
    shard = store.shards[0]
    shard.write(timers(5, 100))
    gone = [key for key, _ in timers(5, 50)]
    assert count_waits(store, lambda: shard.write([(b"R", b"")], (), lambda get: (get(b"M"), None)[1])) == (
        2,
        6,
    )
    assert count_waits(store, lambda: shard.write([(b"S", b"")], gone, lambda get: (get(b"M"), None)[1])) == (
        2,
        8,
    )
    assert count_waits(store, lambda: shard.write([], [b"R"])) == (2, 5)
    assert contents(shard) == {b"S": b"", **dict(timers(5, 50, 50))}


def test_what_is_prefetched_of_the_index_costs_one_round_trip(open_it: Open) -> None:
    store = open_it()
    shard = store.shards[0]
    prefix = timer_prefix(1, 0, KIND_WATERMARK)
    for time in range(5, 9):
        shard.write([*timers(time, 300), *timers(time + 100, 1)])
    with shard.snapshot() as snapshot:
        assert (
            count_waits(store, lambda: snapshot.prefetch([(prefix, after(prefix), 20), just(b"M")]))[0] == 1
        )
        scan = snapshot.scan(prefix, after(prefix))
        # Fewer were asked for than the first time has: it comes whole.
        assert count_waits(store, lambda: list(itertools.islice(scan, 300))) == (0, 0)
        assert count_waits(store, lambda: list(scan))[0] <= 2
        assert (
            count_waits(store, lambda: next(snapshot.scan(timers(6, 1)[0][0] + b"\x00", after(prefix))))[0]
            == 1
        )


def test_a_range_without_timers_costs_what_it_did(open_it: Open) -> None:
    store = open_it()
    store.shards[0].write([(b"R%d" % i, b"") for i in range(9)])
    with store.shards[0].snapshot() as snapshot:
        assert count_waits(store, lambda: snapshot.prefetch([(b"R", b"S", 20)])) == (
            1,
            3,
        )  # with BEGIN, and runs
        assert count_waits(store, lambda: list(snapshot.scan(b"C", b"D"))) == (1, 1)
        assert count_waits(store, lambda: snapshot.get_each([b"R1", b"R2"])) == (1, 1)


# Versions.


def _sql(url: str, statement: str, *parameters: object) -> list[tuple[object, ...]]:
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def test_a_store_of_version_1_is_brought_up_and_its_timers_are_found(
    open_it: Open, schema_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = schema_url.partition("schema=")[2]
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
    open_it()
    monkeypatch.undo()
    for key, value in timers(5, 10):
        _sql(schema_url, f"INSERT INTO {name}.shard_00 VALUES (%s, %s)", key, value)
    store = open_it()
    assert _sql(schema_url, f"SELECT value FROM {name}.about WHERE name = 'version'") == [("3",)]
    shard = store.shards[0]
    assert contents(shard) == dict(timers(5, 10))
    shard.write(timers(5, 10, 10), [key for key, _ in timers(5, 5)])
    assert contents(shard) == dict(timers(5, 15, 5))
    assert bundles(store) == [10]
    shard.write([], [key for key, _ in timers(5, 20)])
    assert rows(store) == {}


@pytest.mark.parametrize("known", [1, 2], ids=["no bundles", "no runs"])
def test_a_millwheel_that_does_not_know_them_does_not_open_them(
    open_it: Open, monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    open_it()
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:known])
    with pytest.raises(StoreError, match=r"have version 3, .* use a newer millwheel"):
        open_it()
