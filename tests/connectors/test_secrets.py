"""Passwords and tokens are in no message, no log, no status, and not in the store, for every connector."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.store.lmdb import LmdbStore
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

NO_SECRET = {"Files", "Generator", "Message", "Records", "SparkStream", "SparkTable"} | {
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
    "injectors.Http": (lambda: mw.injectors.Http(1, host="203.0.113.1", token=SECRET), _inject),
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


def test_the_token_of_http_does_not_travel_to_the_tasks() -> None:
    assert SECRET.encode() not in pickle.dumps(mw.injectors.Http(0, token=SECRET))


def _kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _not_in(folder: Path) -> None:
    assert all(SECRET.encode() not in path.read_bytes() for path in _kept(folder))
