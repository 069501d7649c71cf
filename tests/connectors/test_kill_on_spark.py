"""A driver on Spark with every injector and every sink is killed again and again; each record is there once.

All of them share one pipeline and one victim: what a killed driver costs is the start of Spark.
"""

from __future__ import annotations

import json
import os
import random
import time
import warnings
from collections import Counter
from pathlib import Path

import pyspark
import pytest

from tests.connectors.kill_servers import server_or_none
from tests.connectors.spark_victim import RECORDS
from tests.connectors.world import World
from tests.crash.victims import Process
from tests.servers.jars import fetched
from tests.servers.processes import Unavailable
from tests.spark.waiting import eventually

ROOT = Path(__file__).parents[2]
KILLS = 2  # one in each kind of epoch

PATIENCE = 180.0  # seconds for an epoch: on a busy machine Spark takes a minute to start

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


def _spark_kafka() -> str | None:
    """The jars of Spark's own source for Kafka, or None."""
    version = pyspark.__version__
    try:
        folder = fetched(f"spark-kafka-{version}", "org.apache.spark", "spark-sql-kafka-0-10_2.13", version)
    except Unavailable as reason:
        warnings.warn(f"left out: {reason}", stacklevel=2)
        return None
    return ",".join(str(path) for path in sorted(folder.glob("*.jar")))


def test_each_record_of_every_injector_is_once_in_every_sink(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    jars = _spark_kafka()
    names = ("kafka", "postgres", "s3")
    world = World(tmp_path, jars=jars, **{name: server_or_none(request, name) for name in names})
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if jars:
        environment["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
    rng = random.Random(5)
    kills = restarts = 0
    ended = False
    while not ended:
        options = {"compact_below": (0, 4_000)[kills % 2], "progress": False}
        config = {"folder": str(tmp_path), "store": str(tmp_path / "store"), "options": options}
        config |= {"sources": world.sources, "sinks": world.sinks}
        driver = Process(
            ["-m", "tests.connectors.spark_victim", json.dumps(config)], cwd=ROOT, env=environment
        )
        try:
            if kills < KILLS:
                _await_epochs(driver, rng.randrange(2, 6), world)
                time.sleep(rng.random() * 0.2)  # somewhere in an epoch
                driver.kill()
                kills += 1
                continue
            world.turn(RECORDS)
            _await_end(driver, world)
            assert driver.process.stdin is not None
            driver.process.stdin.close()
            assert driver.ended(PATIENCE)
            assert driver.process.returncode == 0, "".join(driver.errors)
            ended = True
        except Overloaded:
            restarts += 1
            assert restarts < 4, "".join(driver.errors)
        finally:
            if driver.process.poll() is None:
                driver.kill()
    for name, look in world.looks.items():
        assert Counter(look()) == world.expected, name
    assert Counter(world.calls()) == world.expected


class Overloaded(Exception):
    """Spark gives a data source in Python ten seconds to start: the pipeline stops, and is started again."""


def _look_alive(driver: Process) -> None:
    if driver.process.poll() is not None:
        driver.ended(PATIENCE)
        errors = "".join(driver.errors)
        if "Python worker failed to connect back" in errors:
            raise Overloaded
        raise AssertionError(errors)


def _await_epochs(driver: Process, epochs: int, world: World) -> None:
    """Waits for so many epochs; the sources get something for each."""
    for number in range(epochs):

        def came(number: int = number) -> bool:
            _look_alive(driver)
            return sum(line.startswith("epoch") for line in driver.output) > number

        world.turn()
        eventually(came, PATIENCE)


def _await_end(driver: Process, world: World) -> None:
    """Waits until all that was given is in a sink."""

    def came() -> bool:
        _look_alive(driver)
        given = all(feeder.done for feeder in world.feeders)
        return given and len(world.looks["jsonlines"]()) >= len(world.expected)

    eventually(came, PATIENCE)
