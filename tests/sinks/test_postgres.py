"""Rows and the epoch's marker are one transaction: each record is in the table once, whatever fails."""

from __future__ import annotations

import datetime
import signal
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import millwheel as mw
from millwheel.sinks import postgres as module
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.servers.postgres import Cluster
from tests.store.driving import run

Postgres = mw.sinks.Postgres
Query = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def url(postgres: Cluster, request: pytest.FixtureRequest) -> str:
    """A database of the test's own."""
    return postgres.make_database(f"t{abs(hash(request.node.nodeid))}")


@pytest.fixture
def query(url: str) -> Query:
    """Asks the database, on a connection of its own."""

    def ask(text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url) as connection:
            cursor = connection.execute(text)
            return cursor.fetchall() if cursor.description else []

    return ask


def _record(value: Any, *, time: int = 5, key: str = "k") -> mw.Record:
    return mw.Record(value=value, timestamp=time, key=key)


def _begun(sink: mw.sinks.Postgres, origin: str = "a store") -> mw.sinks.Postgres:
    sink.open()
    sink.begin(origin, 0)
    return sink


def test_a_table_is_made_where_there_is_none(url: str, query: Query) -> None:
    sink = _begun(Postgres(url, "made"))
    sink.write(1, 0, [_record({"a": [1, None]}, time=mw.SECOND), _record(b"\xff", time=mw.MAX_TIME)])
    rows = query("SELECT key, timestamp::text, value FROM made ORDER BY timestamp")
    assert rows[0] == ("k", "1970-01-01 00:00:01+00", {"a": [1, None]})
    assert rows[1] == ("k", "infinity", "\\xff")
    _begun(Postgres(url, "made"))


def test_columns_are_fields_of_the_value(url: str, query: Query) -> None:
    query('CREATE TABLE "Odd name" (n bigint, "with space" text, timestamp bigint, extra jsonb, more text)')
    sink = _begun(Postgres(url, "Odd name", columns=["n", "with space", "timestamp", "extra"]))
    sink.write(1, 0, [_record({"n": 1, "with space": "a\tb\\", "extra": {"x": 1}, "ignored": 2}, time=-7)])
    assert query('SELECT * FROM "Odd name"') == [(1, "a\tb\\", -7, {"x": 1}, None)]


@pytest.mark.parametrize("text", ["\x00", "\ud800", "a\x00b\udfff", "\\.", "\\N", "\n"], ids=ascii)
def test_text_that_postgresql_cannot_hold_is_held_as_far_as_it_can(url: str, query: Query, text: str) -> None:
    sink = _begun(Postgres(url, "texts"))
    sink.write(1, 0, [_record({text: text}, key=text)])
    plain = text.replace("\x00", "\ufffd").replace("\ud800", "\ufffd").replace("\udfff", "\ufffd")
    assert query("SELECT key, value FROM texts") == [(plain, {plain: plain})]


def test_an_epoch_that_is_written_again_changes_nothing(url: str, query: Query) -> None:
    sink = _begun(Postgres(url, "again"))
    for _ in range(3):
        sink.write(1, 0, [_record("a"), _record("b")])
        sink.write(1, 1, [_record("c")])
    sink.write(2, 0, [_record("d")])
    sink.write(1, 0, [_record("a"), _record("b")])  # a straggler
    assert query("SELECT value FROM again ORDER BY value") == [("a",), ("b",), ("c",), ("d",)]


def test_a_new_store_counts_its_epochs_from_one_again(url: str, query: Query) -> None:
    _begun(Postgres(url, "stores")).write(1, 0, [_record("a")])
    _begun(Postgres(url, "stores"), "another store").write(1, 0, [_record("b")])
    assert query("SELECT value FROM stores ORDER BY value") == [("a",), ("b",)]


def test_upserts_keep_the_newest_row(url: str, query: Query) -> None:
    sink = _begun(Postgres(url, "newest", upsert_on="key"))
    sink.write(1, 0, [_record(1, key="a"), _record(2, key="b"), _record(3, key="a")])
    sink.write(2, 0, [_record(4, key="b")])
    sink.write(1, 0, [_record(1, key="a")])
    assert query("SELECT key, value FROM newest ORDER BY key") == [("a", 3), ("b", 4)]


