"""What is PostgreSQL's own: schemas and their versions, locks, connections that come and go."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

import millwheel as mw
from millwheel.errors import FencedError, StoreError
from millwheel.master.journal import Journal
from millwheel.model.graph import build
from millwheel.store.base import Get, Shard, SnapshotLost, just
from millwheel.store.open import open_existing, open_store
from millwheel.store.postgres import schema
from millwheel.store.postgres.postgres_store import PostgresStore
from millwheel.store.postgres.sessions import Session
from tests.computations import Idle
from tests.servers.postgres import PASSWORD, Cluster, cluster
from tests.servers.proxy import Moment, Proxy, proxy
from tests.store.conftest import Open
from tests.store.driving import contents


@pytest.fixture
def server(postgres: Cluster) -> Iterator[Proxy]:
    with proxy(postgres.port) as found:
        yield found


def _through(server: Proxy, postgres: Cluster, url: str) -> str:
    return url.replace(f":{postgres.port}/", f":{server.port}/")


def _run(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def _schema(url: str) -> str:
    return url.partition("schema=")[2]


class TestOpening:
    def test_a_store_that_is_not_there_is_not_made_by_looking_at_it(self, schema_url: str) -> None:
        with pytest.raises(StoreError, match=f"there is no store in .*{_schema(schema_url)}"):
            open_existing(schema_url)
        made = _run(schema_url, f"SELECT 1 FROM pg_namespace WHERE nspname = '{_schema(schema_url)}'")
        assert not made

    def test_two_schemas_of_a_database_are_two_stores(self, open_it: Open, schema_url: str) -> None:
        one, other = open_it(), open_it(f"{schema_url}_other")
        one.shards[0].write([(b"k", b"one")])
        assert contents(other.shards[0]) == {}
        one.lock("the first pipeline")
        other.lock("the second pipeline")

    def test_the_address_leads_back_to_it_with_its_shards(self, open_it: Open) -> None:
        store = open_it(shards=4)
        store.shards[3].write([(b"k", b"v")])
        again = open_it(store.address, shards=1)
        assert contents(again.shards[3]) == {b"k": b"v"}
        assert again.address == store.address

    def test_an_address_does_not_open_another_store_that_stands_there_by_now(
        self, open_it: Open, schema_url: str
    ) -> None:
        address = open_it().address
        _run(schema_url, f"DROP SCHEMA {_schema(schema_url)} CASCADE")
        with pytest.raises(StoreError, match="there is no store"):
            open_it(address)
        open_it()
        with pytest.raises(StoreError, match="removed and made again"):
            open_it(address)

    def test_many_that_make_it_at_once_find_one_store(self, open_it: Open) -> None:
        addresses: list[str] = []
        threads = [threading.Thread(target=lambda: addresses.append(open_it().address)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(addresses) == 6
        assert len(set(addresses)) == 1

    def test_a_schema_that_somebody_else_made_for_us_is_used(self, open_it: Open, schema_url: str) -> None:
        _run(schema_url, f"CREATE SCHEMA {_schema(schema_url)}")
        open_it().journal.write([(b"k", b"v")])

    def test_tables_that_somebody_has_removed_are_said_to_be_gone(
        self, open_it: Open, schema_url: str
    ) -> None:
        store = open_it()
        _run(schema_url, f"DROP SCHEMA {_schema(schema_url)} CASCADE")
        with pytest.raises(
            StoreError, match="its tables are missing: the schema, or a part of it, was removed"
        ):
            contents(store.shards[0])


class TestVersions:
    def test_newer_tables_are_refused(self, open_it: Open, schema_url: str) -> None:
        open_it()
        _run(schema_url, f"UPDATE {_schema(schema_url)}.about SET value = '7' WHERE name = 'version'")
        with pytest.raises(StoreError, match=r"have version 7, .* use a newer millwheel"):
            open_it()

    def test_older_tables_are_brought_up_to_date_once_and_keep_what_they_hold(
        self, open_it: Open, schema_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        open_it(shards=2).shards[1].write([(b"k", b"v")])
        done: list[str] = []

        def second(session: Session, name: str, shards: int) -> None:
            done.append(name)
            session.send(f"ALTER TABLE {name}.shard_01 ADD COLUMN note text")

        monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, second])
        assert contents(open_it().shards[1]) == {b"k": b"v"}
        open_it()
        assert len(done) == 1
        assert _run(schema_url, f"SELECT note FROM {_schema(schema_url)}.shard_01") == [(None,)]

    def test_a_migration_that_fails_leaves_the_tables_as_they_were(
        self, open_it: Open, schema_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        open_it().journal.write([(b"k", b"v")])

        def broken(session: Session, name: str, shards: int) -> None:
            session.send(f"DROP TABLE {name}.journal")
            session.rows("SELECT 1 / 0")

        monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, broken])
        with pytest.raises(StoreError, match="division by zero"):
            open_it()
        monkeypatch.undo()
        assert contents(open_it().journal) == {b"k": b"v"}


class TestSecrets:
    def test_no_message_tells_the_password(self, postgres: Cluster, schema_url: str) -> None:
        wrong = schema_url.replace("tester:", "nobody:")
        for url in (wrong, f"{postgres.url('no_such_database')}?schema=x", f"{wrong}&patience=soon"):
            with pytest.raises(StoreError) as caught:
                open_store(url)
            assert PASSWORD not in str(caught.value)
            assert "s3cr3t" not in str(caught.value)

    def test_a_wrong_password_is_told_at_once(self, schema_url: str) -> None:
        began = time.monotonic()
        with pytest.raises(StoreError, match="check the user, the password and the database"):
            open_store(schema_url.replace("s3cr3t", "wrong") + "&patience=1000")
        assert time.monotonic() - began < 100


class TestTwoWriters:
    """READ COMMITTED alone would let both see the old value: one of the two would be lost."""

    def test_what_a_guard_has_seen_holds_until_its_write_is_made(self, open_it: Open) -> None:
        stores = [open_it() for _ in range(4)]
        shard = stores[0].shards[0]
        shard.write([(b"n", b"0")])

        def count(mine: Shard) -> None:
            for _ in range(25):
                while True:
                    with mine.snapshot() as snapshot:
                        seen = snapshot.get(b"n")
                    assert seen is not None
                    try:
                        mine.write([(b"n", str(int(seen) + 1).encode())], (), _unchanged(b"n", seen))
                        break
                    except _Moved:
                        continue

        _at_once([lambda store=store: count(store.shards[0]) for store in stores])  # type: ignore[misc]
        assert contents(shard) == {b"n": b"100"}

    def test_of_two_that_find_nothing_one_is_refused(self, open_it: Open) -> None:
        stores = [open_it() for _ in range(4)]
        taken: list[int] = []

        def take(number: int) -> None:
            for key in (b"a", b"b", b"c", b"d", b"e"):
                try:
                    stores[number].shards[0].write([(key, b"%d" % number)], (), _unchanged(key, None))
                    taken.append(number)
                except _Moved:
                    pass

        _at_once([lambda number=number: take(number) for number in range(4)])  # type: ignore[misc]
        assert len(taken) == 5

    def test_a_writer_that_hangs_inside_its_write_does_not_hang_the_next_one_for_ever(
        self, open_it: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from millwheel.store.postgres import postgres_shard

        monkeypatch.setattr(postgres_shard, "WRITER", postgres_shard.WRITER.replace("30s", "200ms"))
        hanging, other = open_it(), open_it()
        inside, go_on = threading.Event(), threading.Event()
        tries: list[bytes | None] = []

        def hang(get: Get) -> None:
            tries.append(get(b"k"))
            inside.set()
            go_on.wait(60)

        thread = threading.Thread(target=lambda: hanging.shards[0].write([(b"k", b"late")], (), hang))
        thread.start()
        inside.wait(60)
        other.shards[0].write([(b"k", b"new owner")])
        go_on.set()
        thread.join()
        assert tries == [None, b"new owner"]  # it is asked again, and a sequencer would refuse it


class TestLocks:
    def test_the_lock_goes_with_the_process_that_had_it(self, open_it: Open) -> None:
        store = open_it()
        child = os.fork()
        if child == 0:  # pragma: no cover - it is killed
            try:
                PostgresStore(store.address).lock("the child")
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        _until(lambda: store.in_use() is False)
        store.lock("the next")

    def test_a_takeover_ends_the_lock_of_the_other_and_names_the_new_owner(self, open_it: Open) -> None:
        first, second, third = open_it(), open_it(), open_it()
        first.lock("the first")
        second.lock("the second", takeover=True)
        with pytest.raises(StoreError, match="in use by the second"):
            third.lock("the third")

    def test_who_lost_the_server_takes_the_lock_again(
        self, open_it: Open, server: Proxy, postgres: Cluster, schema_url: str
    ) -> None:
        store, other = open_it(_through(server, postgres, schema_url)), open_it()
        store.lock("the owner")
        server.cut_all()
        _until(lambda: other.in_use() is False)
        store.journal.write([(b"k", b"v")])
        with pytest.raises(StoreError, match="in use by the owner"):
            other.lock("another one")

    def test_looking_says_whether_a_driver_has_it(self, open_it: Open) -> None:
        store, other = open_it(), open_it()
        assert other.in_use() is False
        store.lock("a driver")
        assert other.in_use() is True


class TestLostConnections:
    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_a_write_that_was_cut_in_its_commit_is_made_once(
        self, open_it: Open, server: Proxy, postgres: Cluster, schema_url: str, moment: Moment
    ) -> None:
        open_it()
        store = open_it(_through(server, postgres, schema_url))
        seen: list[bytes | None] = []
        server.arm(b"COMMIT\x00", moment)
        store.shards[0].write([(b"k", b"v")], (), lambda get: seen.append(get(b"k")))
        assert server.cuts == 1
        assert seen == [None, None if moment == "before" else b"v"]
        assert contents(store.shards[0]) == {b"k": b"v"}

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_a_driver_that_was_cut_while_it_took_the_pipeline_has_it(
        self, open_it: Open, server: Proxy, postgres: Cluster, schema_url: str, moment: Moment
    ) -> None:
        open_it()
        store = open_it(_through(server, postgres, schema_url))
        p = mw.Pipeline("mine")
        p.inject("in", mw.injectors.Records([]))
        p.add(Idle(), name="C", inputs={"in": mw.by_key})
        journal = Journal(store)
        server.arm(b"INSERT", moment)  # the reading before it commits too
        assert journal.acquire(build(p), "me") == 1
        assert server.cuts == 1
        journal.note([(b"watch", b"")])
        second = Journal(open_it())
        assert second.acquire(build(p), "another") == 2
        with pytest.raises(FencedError, match="taken over by another"):
            journal.forget_plan()

    def test_a_reading_that_has_begun_is_not_continued_on_another_connection(
        self, open_it: Open, server: Proxy, postgres: Cluster, schema_url: str
    ) -> None:
        store = open_it(_through(server, postgres, schema_url))
        with store.shards[0].snapshot() as snapshot:
            snapshot.get(b"k")
            server.cut_all()
            with pytest.raises(SnapshotLost):
                snapshot.get(b"k")
        with store.shards[0].snapshot() as snapshot:
            assert snapshot.get(b"k") is None

    def test_a_server_that_stays_away_is_an_error_that_says_so(
        self, open_it: Open, server: Proxy, postgres: Cluster, schema_url: str
    ) -> None:
        store = open_it(_through(server, postgres, schema_url) + "&patience=0.3")
        server.target = 1
        server.cut_all()
        with pytest.raises(StoreError, match=r"cannot be reached; run again .* nothing is lost"):
            store.shards[0].write([(b"k", b"v")])

    def test_serialization_failures_and_deadlocks_are_tried_again(self, open_it: Open) -> None:
        shard = open_it().shards[0]
        errors = [psycopg.errors.SerializationFailure(), psycopg.errors.DeadlockDetected()]

        def fail(get: Get) -> None:
            if errors:
                raise errors.pop()

        shard.write([(b"k", b"v")], (), fail)
        assert contents(shard) == {b"k": b"v"}

    def test_a_fork_leaves_the_connections_of_its_parent_alone(self, open_it: Open) -> None:
        store = open_it()
        store.shards[0].write([(b"k", b"parent")])
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            ok = False
            try:
                ok = contents(store.shards[0]) == {b"k": b"parent"}
                store.close()
            finally:
                os._exit(0 if ok else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0
        connections = store.traffic.connections
        store.shards[0].write([(b"k", b"parent again")])
        assert store.traffic.connections == connections


def test_a_server_that_restarts_or_crashes_is_waited_for(tmp_path: object) -> None:
    with cluster() as own:
        store = PostgresStore(own.url(), shards=2)
        store.lock("the driver")
        for number in (signal.SIGINT, signal.SIGQUIT):
            store.shards[0].write([(b"n", str(number).encode())])
            own.stop(number)
            starter = threading.Thread(target=own.start)
            starter.start()
            store.shards[1].write([(b"n", str(number).encode())])
            starter.join()
            assert contents(store.shards[0]) == contents(store.shards[1])
            assert store.in_use()
        store.close()


class TestPrefetch:
    def test_what_was_fetched_is_read_without_a_round_trip(self, open_it: Open) -> None:
        store = open_it()
        shard = store.shards[0]
        shard.write([(b"%03d" % i, b"v%d" % i) for i in range(500)])
        with shard.snapshot() as snapshot:
            snapshot.prefetch([(b"1", b"2", 200), (b"3", b"4", 10), just(b"007"), just(b"nothing")])
            before = store.traffic.waits
            assert [key for key, _ in snapshot.scan(b"1", b"2")] == [b"%03d" % i for i in range(100, 200)]
            assert snapshot.get(b"007") == b"v7"
            assert snapshot.get(b"nothing") is None
            assert store.traffic.waits == before
            assert [key for key, _ in snapshot.scan(b"3", b"4")] == [b"%03d" % i for i in range(300, 400)]
            assert store.traffic.waits == before + 1

    def test_large_values_come_in_pages(self, open_it: Open) -> None:
        store = open_it()
        shard = store.shards[0]
        entries = {b"%d" % i: bytes([i]) * 5_000_000 for i in range(5)}
        shard.write(list(entries.items()))
        with shard.snapshot() as snapshot:
            snapshot.prefetch([(b"0", b"9", 100)])
            before = store.traffic.waits
            assert dict(snapshot.scan(b"0", b"9")) == entries
            assert store.traffic.waits - before == 2


def test_a_reading_that_has_ended_keeps_no_row_alive(open_it: Open, schema_url: str) -> None:
    store = open_it()
    horizon = "SELECT count(backend_xmin) FROM pg_stat_activity WHERE pid = ANY('{%s}')"
    with store.shards[0].snapshot() as snapshot:
        snapshot.get(b"k")
        session = snapshot.session.connection.info.backend_pid  # type: ignore[attr-defined]
        assert _run(schema_url, horizon % session) == [(1,)]
    _until(lambda: _run(schema_url, horizon % session) == [(0,)])


def test_a_server_that_does_not_wait_for_its_disk_does_so_for_a_store(postgres: Cluster) -> None:
    url = postgres.make_database("careless")
    postgres.run("ALTER DATABASE careless SET synchronous_commit = off")
    postgres.run("ALTER DATABASE careless SET idle_session_timeout = '1s'")
    store = PostgresStore(url)
    session = store.sessions.take()
    assert session.rows("SHOW synchronous_commit") == [("on",)]
    assert session.rows("SHOW idle_session_timeout") == [("0",)]
    session.close()
    store.close()


@pytest.mark.parametrize("kept", [False, True], ids=["rows in their places", "rows in runs"])
def test_dead_rows_do_not_pile_up(open_it: Open, schema_url: str, kept: bool) -> None:
    """Rows are written again and again, index entries come and go, checkpoints are large."""
    store = open_it()
    shard = store.shards[0]
    name = f"{_schema(schema_url)}.shard_00"
    sizes: list[int] = []
    # A busy server cleans late at first. What is never cleaned grows by a quarter in the last part.
    for part in range(5):
        for epoch in range(40 * part, 40 * part + 40):  # enough that a server cleans more than once in it
            puts = [(b"R%05d" % key, b"%d" % epoch * 20) for key in range(500)]
            puts += [(b"T%05d%05d" % (epoch, key), b"") for key in range(500)]
            puts.append((b"P", os.urandom(400_000)))
            gone = [b"T%05d%05d" % (epoch - 1, key) for key in range(500)]
            shard.write(puts, gone, kept=kept)
        cleaned = _cleanings(schema_url, name)
        # A server learns what a connection has done when that does something again, a second later.
        _until(lambda cleaned=cleaned: _written(shard) and _cleanings(schema_url, name) >= cleaned + 2)  # type: ignore[misc]
        sizes.append(store.size())
        if part and sizes[-1] <= 1.1 * sizes[-2]:
            break
    assert _run(schema_url, f"SELECT count(*) FROM {name}") == [(1001,)]
    assert sizes[-1] <= 1.1 * sizes[-2], sizes


def _written(shard: Shard) -> bool:
    shard.write([(b"R00000", b"")])
    return True


def _cleanings(url: str, table: str) -> int:
    """How often a table and its large values were vacuumed."""
    found = _run(
        url,
        f"SELECT sum(pg_stat_get_autovacuum_count(oid)) FROM pg_class WHERE oid = '{table}'::regclass "
        f"OR oid = (SELECT reltoastrelid FROM pg_class WHERE oid = '{table}'::regclass)",
    )
    return int(str(found[0][0]))


class _Moved(Exception):
    """What the guards of these tests raise."""


def _unchanged(key: bytes, seen: bytes | None) -> Callable[[Get], None]:
    def guard(get: Get) -> None:
        if get(key) != seen:
            raise _Moved

    return guard


def _at_once(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _until(condition: Callable[[], bool], patience: float = 60) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
