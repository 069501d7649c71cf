"""A driver on Spark with every injector and every sink is killed again and again; each record is there once.

All of them share one pipeline and one victim: what a killed driver costs is the start of Spark.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
import urllib.error
import urllib.request
import uuid
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyspark
import pytest
from deltalake import write_deltalake

import millwheel as mw
from tests.connectors.kill_servers import server_or_none
from tests.connectors.spark_victim import RECORDS, value
from tests.crash.victims import Process
from tests.servers.jars import fetched
from tests.servers.kafka import Broker
from tests.servers.postgres import Cluster
from tests.servers.processes import Unavailable, free_port
from tests.servers.topics import receive, send
from tests.sinks import lakes
from tests.spark.counted import set_count
from tests.spark.waiting import eventually

ROOT = Path(__file__).parents[2]
KILLS = 2  # one in each kind of epoch
BATCH = 6  # records that a source gets at once

PATIENCE = 180.0  # seconds for an epoch: on a busy machine Spark takes a minute to start

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


class Feeder:
    """Gives a source its records, a few for each turn, while the driver lives and dies."""

    def __init__(self, numbers: range, give: Callable[[list[dict[str, Any]]], bool]) -> None:
        self._numbers = numbers
        self._give = give
        self._turns = threading.Semaphore(0)
        self._given = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        for start in range(0, len(self._numbers), BATCH):
            self._turns.acquire()
            batch = [value(n) for n in self._numbers[start : start + BATCH]]
            while not self._give(batch):
                pause.wait(0.05)
        self._given.set()

    def turn(self, count: int = 1) -> None:
        self._turns.release(count)

    @property
    def done(self) -> bool:
        return self._given.is_set()


def _post(port: int, batch: list[dict[str, Any]]) -> bool:
    """Whether they were taken; one that was sent and not answered is sent again."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", json.dumps(batch).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _append(path: Path, batch: list[dict[str, Any]]) -> bool:
    with open(path, "a") as file:
        file.writelines(json.dumps(item) + "\n" for item in batch)
    return True


def _table(batch: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(batch)


def _numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [json.loads(row["value"])["n"] for row in rows]


class World:
    """Sources that grow, and sinks to look into: all that can be had here."""

    def __init__(
        self, folder: Path, kafka: Broker | None, postgres: Cluster | None, jars: str | None
    ) -> None:
        self.folder = folder
        self.feeders: list[Feeder] = []
        self.sources: dict[str, Any] = {}
        self.sinks: dict[str, Any] = {}
        self.looks: dict[str, Callable[[], list[int]]] = {}
        (folder / "in").mkdir()
        (folder / "calls").mkdir()
        self._source("files", lambda batch: _append(folder / "in" / "0.jsonl", batch))
        self.sources["files"]["pattern"] = str(folder / "in" / "*.jsonl")
        port = free_port()
        self._source("http", lambda batch: _post(port, batch))
        self.sources["http"]["port"] = port
        growing = folder / "growing"
        self._source("delta", lambda batch: write_deltalake(growing, _table(batch), mode="append") is None)
        self.sources["delta"]["table"] = str(growing)
        self._source("table", None)
        count, first = folder / "count", len(self.sources) * RECORDS
        set_count(count, 0)
        self._source("python", lambda batch: set_count(count, batch[-1]["n"] + 1 - first) is None)
        self.sources["python"]["count"] = str(count)
        out = mw.sinks.JsonLines(folder / "jsonlines")
        self._sink("jsonlines", lambda: [record.value["n"] for record in out.records()])
        self._sink("parquet", lambda: self._rows("parquet"))
        self._sink("spark", lambda: self._rows("spark"))
        self._sink("delta", lambda: _numbers(lakes.delta_rows(folder / "delta")))
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/lake",
        }
        table = folder / "lake" / "ns" / "table"
        self._sink("iceberg", lambda: _numbers(lakes.iceberg_rows(table)), catalog=catalog)
        self.sinks["callback"] = {"folder": str(folder / "calls")}
        if kafka is not None:
            self._add_kafka(kafka, jars)
        if postgres is not None:
            self._add_postgres(postgres)

    def _source(self, name: str, give: Callable[[list[dict[str, Any]]], bool] | None) -> None:
        first = len(self.sources) * RECORDS
        self.sources[name] = {"first": first}
        if give is not None:
            self.feeders.append(Feeder(range(first, first + RECORDS), give))

    def _sink(self, name: str, look: Callable[[], list[int]], **config: Any) -> None:
        self.sinks[name] = {"folder": str(self.folder / name), **config}
        self.looks[name] = look

    def _rows(self, name: str) -> list[int]:
        table = ds.dataset(self.folder / name, partitioning="hive").to_table()
        return [json.loads(text)["n"] for text in table["value"].to_pylist()]

    def _add_kafka(self, kafka: Broker, jars: str | None) -> None:
        place = {"servers": kafka.servers}
        for name in ("kafka", "spark-kafka") if jars is not None else ("kafka",):
            topic = kafka.make_topic(f"{name}-{uuid.uuid4().hex}")
            self._source(name, lambda batch, topic=topic: send(kafka.servers, topic, batch) is None)  # type: ignore[misc]
            self.sources[name] |= {"topic": topic, **place}
        target = kafka.make_topic(f"out-{uuid.uuid4().hex}")
        self._sink(
            "kafka",
            lambda: [json.loads(message.value() or b"")["n"] for message in receive(kafka.servers, target)],
            topic=target,
            **place,
        )

    def _add_postgres(self, postgres: Cluster) -> None:
        url = postgres.make_database(f"kill{uuid.uuid4().hex}")

        def query() -> list[int]:
            with psycopg.connect(url) as connection:
                return [row[0]["n"] for row in connection.execute("SELECT value FROM rows").fetchall()]

        self._sink("postgres", query, url=url)

    @property
    def expected(self) -> dict[int, int]:
        return dict.fromkeys(range(len(self.sources) * RECORDS), 1)

    def turn(self, count: int = 1) -> None:
        for feeder in self.feeders:
            feeder.turn(count)

    def calls(self) -> list[int]:
        """What the callback was told: a call that came twice told the same."""
        told: dict[tuple[int, int], list[int]] = {}
        for path in (self.folder / "calls").glob("*.json"):
            epoch, shard, numbers = json.loads(path.read_text())
            assert told.setdefault((epoch, shard), numbers) == numbers
        return [n for numbers in told.values() for n in numbers]


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
    world = World(tmp_path, server_or_none(request, "kafka"), server_or_none(request, "postgres"), jars)
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
