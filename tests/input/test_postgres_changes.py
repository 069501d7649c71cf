"""`PostgresChanges`: a copy of the tables, then every change, each once; a real server with its own log."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import millwheel as mw
from millwheel.master.journal import Journal
from millwheel.store.base import Store
from millwheel.store.memory import MemoryStore
from tests.servers.postgres import Cluster, cluster
from tests.servers.processes import Unavailable
from tests.store.driving import run, take

_databases = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A server that decodes its log."""
    try:
        with cluster(("fsync=off", "wal_level=logical", "max_replication_slots=40")) as found:
            yield found
    except Unavailable as reason:
        pytest.skip(str(reason))


class World:
    """A database with a published table, and the pipeline that follows it."""

    def __init__(self, url: str, store: Store) -> None:
        self.url = url
        self.store = store
        self.connection = psycopg.connect(url, autocommit=True)
        self("CREATE TABLE users (id int PRIMARY KEY, name text)")
        self("CREATE PUBLICATION pub FOR TABLE users")
        self.out = mw.sinks.Collect()

    def __call__(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def pipeline(self, **options: Any) -> mw.Pipeline:
        self.out = mw.sinks.Collect()
        p = mw.Pipeline("changes")
        changes = p.inject("changes", mw.injectors.PostgresChanges(self.url, "pub", **options))
        changes.sink(self.out)
        return p

    def read(self, **options: Any) -> list[tuple[Any, ...]]:
        """What a run to the end gives: operation, key, before and after of each record."""
        run(self.pipeline(**options), self.store)
        return [_short(record.value) for record in self.out.records]


def _short(value: Any) -> tuple[Any, ...]:
    return value["operation"], value["key"], value["before"], value["after"]


@pytest.fixture
def world(server: Cluster) -> Iterator[World]:
    found = World(server.make_database(f"changes{next(_databases)}"), MemoryStore())
    yield found
    own = "FROM pg_replication_slots WHERE NOT active AND database = current_database()"
    found(f"SELECT pg_drop_replication_slot(slot_name) {own}")
    found.connection.close()


ANN, BEN = {"id": 1, "name": "Ann"}, {"id": 2, "name": "Ben"}


def test_first_the_rows_that_are_there_then_each_change_once(world: World) -> None:
    world("INSERT INTO users VALUES (1, 'Ann')")
    assert world.read() == [("snapshot", {"id": 1}, None, ANN)]
    world("INSERT INTO users VALUES (2, 'Ben')", "UPDATE users SET name = 'Bob' WHERE id = 2")
    world("UPDATE users SET id = 3 WHERE id = 2", "DELETE FROM users WHERE id = 1", "TRUNCATE users")
    assert world.read() == [
        ("insert", {"id": 2}, None, BEN),
        ("update", {"id": 2}, None, {"id": 2, "name": "Bob"}),
        ("update", {"id": 3}, {"id": 2}, {"id": 3, "name": "Bob"}),
        ("delete", {"id": 1}, {"id": 1}, None),
        ("truncate", None, None, None),
    ]
    assert world.read() == []


def test_with_full_identity_the_row_before_is_there(world: World) -> None:
    world("ALTER TABLE users REPLICA IDENTITY FULL", "INSERT INTO users VALUES (1, 'Ann')")
    world.read()
    world("UPDATE users SET name = 'Eve'", "DELETE FROM users")
    eve = {"id": 1, "name": "Eve"}
    assert world.read() == [("update", {"id": 1}, ANN, eve), ("delete", {"id": 1}, eve, None)]


def test_a_large_value_that_was_not_sent_is_named_or_taken_from_the_row_before(world: World) -> None:
    world("ALTER TABLE users ADD big text, ALTER big SET STORAGE EXTERNAL")
    world("INSERT INTO users VALUES (1, 'Ann', repeat('x', 100000))")
    world.read()
    world("UPDATE users SET name = 'Eve'", "ALTER TABLE users REPLICA IDENTITY FULL")
    world("UPDATE users SET name = 'Eva'")
    world.read()
    first, second = (record.value for record in world.out.records)
    assert first["unchanged"] == ["big"]
    assert "big" not in first["after"]
    assert "unchanged" not in second
    assert second["after"]["big"] == "x" * 100_000


def test_values_of_the_copy_and_of_changes_are_alike(world: World) -> None:
    world(
        "CREATE TABLE kinds (id bigint PRIMARY KEY, b bool, f float8, n numeric, t timestamptz, d date, "
        "j jsonb, y bytea, a int[], u uuid, i interval, r int4range, e timestamptz, x text)",
        "ALTER PUBLICATION pub ADD TABLE kinds",
        "INSERT INTO kinds SELECT 1, true, 1.5, 2.50, '2020-01-02 03:04:05+00', '2020-01-02', "
        "'{\"a\": [1]}', '\\x0102', '{1,2}', "
        "'00000000-0000-0000-0000-000000000001', '1 second', '[1,3)', 'infinity', NULL",
    )
    world.read()
    (copied,) = [record.value["after"] for record in world.out.records]
    world("UPDATE kinds SET id = id")
    world.read()
    (changed,) = [record.value["after"] for record in world.out.records]
    assert copied == changed
    assert copied == {
        "id": 1, "b": True, "f": 1.5, "n": "2.50", "t": 1577934245000000, "d": "2020-01-02",
        "j": {"a": [1]}, "y": b"\x01\x02", "a": [1, 2], "u": "00000000-0000-0000-0000-000000000001",
        "i": 1_000_000, "r": "[1,3)", "e": "infinity", "x": None,
    }  # fmt: skip


def test_a_transaction_is_in_order_and_in_one_epoch_and_one_that_is_rolled_back_in_none(world: World) -> None:
    world.read()
    with world.connection.transaction():
        world(*(f"INSERT INTO users VALUES ({n}, 'x')" for n in range(20)))
    with world.connection.transaction(force_rollback=True):
        world("INSERT INTO users VALUES (99, 'never')")
    driver, executor = take(world.pipeline(), world.store)
    driver.sizer.bound = 1
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    assert [record.value["key"]["id"] for record in world.out.records] == list(range(20))
    assert len({record.value["transaction"] for record in world.out.records}) == 1
    driver.close()


def test_the_timestamp_is_the_commit_or_a_column(world: World) -> None:
    world("ALTER TABLE users ADD at bigint", "INSERT INTO users VALUES (1, 'Ann', 7)")
    world.read(timestamp="at", unit="s")
    assert [record.timestamp for record in world.out.records] == [7 * mw.SECOND]
    world("UPDATE users SET at = 8", "DELETE FROM users")
    world.read(timestamp="at", unit="s")
    first, deleted = world.out.records
    assert first.timestamp == 8 * mw.SECOND
    assert deleted.timestamp > 1_600_000_000 * mw.SECOND
    world("INSERT INTO users VALUES (3, 'x', 1)")
    with pytest.raises(mw.InputError, match="has no column 'when'"):
        world.read(timestamp="when")


class _Dies(BaseException):
    """The driver is gone."""


class _DiesBefore:
    """An executor that dies in place of running an epoch, or right after."""

    job = None

    def __init__(self, executor: Any, *, after: bool) -> None:
        self._executor = executor
        self._after = after

    def execute(self, plan: Any) -> Any:
        if self._after:
            self._executor.execute(plan)
        raise _Dies

    def close(self) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize("after", [False, True])
def test_an_epoch_that_is_run_again_reads_the_same(world: World, after: bool) -> None:
    """Of the copy and of the changes: the slot gives up nothing that is not committed."""
    world("INSERT INTO users SELECT n, 'copied' FROM generate_series(1, 5) n")
    for name in ("copied", "changed"):
        if name == "changed":
            world("UPDATE users SET name = 'changed'")
        driver, executor = take(world.pipeline(), world.store)
        plan = driver.next_plan()
        assert plan is not None
        with pytest.raises(_Dies):
            driver.run(plan, _DiesBefore(executor, after=after))
        driver.let_go()
        world.store.close()
        world("UPDATE users SET name = 'later' WHERE id = 1")
        found = world.read()
        seen = [row["name"] for _, _, _, row in found]
        assert seen == [name] * 5 + ["later"]


def test_the_slot_is_advanced_only_after_the_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.read()
    world("INSERT INTO users VALUES (1, 'Ann')")
    before = _confirmed(world)

    def fails(*rest: Any) -> None:
        assert _confirmed(world) == before
        raise _Dies

    driver, executor = take(world.pipeline(), world.store)
    plan = driver.next_plan()
    assert plan is not None
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "commit", fails)
        with pytest.raises(_Dies):
            driver.run(plan, executor)
    driver.let_go()
    world.store.close()
    assert world.read() == [("insert", {"id": 1}, None, ANN)]
    assert _confirmed(world) > before


