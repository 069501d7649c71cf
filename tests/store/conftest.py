from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from millwheel.store.base import Store
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.memory import MemoryStore
from millwheel.store.open import open_store
from millwheel.store.postgres.postgres_store import PostgresStore

Open = Callable[..., PostgresStore]

# A busy machine is no reason for a property to fail.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(params=["lmdb", "memory", "postgres"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """Makes stores of one kind; all of them are closed behind the test."""
    made: list[Store] = []

    def make(shards: int = 1) -> Store:
        store: Store
        if request.param == "lmdb":
            store = LmdbStore(tmp_path / f"store-{len(made)}", shards=shards)
        elif request.param == "postgres":
            url = request.getfixturevalue("schema_url")
            store = open_store(f"{url}_{len(made)}", shards=shards)
        else:
            store = MemoryStore(shards)
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
