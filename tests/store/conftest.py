from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from millwheel.store.base import Store
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.memory import MemoryStore
from millwheel.store.objects.object_store import ObjectStore
from millwheel.store.open import open_store
from millwheel.store.postgres.postgres_store import PostgresStore
from tests.store.gaps import full_of_gaps

Open = Callable[..., PostgresStore]
Host = Callable[..., ObjectStore]

# A busy machine is no reason for a property to fail.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(params=["lmdb", "memory", "postgres", "folder", "gaps", "s3"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """Makes stores of one kind; all of them are closed behind the test."""
    made: list[Store] = []

    def make(shards: int = 1, tablets: int = 64) -> Store:
        store: Store
        if request.param == "lmdb":
            store = LmdbStore(tmp_path / f"store-{len(made)}", shards=shards, tablets=tablets)
        elif request.param == "postgres":
            url = request.getfixturevalue("schema_url")
            store = open_store(f"{url}_{len(made)}", shards=shards, tablets=tablets)
        elif request.param == "folder":
            store = open_store(f"file://{tmp_path}/objects-{len(made)}", shards=shards, tablets=tablets)
        elif request.param == "gaps":
            url = f"file://{tmp_path}/objects-{len(made)}"
            store = full_of_gaps(open_store(url, shards=shards, tablets=tablets))
        elif request.param == "s3":
            prefix, _, query = request.getfixturevalue("s3_url").partition("?")
            store = open_store(f"{prefix}-{len(made)}?{query}", shards=shards, tablets=tablets)
        else:
            store = MemoryStore(shards, tablets)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store: Callable[..., Store]) -> Store:
    return make_store()


@pytest.fixture
def open_it(schema_url: str) -> Iterator[Open]:
    """Opens handles of one store, as processes would; all are closed behind the test."""
    opened: list[PostgresStore] = []

    def open_one(url: str = schema_url, **options: int) -> PostgresStore:
        opened.append(PostgresStore(url, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Opens one store on object storage as hosts of their own, whose working copies are in other folders."""
    opened: list[ObjectStore] = []

    def open_it(name: str, **options: int) -> ObjectStore:
        monkeypatch.setenv("MILLWHEEL_COPIES", str(tmp_path / f"copies-{name}"))
        opened.append(ObjectStore(f"file://{tmp_path}/objects?patience=1", **options))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()