def _confirmed(world: World) -> str:
    row = world.connection.execute(
        "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE database = current_database()"
    ).fetchone()
    assert row is not None
    return row[0]


def test_a_start_that_was_interrupted_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world("INSERT INTO users VALUES (1, 'Ann')")
    with monkeypatch.context() as patch:
        patch.setattr("millwheel.injectors.postgres_slot.Slot.copy", _die)
        with pytest.raises(_Dies):
            world.read()
    world.store.close()
    world("INSERT INTO users VALUES (2, 'Ben')")
    assert world.read() == [("snapshot", {"id": 1}, None, ANN), ("snapshot", {"id": 2}, None, BEN)]


def _die(*rest: Any) -> None:
    raise _Dies


def test_the_copy_is_dropped_once_it_is_read(world: World) -> None:
    world("INSERT INTO users VALUES (1, 'Ann')")
    world.read()
    row = world.connection.execute(
        "SELECT array_agg(tablename::text) FROM pg_tables WHERE schemaname = 'millwheel'"
    ).fetchone()
    assert row == (["slots"],)


def test_a_slot_without_changes_follows_the_log_of_other_tables(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.injectors.postgres_changes.IDLE", -1.0)
    world("INSERT INTO users VALUES (1, 'Ann')", "CREATE TABLE others (n int)")
    world.read()
    before = _confirmed(world)
    world("INSERT INTO others SELECT generate_series(1, 10000)")
    world.read()
    assert _confirmed(world) > before
    world("INSERT INTO users VALUES (2, 'Ben')")
    assert world.read() == [("insert", {"id": 2}, None, BEN)]


def test_more_changes_than_one_look_counts_are_all_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.read()
    monkeypatch.setattr("millwheel.injectors.postgres_changes.AT_ONCE", 10)
    world(*(f"INSERT INTO users VALUES ({n}, 'x')" for n in range(60)))
    assert [key["id"] for _, key, _, _ in world.read()] == list(range(60))


def test_tables_make_a_materialised_view(world: World) -> None:
    """What is aggregated of the changes is what the database says."""

    class View(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            if record.value["after"] is None:
                del self.state
            else:
                self.state = record.value["after"]

    def pipeline() -> mw.Pipeline:
        p = mw.Pipeline("view")
        p.inject("changes", mw.injectors.PostgresChanges(world.url, "pub"))
        p.add(View(), inputs={"changes": mw.by("key.id")})
        return p

    world("INSERT INTO users SELECT n, 'x' FROM generate_series(1, 9) n")
    run(pipeline(), world.store)
    world("UPDATE users SET name = id::text WHERE id > 3", "DELETE FROM users WHERE id = 5")
    run(pipeline(), world.store)
    h = _states(world.store, 9)
    rows = world.connection.execute("SELECT id, name FROM users").fetchall()
    assert h == {str(id): {"id": id, "name": name} for id, name in rows}


def _states(store: Store, keys: int) -> dict[str, Any]:
    from millwheel.model.codec import unpack
    from millwheel.store.window_row import find_row

    found = {}
    for key in map(str, range(1, keys + 1)):
        with store.shards[0].snapshot() as snapshot:
            row = find_row(snapshot, 0, key, store.tablets) or find_row(snapshot, 1, key, store.tablets)
        if row is not None and row.state is not None:
            found[key] = unpack(row.state)
    return found


def test_a_server_that_does_not_decode_its_log_says_what_to_set(postgres: Cluster) -> None:
    url = postgres.make_database("changes_without_a_log")
    with pytest.raises(mw.InputError, match=r"wal_level is 'replica'.* ALTER SYSTEM SET wal_level = logical"):
        mw.injectors.PostgresChanges(url, "pub").open(follow=False)


Spoil = Callable[[World], None]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda w: w("DROP PUBLICATION pub"),
            "no publication 'pub' in this database: CREATE PUBLICATION",
        ),
        (lambda w: w("ALTER PUBLICATION pub DROP TABLE users"), "the publication 'pub' has no table"),
        (lambda w: w("ALTER TABLE users DROP CONSTRAINT users_pkey"), "public.users has no primary key"),
        (lambda w: w("DROP TABLE millwheel.slots"), "that another program made: give this one another slot="),
        (lambda w: w("UPDATE millwheel.slots SET origin = 'x'"), "belongs to another pipeline or store"),
        (
            lambda w: w("SELECT pg_drop_replication_slot(slot) FROM millwheel.slots"),
            "is gone, and with it the changes since it was last read: begin with a new store",
        ),
        (
            lambda w: w(
                "SELECT pg_drop_replication_slot(slot) FROM millwheel.slots", "DELETE FROM millwheel.slots"
            ),
            "is gone, and with it the changes since it was last read: begin with a new store",
        ),
    ],
)
def test_what_is_not_as_it_must_be_is_said(world: World, spoil: Spoil, message: str) -> None:
    world("INSERT INTO users VALUES (1, 'Ann')")
    world.read()
    spoil(world)
    with pytest.raises(mw.InputError, match=message) as found:
        world.read()
    assert "s3cr3t" not in str(found.value)


