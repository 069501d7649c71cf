"""What tests share: the harness under several orders and layouts, and one Spark session for all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from tests.servers.kafka import Broker, broker
from tests.servers.postgres import Cluster, cluster
from tests.servers.processes import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeHarness = Callable[[mw.Pipeline], mw.testing.Harness]


@pytest.fixture(params=[(0, 1), (1, 1), (2, 3)], ids=lambda p: f"seed{p[0]}-slots{p[1]}")
def harness(request: pytest.FixtureRequest) -> MakeHarness:
    """Makes a harness; the test runs under several seeds and layouts, which must not matter."""
    seed, slots = request.param
    return lambda pipeline: mw.testing.Harness(pipeline, seed=seed, slots=slots)


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


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """One Kafka broker for all tests that need one; each makes topics of its own."""
    try:
        with broker() as found:
            yield found
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark for all tests that need one."""
    from millwheel.spark.session import local_session

    session = local_session()
    yield session
    session.stop()
