"""What tests share: the harness under several orders and layouts, and one Spark session for all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from millwheel.store.base import Store
from millwheel.store.open import open_store
from tests.servers.kafka import Broker, broker
from tests.servers.postgres import Cluster, cluster
from tests.servers.processes import Unavailable
from tests.servers.s3 import ENVIRONMENT, Server, server
from tests.store.driving import packing_much
from tests.store.undoing import Undoing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeHarness = Callable[[mw.Pipeline], mw.testing.Harness]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: a process that gets one last runs on while the others are done."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(
    params=[(0, 1, "memory", None), (1, 1, "memory", 3), (2, 3, "memory", 1), (3, 3, "postgres", None)],
    ids=lambda p: f"seed{p[0]}-slots{p[1]}-{p[2]}",
)
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MakeHarness:
    """Makes a harness; the test runs under several seeds, layouts and stores, which must not matter.

    Nor must it matter how many records are many, which are sent by tablet, and how often a key must come for
    its records to be sent together.
    """
    seed, slots, store, many = request.param
    if many is not None:
        monkeypatch.setattr("millwheel.worker.route.MANY", many)
        monkeypatch.setattr("millwheel.worker.route.OFTEN", 1 if many > 1 else 8)
    if store == "postgres":
        stores = iter(request.getfixturevalue("emptied_stores"))
        monkeypatch.setattr("millwheel.testing.harness.MemoryStore", lambda shards: Undoing(next(stores)))
    return lambda pipeline: mw.testing.Harness(pipeline, seed=seed, slots=slots)


class _Stores:
    """Stores in PostgreSQL that tests use one after the other: to make one takes longer than to empty it."""

    def __init__(self, database: str) -> None:
        self._database = database
        self.made: list[Store] = []

    def __iter__(self) -> Iterator[Store]:
        for number in itertools.count():
            if number == len(self.made):
                made = open_store(f"{self._database}?schema=harness_{number}", shards=4)
                self.made.append(packing_much(made))
            yield self.made[number]


@pytest.fixture(scope="session")
def emptied_stores(database: str) -> Iterator[_Stores]:
    """As many as a test wants, each of four shards."""
    stores = _Stores(database)
    yield stores
    for store in stores.made:
        store.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """One PostgreSQL for all tests that need one; each makes a database of its own."""
    try:
        with cluster() as found:
            yield found
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def database(postgres: Cluster) -> str:
    """The URL of a database for stores."""
    return postgres.make_database("stores")


_schemas = itertools.count()


@pytest.fixture
def schema_url(database: str) -> str:
    """The URL of a store in PostgreSQL that is not there yet."""
    return f"{database}?schema=store_{next(_schemas)}"


@pytest.fixture(params=["lmdb", "postgres", "s3"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store is to be: a path, and a URL."""
    if request.param == "lmdb":
        return str(tmp_path / "store")
    return str(request.getfixturevalue("schema_url" if request.param == "postgres" else "s3_url"))


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """One Kafka broker for all tests that need one; each makes topics of its own."""
    try:
        with broker() as found:
            yield found
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    """One S3 server for all tests that need one; its credentials are in the environment of all tests."""
    try:
        with server() as found:
            found.make_bucket("tests")
            yield found
    except Unavailable as reason:
        pytest.skip(str(reason))


_prefixes = itertools.count()


@pytest.fixture
def s3_url(s3: Server) -> str:
    """The URL of a prefix in object storage that nobody has written to."""
    return s3.url("tests", f"prefix-{next(_prefixes)}")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark for all tests that need one."""
    from millwheel.spark.session import local_session

    session = local_session()
    yield session
    session.stop()


@pytest.fixture(autouse=True, scope="session")
def object_storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Credentials are those of the server of the tests, also for Spark; working copies are in a folder of
    this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLWHEEL_COPIES", str(tmp_path_factory.mktemp("copies")))
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield
