"""Passwords and tokens are in no message, no log, no status, and not in the store, for every connector."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from psycopg.conninfo import conninfo_to_dict

import millwheel as mw
from millwheel.model.secrets import percent_encoded, without_secrets
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.open import open_existing
from tests.servers import postgres as server
from tests.servers.postgres import Cluster
from tests.store.driving import run, take

SECRET = "s3cr3t-of-nobody"
SASL = {
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "me",
    "sasl.password": SECRET,
}

NO_SECRET = {"Files", "Generator", "Message", "OrderedFiles", "Records", "SparkStream", "SparkTable"} | {
    "Callback",
    "Collect",
    "JsonLines",
    "Parquet",
}
"""Connectors that are given none: paths, functions and DataFrames."""


def _inject(injector: mw.Injector, tmp_path: Path) -> None:
    p = mw.Pipeline("secrets")
    p.inject("in", injector)
    p.sink("in", mw.sinks.Collect())
    take(p, LmdbStore(tmp_path / "store"))


def _sink(sink: mw.Sink, tmp_path: Path) -> None:
    p = mw.Pipeline("secrets")
    p.inject("in", mw.injectors.Records([mw.Record(value=1, timestamp=1)]))
    p.sink("in", sink)
    run(p, LmdbStore(tmp_path / "store"))


FAILING: dict[str, tuple[Callable[[], Any], Callable[[Any, Path], None]]] = {
    "injectors.Kafka": (
        lambda: mw.injectors.Kafka("127.0.0.1:1", "t", patience=0.3, settings=SASL),
        _inject,
    ),
    "injectors.Kafka with a bad setting": (
        lambda: mw.injectors.Kafka("127.0.0.1:1", "t", settings={**SASL, "sasl.mechanism": SECRET}),
        _inject,
    ),
    "injectors.Delta": (
        lambda: mw.injectors.Delta(
            f"s3://bucket/table?endpoint=http://127.0.0.1:1&region=x&secret={SECRET}", timestamp="t"
        ),
        _inject,
    ),
    "injectors.Iceberg": (
        lambda: mw.injectors.Iceberg(
            {
                "type": "sql",
                "uri": f"sqlite:////nowhere/{SECRET}?password={SECRET}",
                "s3.secret-access-key": SECRET,
            },
            "n.t",
            timestamp="t",
        ),
        _inject,
    ),
    "injectors.Http": (lambda: mw.injectors.Http(1, host="203.0.113.1", token=SECRET), _inject),
    "injectors.PostgresChanges": (
        lambda: mw.injectors.PostgresChanges(f"postgresql://me:{SECRET}@127.0.0.1:1/db", "p"),
        _inject,
    ),
    "injectors.PostgresChanges with a password in its parameters": (
        lambda: mw.injectors.PostgresChanges(f"postgresql://127.0.0.1:1/db?password={SECRET}", "p"),
        _inject,
    ),
    "sinks.Delta": (
        lambda: mw.sinks.Delta(f"s3://bucket/table?endpoint=http://127.0.0.1:1&region=x&secret={SECRET}"),
        _sink,
    ),
    "sinks.Iceberg": (
        lambda: mw.sinks.Iceberg(
            {
                "type": "sql",
                "uri": f"sqlite:////nowhere/{SECRET}?password={SECRET}",
                "s3.secret-access-key": SECRET,
            },
            "n.t",
        ),
        _sink,
    ),
    "sinks.Kafka": (lambda: mw.sinks.Kafka("127.0.0.1:1", "t", patience=0.3, settings=SASL), _sink),
    "sinks.Postgres": (lambda: mw.sinks.Postgres(f"postgresql://me:{SECRET}@127.0.0.1:1/db", "t"), _sink),
    "sinks.Postgres with settings": (
        lambda: mw.sinks.Postgres(f"host=127.0.0.1 port=1 user=me password={SECRET}", "t"),
        _sink,
    ),
    "sinks.Postgres with a URL that is none": (
        lambda: mw.sinks.Postgres(f"postgresql://me:{SECRET}@127.0.0.1:port/db", "t"),
        _sink,
    ),
    "sinks.Postgres with a password in its parameters": (
        lambda: mw.sinks.Postgres(f"postgresql://127.0.0.1:1/db?password={SECRET}&nonsense=1", "t"),
        _sink,
    ),
}


def test_every_connector_is_looked_at() -> None:
    there = {f"injectors.{name}" for name in mw.injectors.__all__ if name not in NO_SECRET}
    there |= {f"sinks.{name}" for name in mw.sinks.__all__ if name not in NO_SECRET}
    assert there == {name.split(" ")[0] for name in FAILING}


@pytest.mark.parametrize("name", FAILING)
def test_no_secret_is_told_when_it_fails(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make, use = FAILING[name]
    caplog.set_level(logging.DEBUG)
    connector = make()
    assert SECRET not in repr(connector)
    with pytest.raises(mw.MillWheelError) as caught:
        use(connector, tmp_path)
    assert SECRET not in str(caught.value)
    assert SECRET not in "".join(map(str, caught.value.args))
    assert caught.value.__cause__ is None or SECRET not in str(caught.value.__cause__)
    assert SECRET not in caplog.text
    _not_in(tmp_path / "store")


def test_no_secret_is_kept_when_it_works(
    postgres: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = postgres.make_database("secrets")
    p = mw.Pipeline("secrets")
    p.inject("in", mw.injectors.Records([mw.Record(value=1, timestamp=1)]))
    p.sink("in", mw.sinks.Postgres(url, "rows"))
    report = run(p, LmdbStore(tmp_path / "store"))
    for text in (str(report), repr(report), caplog.text):
        assert server.PASSWORD not in text
        assert url not in text
    for secret in (server.PASSWORD.encode(), url.encode()):
        assert all(secret not in path.read_bytes() for path in _kept(tmp_path / "store"))


NASTY = [
    *(f"s3cr{mark}3t" for mark in "#?/@:&=+;% '\"\\[]<>|^`~!$*(),é\t"),
    "s3cr#1/2?3@4:5&6=3t",
    "/s3cr3t",
    "s3cr3t/",
    "#s3cr3t#",
    "?s3cr3t",
    "@s3cr3t@",
    "s3cr%2F3t",
    "s3cr%3t",
    "s3cr@other.host:80/3t",
    "12/s3cr3t",
    "s3cr x=1 3t",
]
"""Passwords with everything that has a meaning in a URL or in a connection string."""


def _shows(password: str, text: str) -> bool:
    return any(piece in text for piece in (password, "s3cr", "3t"))


def _in_settings(password: str) -> str:
    quoted_password = password.replace("\\", "\\\\").replace("'", "\\'")
    return f"host=127.0.0.1 port=1 password='{quoted_password}' dbname=db"


WRITTEN: dict[str, Callable[[str], str]] = {
    "as it is": lambda password: f"postgresql://me:{password}@127.0.0.1:1/db",
    "as it is, with a parameter": lambda password: (
        f"postgresql://me:{password}@127.0.0.1:1/db?connect_timeout=1"
    ),
    "percent-encoded": lambda password: f"postgresql://me:{quote(password, safe='')}@127.0.0.1:1/db",
    "as a parameter": lambda password: f"postgresql://127.0.0.1:1/db?user=me&password={password}",
    "as a parameter, percent-encoded": (
        lambda password: f"postgresql://127.0.0.1:1/db?password={quote(password, safe='')}&user=me"
    ),
    "as a setting": _in_settings,
    "as a setting without quotes": lambda password: f"host=127.0.0.1 port=1 password={password}",
}


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("password", NASTY)
def test_no_password_is_shown_whatever_is_in_it(password: str, written: str) -> None:
    url = WRITTEN[written](password)
    assert not _shows(password, without_secrets(url))
    with pytest.raises(mw.MillWheelError) as caught:
        _show_and_open(url)
    assert not _shows(password, str(caught.value))
    assert caught.value.__cause__ is None


def _show_and_open(url: str) -> None:
    sink = mw.sinks.Postgres(url, "t")
    assert repr(without_secrets(url)) in repr(sink)
    sink.open()


@pytest.mark.parametrize("password", NASTY)
def test_no_password_of_a_store_is_shown(password: str) -> None:
    for written in ("as it is", "percent-encoded", "as a parameter"):
        with pytest.raises(mw.StoreError) as caught:
            open_existing(WRITTEN[written](password).replace("/db", "/db?patience=0&", 1).replace("&?", "&"))
        assert not _shows(password, str(caught.value))


@pytest.mark.parametrize("password", NASTY)
def test_a_password_is_read_as_it_was_meant_or_refused(password: str) -> None:
    """As it is, where that can be told from the rest; percent-encoded always."""
    meant = unquote(password) if "%2F" in password else password
    for written in ("as it is", "percent-encoded", "as a setting"):
        try:
            found = conninfo_to_dict(percent_encoded(WRITTEN[written](password)))
        except ValueError:
            assert written == "as it is"
            assert set("@/?#") & set(password)
            continue
        assert found["password"] == (meant if written == "as it is" else password)
        assert (found["host"], found["port"], found["dbname"]) == ("127.0.0.1", "1", "db")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "postgresql://me:s3cret@db/x?sslpassword=abc&user=me",
            "postgresql://me:***@db/x?sslpassword=***&user=me",
        ),
        ("postgresql://db:5432/x?sslmode=require", "postgresql://db:5432/x?sslmode=require"),
        ("postgresql://me@db/x", "postgresql://me@db/x"),
        ("postgresql://me:pw@a:1,b:2/x", "postgresql://me:***@a:1,b:2/x"),
        ("postgresql://me:pw@[::1]:1/x", "postgresql://me:***@[::1]:1/x"),
        ("postgresql:///x?host=/tmp", "postgresql:///x?host=/tmp"),
        ("host=db user=me password = 's3 cret' port=1", "host=db user=me password = *** port=1"),
        ("host=db user=me", "host=db user=me"),
        ("/a/path", "/a/path"),
    ],
)
def test_what_is_no_secret_is_shown(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
    assert without_secrets(percent_encoded(url)) == shown


def test_the_token_of_http_does_not_travel_to_the_tasks() -> None:
    assert SECRET.encode() not in pickle.dumps(mw.injectors.Http(0, token=SECRET))


def _kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _not_in(folder: Path) -> None:
    assert all(SECRET.encode() not in path.read_bytes() for path in _kept(folder))