def test_a_slot_that_somebody_else_reads_is_waited_for_and_then_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.injectors.postgres_slot.PATIENCE", 0.2)
    world.read(slot="shared")
    world("INSERT INTO users VALUES (1, 'Ann')")
    driver, executor = take(world.pipeline(slot="shared"), world.store)
    plan = driver.next_plan()
    assert plan is not None
    other = psycopg.connect(world.url, replication="database", autocommit=True)
    other.pgconn.exec_(
        b"START_REPLICATION SLOT shared LOGICAL 0/0 (proto_version '1', publication_names 'pub')"
    )
    with pytest.raises(mw.InputError, match=r"is active for PID .*: another process reads the slot: stop"):
        driver.run(plan, executor)
    other.close()
    driver.let_go()
    world.store.close()
    monkeypatch.setattr("millwheel.injectors.postgres_slot.PATIENCE", 30.0)
    assert world.read(slot="shared") == [("insert", {"id": 1}, None, ANN)]


def test_a_role_without_the_right_to_replicate_is_told_what_it_needs(world: World) -> None:
    role = f"reader{next(_databases)}"
    world(f"CREATE ROLE {role} LOGIN PASSWORD 'x'", f"GRANT SELECT ON users TO {role}")
    world(f"GRANT CREATE ON DATABASE {world.connection.info.dbname} TO {role}")
    info = world.connection.info
    url = f"postgresql://{role}:x@{info.host}:{info.port}/{info.dbname}"
    p = mw.Pipeline("changes")
    p.inject("changes", mw.injectors.PostgresChanges(url, "pub")).sink(mw.sinks.Collect())
    with pytest.raises(mw.InputError, match="the role needs the attribute REPLICATION"):
        run(p, world.store)
    world(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.parametrize("lacking", ["SELECT", "CREATE"])
def test_a_role_that_may_not_read_or_create_is_told_what_it_needs(world: World, lacking: str) -> None:
    role, info = f"reader{next(_databases)}", world.connection.info
    world(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'")
    if lacking != "SELECT":
        world(f"GRANT SELECT ON users TO {role}")
    if lacking != "CREATE":
        world(f"GRANT CREATE ON DATABASE {info.dbname} TO {role}")
    url = f"postgresql://{role}:x@{info.host}:{info.port}/{info.dbname}"
    p = mw.Pipeline("changes")
    p.inject("changes", mw.injectors.PostgresChanges(url, "pub")).sink(mw.sinks.Collect())
    with pytest.raises(mw.InputError, match=r"permission denied .*SELECT on the tables and CREATE on"):
        run(p, world.store)
    world(f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def test_a_log_that_the_server_has_dropped_is_said(world: World) -> None:
    world("INSERT INTO users VALUES (1, 'Ann')")
    world.read()
    world("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    try:
        for id in range(2, 6):
            world(f"INSERT INTO users VALUES ({id}, 'x')", "SELECT pg_switch_wal()")
        world("CHECKPOINT")
        with pytest.raises(mw.InputError, match=r"max_slot_wal_keep_size.*begin with a new store|is gone"):
            world.read()
    finally:
        world("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_a_row_without_the_timestamp_is_diverted(world: World) -> None:
    world("ALTER TABLE users ADD at bigint", "INSERT INTO users VALUES (1, 'Ann', 7), (2, 'Ben', NULL)")
    p = mw.Pipeline("changes")
    good, bad = mw.sinks.Collect(), mw.sinks.Collect()
    injector = mw.injectors.PostgresChanges(world.url, "pub", timestamp="at", unit="s", errors="divert")
    p.inject("changes", injector).sink(good)
    p.sink("changes.errors", bad)
    run(p, world.store)
    assert [record.value["key"] for record in good.records] == [{"id": 1}]
    assert len(bad.records) == 1


def test_a_server_that_is_away_is_said_to_be_without_the_password() -> None:
    injector = mw.injectors.PostgresChanges("postgresql://me:hidden@127.0.0.1:1/x", "pub")
    with pytest.raises(mw.InputError, match="see that the server is there") as found:
        injector.open(follow=False)
    assert "hidden" not in str(found.value) + repr(injector)


def test_a_name_that_no_slot_can_have_is_refused() -> None:
    with pytest.raises(mw.MillWheelError, match="slot has small letters"):
        mw.injectors.PostgresChanges("postgresql://db/x", "pub", slot="My Slot")


def test_values_are_what_json_carries_but_for_bytes(world: World) -> None:
    world("INSERT INTO users VALUES (1, 'Ann')")
    world.read()
    json.dumps([record.value for record in world.out.records])


def test_a_primary_key_that_is_renamed_names_rows_before_and_after(world: World) -> None:
    world.read()
    world("INSERT INTO users VALUES (1, 'Ann')", "ALTER TABLE users RENAME id TO number")
    world("INSERT INTO users VALUES (2, 'Ben')")
    assert [key for _, key, _, _ in world.read()] == [{"id": 1}, {"number": 2}]
    assert [record.key for record in world.out.records] == ["1", "2"]


def test_a_primary_key_that_becomes_another_one_names_rows_from_then_on(world: World) -> None:
    world.read()
    world("INSERT INTO users VALUES (1, 'Ann')", "ALTER TABLE users DROP CONSTRAINT users_pkey")
    world("ALTER TABLE users ADD PRIMARY KEY (name)", "INSERT INTO users VALUES (2, 'Ben')")
    assert [key for _, key, _, _ in world.read()] == [{"id": 1}, {"name": "Ben"}]


def test_rows_of_a_renamed_key_with_full_identity_are_told_apart(world: World) -> None:
    world("ALTER TABLE users REPLICA IDENTITY FULL")
    world.read()
    world("INSERT INTO users VALUES (1, 'Ann'), (2, 'Ben')", "ALTER TABLE users RENAME id TO number")
    assert [key for _, key, _, _ in world.read()] == [ANN, BEN]


def test_of_all_tables_the_copies_of_millwheel_are_none(world: World) -> None:
    world("DROP PUBLICATION pub", "CREATE PUBLICATION pub FOR ALL TABLES")
    world("INSERT INTO users VALUES (1, 'Ann')")
    assert world.read() == [("snapshot", {"id": 1}, None, ANN)]
    world("INSERT INTO users VALUES (2, 'Ben')")
    assert world.read() == [("insert", {"id": 2}, None, BEN)]
    world("CREATE TABLE millwheel.own (id int PRIMARY KEY)", "TRUNCATE millwheel.own, users")
    assert world.read() == [("truncate", None, None, None)]


def test_the_copy_has_the_published_rows_and_columns_alone(world: World) -> None:
    world("INSERT INTO users VALUES (1, 'Ann'), (2, 'Ben'), (3, 'Eve')")
    world("DROP PUBLICATION pub", "CREATE PUBLICATION pub FOR TABLE users (id) WHERE (id > 1)")
    assert world.read() == [("snapshot", {"id": n}, None, {"id": n}) for n in (2, 3)]
    world("INSERT INTO users VALUES (0, 'Zoe'), (4, 'Max')")
    assert world.read() == [("insert", {"id": 4}, None, {"id": 4})]


def test_a_row_of_a_table_that_inherits_is_copied_once(world: World) -> None:
    world("CREATE TABLE admins (PRIMARY KEY (id)) INHERITS (users)")
    world("DROP PUBLICATION pub", "CREATE PUBLICATION pub FOR TABLE users")
    world("INSERT INTO users VALUES (1, 'Ann')", "INSERT INTO admins VALUES (2, 'Ben')")
    assert sorted(key["id"] for _, key, _, _ in world.read()) == [1, 2]
    world("UPDATE users SET name = 'x'")
    assert sorted(key["id"] for _, key, _, _ in world.read()) == [1, 2]


@pytest.mark.parametrize("root", [False, True])
def test_a_table_in_partitions_is_copied_once(world: World, root: bool) -> None:
    world("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    world("CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    world("CREATE TABLE high PARTITION OF parts FOR VALUES FROM (10) TO (20)", "DROP PUBLICATION pub")
    world(f"CREATE PUBLICATION pub FOR TABLE parts WITH (publish_via_partition_root = {root})")
    world("INSERT INTO parts VALUES (1), (11)")
    assert sorted(key["id"] for _, key, _, _ in world.read()) == [1, 11]
    world("INSERT INTO parts VALUES (2), (12)")
    assert [key["id"] for _, key, _, _ in world.read()] == [2, 12]


def test_keys_of_several_columns_are_different_for_different_rows(world: World) -> None:
    world("CREATE TABLE pairs (a text, b text, PRIMARY KEY (a, b))", "ALTER PUBLICATION pub ADD TABLE pairs")
    world("INSERT INTO pairs VALUES ('x|y', 'z'), ('x', 'y|z')")
    world.read()
    assert len({record.key for record in world.out.records}) == 2
