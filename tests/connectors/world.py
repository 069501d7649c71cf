"""Sources that grow while a driver lives and dies, and sinks to read: what a killed pipeline has on Spark."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog

import millwheel as mw
from millwheel.model.lakehouse import below
from millwheel.objects import Objects, open_objects
from tests.connectors.spark_victim import RECORDS, value
from tests.servers.kafka import Broker
from tests.servers.postgres import Cluster
from tests.servers.processes import free_port
from tests.servers.s3 import Server
from tests.servers.topics import receive, send
from tests.sinks import lakes
from tests.spark.counted import set_count

BATCH = 6
"""Records that a source gets at once."""


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


def _rows(folder: Path) -> list[int]:
    table = ds.dataset(folder, partitioning="hive").to_table()
    return [json.loads(text)["n"] for text in table["value"].to_pylist()]


def _put(objects: Objects, batch: list[dict[str, Any]]) -> bool:
    """A new object for each batch; their names ascend."""
    lines = "".join(json.dumps(item) + "\n" for item in batch)
    objects.put(f"{batch[0]['n']:06d}.jsonl", lines.encode())
    return True


def _catalog(folder: Path, name: str, warehouse: str) -> dict[str, str]:
    """A catalog of its own, in a file."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog-{name}.db", "warehouse": warehouse}


class World:
    """Sources that grow, and sinks to read: all that can be had here."""

    def __init__(
        self,
        folder: Path,
        *,
        kafka: Broker | None,
        postgres: Cluster | None,
        s3: Server | None,
        jars: str | None,
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
        self._add_iceberg()
        self._source("table", None)
        count, first = folder / "count", len(self.sources) * RECORDS
        set_count(count, 0)
        self._source("python", lambda batch: set_count(count, batch[-1]["n"] + 1 - first) is None)
        self.sources["python"]["count"] = str(count)
        out = mw.sinks.JsonLines(folder / "jsonlines")
        self._sink("jsonlines", lambda: [record.value["n"] for record in out.records()])
        self._sink("parquet", lambda: _rows(folder / "parquet"))
        self._sink("spark", lambda: _rows(folder / "spark"))
        self._sink("delta", lambda: _numbers(lakes.delta_rows(folder / "delta")))
        self._sink_iceberg("iceberg", folder)
        self.sinks["callback"] = {"folder": str(folder / "calls")}
        if kafka is not None:
            self._add_kafka(kafka, jars)
        if postgres is not None:
            self._add_postgres(postgres)
        if s3 is not None:
            self._add_objects(s3, s3.url("tests", f"kill-{uuid.uuid4().hex}"))

    def _source(self, name: str, give: Callable[[list[dict[str, Any]]], bool] | None) -> None:
        first = len(self.sources) * RECORDS
        self.sources[name] = {"first": first}
        if give is not None:
            self.feeders.append(Feeder(range(first, first + RECORDS), give))

    def _sink(self, name: str, look: Callable[[], list[int]], **config: Any) -> None:
        self.sinks[name] = {"folder": str(self.folder / name), **config}
        self.looks[name] = look

    def _add_iceberg(self) -> None:
        """A table that is there and empty; it grows snapshot by snapshot."""
        catalog = _catalog(self.folder, "growing", f"file://{self.folder}/growing-lake")
        writer = load_catalog("millwheel", **catalog)
        writer.create_namespace("ns")
        table = writer.create_table("ns.table", _table([value(0)]).schema)
        self._source("iceberg", lambda batch: table.append(_table(batch)) is None)
        self.sources["iceberg"]["catalog"] = catalog

    def _sink_iceberg(self, name: str, root: Path, url: str = "", buckets: Path = Path("/")) -> None:
        """In a folder, or on object storage; ``root`` is where its files are."""
        place, _, query = url.partition("?")
        catalog = _catalog(self.folder, name, f"{place}/lake" if url else f"file://{root}/lake")
        catalog |= {f"s3.{key}": item for key, item in parse_qsl(query)}
        look = root / "lake" / "ns" / "table"
        self._sink(name, lambda: _numbers(lakes.iceberg_rows(look, buckets)), catalog=catalog)

    def _add_objects(self, s3: Server, url: str) -> None:
        """Two sources and four sinks on object storage."""
        buckets = s3.folder / "data"
        root = buckets / url.removeprefix("s3://").partition("?")[0]
        for name in ("s3-files", "s3-ordered"):
            objects = open_objects(below(url, name))
            self._source(name, lambda batch, objects=objects: _put(objects, batch))  # type: ignore[misc]
            self.sources[name]["pattern"] = below(url, f"{name}/*.jsonl")
        out = mw.sinks.JsonLines(below(url, "jsonlines"))
        self._sink("s3-jsonlines", lambda: [record.value["n"] for record in out.records()])
        self._sink("s3-parquet", lambda: _rows(root / "parquet"))
        self._sink("s3-delta", lambda: _numbers(lakes.delta_rows(root / "delta")))
        for name in ("jsonlines", "parquet", "delta"):
            self.sinks[f"s3-{name}"]["folder"] = below(url, name)
        self._sink_iceberg("s3-iceberg", root, url, buckets)

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
