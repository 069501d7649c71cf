"""Side tables in files, lakehouse tables and PostgreSQL, and what each says when it cannot be read."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

import millwheel as mw
from millwheel.objects import open_objects
from tests.servers.postgres import Cluster
from tests.servers.s3 import Server

ANN = pa.table({"id": [1], "name": ["Ann"], "since": [datetime.date(2020, 1, 2)]})
BOTH = pa.table({"id": [1, 2], "name": ["Ann", "Ben"], "since": [datetime.date(2020, 1, 2)] * 2})


def _seen(table: Any, change: Any) -> list[Any]:
    """The rows of users 1 and 2 before a change of the table, and after it."""
    p = mw.Pipeline("enriched")
    p.inject("in", mw.injectors.Records([])).lookup(table, on="id", refresh=10, into="user").named("out")
    h = mw.testing.Harness(p)
    for id in (1, 2):
        h.send("in", {"id": id}, timestamp=1)
    change()
    h.advance_wall(10)
    h.send("in", {"id": 2}, timestamp=1)
    return [record.value["user"] for record in h.output("out")]


SEEN = [
    {"name": "Ann", "since": "2020-01-02"},
    None,
    {"name": "Ben", "since": "2020-01-02"},
]


def test_a_parquet_file(tmp_path: Path) -> None:
    pq.write_table(ANN, tmp_path / "users.parquet")
    table = mw.lookups.Parquet(tmp_path / "users.parquet")
    assert _seen(table, lambda: pq.write_table(BOTH, tmp_path / "users.parquet")) == SEEN


def test_a_folder_of_parquet_files_and_some_of_their_columns(tmp_path: Path) -> None:
    pq.write_table(ANN, tmp_path / "a.parquet")
    table = mw.lookups.Parquet(tmp_path, columns=["id", "name"])
    found = _seen(table, lambda: pq.write_table(BOTH.slice(1), tmp_path / "b.parquet"))
    assert found == [{"name": "Ann"}, None, {"name": "Ben"}]


def test_files_that_have_not_changed_are_not_read_again(tmp_path: Path) -> None:
    pq.write_table(ANN, tmp_path / "a.parquet")
    table = mw.lookups.Parquet(tmp_path)
    assert table.token() == table.token()
    before = table.token()
    pq.write_table(BOTH, tmp_path / "a.parquet")
    assert table.token() != before


def test_parquet_on_object_storage(s3: Server, s3_url: str, tmp_path: Path) -> None:
    def put(table: pa.Table) -> None:
        pq.write_table(table, tmp_path / "one.parquet")
        open_objects(s3_url).put("users/one.parquet", (tmp_path / "one.parquet").read_bytes())

    put(ANN)
    path, _, query = s3_url.partition("?")
    assert _seen(mw.lookups.Parquet(f"{path}/users?{query}"), lambda: put(BOTH)) == SEEN
    assert len(list(mw.lookups.Parquet(f"{path}/users/one.parquet?{query}").read().rows)) == 2


def test_a_delta_table(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "users", ANN)
    table = mw.lookups.Delta(tmp_path / "users")
    assert _seen(table, lambda: write_deltalake(tmp_path / "users", BOTH, mode="overwrite")) == SEEN
    assert table.token() == 1


def test_an_iceberg_table(tmp_path: Path) -> None:
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
    catalog = SqlCatalog("tests", **properties)
    catalog.create_namespace("ns")
    users = catalog.create_table("ns.users", schema=ANN.schema)
    users.append(ANN)
    table = mw.lookups.Iceberg({"name": "tests", "type": "sql", **properties}, "ns.users")
    assert _seen(table, lambda: users.append(BOTH.slice(1))) == SEEN
    with pytest.raises(mw.InputError, match=r"ns\.gone"):
        mw.lookups.Iceberg({"type": "sql", **properties}, "ns.gone").read()


@pytest.fixture
def users(postgres: Cluster, request: pytest.FixtureRequest) -> str:
    url = postgres.make_database(f"lookup_{abs(hash(request.node.name))}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text, since date)")
        connection.execute("INSERT INTO users VALUES (1, 'Ann', '2020-01-02')")
    return url


def test_a_table_of_postgresql(users: str) -> None:
    def change() -> None:
        with psycopg.connect(users, autocommit=True) as connection:
            connection.execute("INSERT INTO users VALUES (2, 'Ben', '2020-01-02')")

    assert _seen(mw.lookups.Postgres(users, "users"), change) == SEEN


def test_a_query_of_postgresql_that_gives_no_row_still_has_columns(users: str) -> None:
    table = mw.lookups.Postgres(users, query="SELECT id, name FROM users WHERE id > 100")
    assert table.read() == (["id", "name"], [])
    p = mw.Pipeline("enriched")
    p.inject("in", mw.injectors.Records([])).lookup(table, on="id").named("out")
    h = mw.testing.Harness(p)
    h.send("in", {"id": 1}, timestamp=1)
    assert [record.value for record in h.output("out")] == [{"id": 1, "name": None}]


def test_a_database_that_refuses_says_so_without_the_password(users: str) -> None:
    with pytest.raises(mw.InputError, match='relation "gone" does not exist'):
        mw.lookups.Postgres(users, "gone").read()
    with pytest.raises(mw.InputError, match="write a SELECT"):
        mw.lookups.Postgres(users, query="SET statement_timeout = 1").read()
    wrong = "postgresql://me:hidden@127.0.0.1:1/x"
    with pytest.raises(mw.InputError) as found:
        mw.lookups.Postgres(wrong, "users").read()
    assert "hidden" not in str(found.value) + repr(mw.lookups.Postgres(wrong, "users"))


def test_a_table_or_a_query_and_not_both() -> None:
    with pytest.raises(mw.MillWheelError, match="one of the two"):
        mw.lookups.Postgres("postgresql://db/x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: mw.lookups.Parquet(folder / "none"), "there is no file: check the path"),
        (lambda folder: mw.lookups.Parquet(folder / "bad.parquet"), r"cannot be read .*bad\.parquet|magic"),
        (lambda folder: mw.lookups.Parquet(folder / "good.parquet", columns=["nome"]), "no column 'nome'"),
        (lambda folder: mw.lookups.Delta(folder), "there is no Delta table"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, make: Any, message: str) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"not Parquet at all")
    pq.write_table(ANN, tmp_path / "good.parquet")
    p = mw.Pipeline("enriched")
    p.inject("in", mw.injectors.Records([])).lookup(make(tmp_path), on="id").named("out")
    h = mw.testing.Harness(p)
    with pytest.raises(mw.InputError, match=message):
        h.send("in", {"id": 1}, timestamp=1)