def test_upserts_on_all_columns_keep_one_row_of_each(url: str, query: Query) -> None:
    query("CREATE TABLE seen (a int, b int, UNIQUE (a, b))")
    sink = _begun(Postgres(url, "seen", columns=["a", "b"], upsert_on=["a", "b"]))
    sink.write(1, 0, [_record({"a": 1, "b": 2})] * 2)
    sink.write(2, 0, [_record({"a": 1, "b": 2})])
    assert query("SELECT * FROM seen") == [(1, 2)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "absent", "columns": ["key"]}, "there is no table 'absent'"),
        ({"table": "there", "columns": ["key", "total"]}, "'there' has no column total; it has key"),
    ],
    ids=["no table", "no column"],
)
def test_a_table_that_does_not_fit_is_named_before_anything_runs(
    url: str, query: Query, options: Any, message: str
) -> None:
    query("CREATE TABLE there (key text)")
    with pytest.raises(mw.MillWheelError, match=message):
        Postgres(url, **options).open()


def test_a_value_without_the_field_is_an_error_and_nothing_of_its_batch_is_there(
    url: str, query: Query
) -> None:
    query("CREATE TABLE fields (n bigint)")
    sink = _begun(Postgres(url, "fields", columns=["n"]))
    with pytest.raises(mw.MillWheelError, match="no field for a column of 'fields'"):
        sink.write(1, 0, [_record({"n": 1}), _record({"m": 2})])
    with pytest.raises(mw.MillWheelError, match="invalid input syntax"):
        sink.write(1, 0, [_record({"n": 1}), _record({"n": "many"})])
    sink.write(1, 0, [_record({"n": 1})])
    assert query("SELECT n FROM fields") == [(1,)]


def test_a_transaction_that_is_committed_though_the_answer_is_lost_is_not_repeated(
    url: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = _begun(Postgres(url, "answers"))
    real = psycopg.Transaction.__exit__
    lost = []

    def lose(self: Any, *arguments: Any) -> Any:
        result = real(self, *arguments)
        if not lost:
            lost.append(True)
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return result

    monkeypatch.setattr(psycopg.Transaction, "__exit__", lose)
    sink.write(1, 0, [_record("a")])
    assert lost
    assert query("SELECT value FROM answers") == [("a",)]


def test_a_server_that_crashes_and_comes_back_has_each_row_once(
    postgres: Cluster, url: str, query: Query
) -> None:
    p = mw.Pipeline("crash")
    p.inject("in", mw.injectors.Records([_record(i, time=i) for i in range(200)], per_epoch=5))
    p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
    p.sink("out", Postgres(url, "rows"))
    restarted = threading.Event()

    def restart() -> None:
        for _ in range(2):
            postgres.stop(signal.SIGQUIT)
            postgres.start()
        restarted.set()

    class Restarting(mw.Sink):
        def write(self, epoch: int, shard: int, records: Any) -> None:
            if epoch == 5 and not restarted.is_set():
                threading.Thread(target=restart).start()

    p.sink("out", Restarting())
    run(p, MemoryStore())
    restarted.wait()
    assert query("SELECT value::int FROM rows ORDER BY 1") == [(i,) for i in range(200)]


def test_a_server_that_stays_away_is_an_error_that_says_where(url: str) -> None:
    sink = Postgres(url.replace("@127.0.0.1", "@127.0.0.1:1").replace(":1:", ":1/x?"), "t", patience=0.1)
    with pytest.raises(mw.MillWheelError, match="Postgres"):
        sink.open()


def test_each_process_connects_once(url: str) -> None:
    sink = _begun(Postgres(url, "once"))
    first = module.connections[url]
    for epoch in range(1, 4):
        sink.write(epoch, 0, [_record(epoch)])
    assert module.connections[url] is first


def test_upsert_on_names_columns(url: str) -> None:
    with pytest.raises(mw.MillWheelError, match="upsert_on names total"):
        Postgres(url, "t", upsert_on=["total"])


def test_moments_that_no_calendar_has_are_infinite() -> None:
    assert module.to_moment(mw.MIN_TIME + 1) == "-infinity"
    assert module.to_moment(0) == datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
