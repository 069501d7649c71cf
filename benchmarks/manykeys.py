"""State of many keys in PostgreSQL: does an epoch that touches 1,000 of them cost more than with few keys?

The rows are loaded straight into the tables, by COPY. Both stores take turns, and on each an epoch on Spark,
as a user has them, and one in this process alone, without what Spark adds to every epoch, whatever is in it.

All pages are in the server's memory. A checkpoint of the server makes the first change of each page dear
afterwards, as the whole page goes to its log (full_page_writes): no checkpoint falls into the epochs that are
compared, and what those right behind one cost is told beside.
"""

from __future__ import annotations

import random
import statistics
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import results
from benchmarks.pipelines.distinct import Counter as CountsRecords
from benchmarks.server import postgres
from benchmarks.session import session
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.codec import pack
from millwheel.model.graph import build
from millwheel.model.time import MAX_TIME
from millwheel.spark.job_executor import SparkExecutor
from millwheel.store.keyspace import counters_key, row_prefix, row_suffix
from millwheel.store.postgres.postgres_store import PostgresStore
from millwheel.store.row import encode_row
from millwheel.worker.step import Worker

_MANY = 20_000_000
_FEW = 20_000
_TOUCHED = 1_000
_WARM_UP = 5
_ROUNDS = 60
_TURNS = _WARM_UP + _ROUNDS + 10  # the last ones behind a checkpoint of the server
_TARGET = 1.5
_SHARDS = 2


def run(*, quick: bool = False, keys: int | None = None) -> dict[str, Any]:
    """Loads both stores, runs the epochs, prints and writes the figures."""
    many = keys or (200_000 if quick else _MANY)
    with results.scratch("manykeys") as work, session(work) as spark, postgres(buffers="4GB") as server:
        began = time.perf_counter()
        stores = {number: _Loaded(server.url(), number, spark) for number in (_FEW, many)}
        print(f"loaded in {time.perf_counter() - began:,.0f} s", flush=True)
        milliseconds: dict[int, list[float]] = {number: [] for number in stores}
        alone: dict[int, list[float]] = {number: [] for number in stores}
        behind: dict[int, list[float]] = {number: [] for number in stores}
        for turn in range(_TURNS):
            if turn == _WARM_UP + _ROUNDS:
                server.run("CHECKPOINT")
            for number, store in stores.items():
                spent, without = store.epoch(on_spark=True), store.epoch(on_spark=False)
                if turn >= _WARM_UP + _ROUNDS:
                    behind[number].append(spent)
                elif turn >= _WARM_UP:
                    milliseconds[number].append(spent)
                    alone[number].append(without)
        sizes = {number: store.store.size() for number, store in stores.items()}
        trips = {number: store.trips for number, store in stores.items()}
        for store in stores.values():
            store.close()
    medians = {number: statistics.median(found) for number, found in milliseconds.items()}
    ratio = medians[many] / medians[_FEW]
    after = {number: statistics.median(found) for number, found in behind.items()}
    bare = {number: statistics.median(found) for number, found in alone.items()}
    result = {
        "quick": quick,
        "keys": list(medians),
        "milliseconds": {str(number): round(found, 2) for number, found in medians.items()},
        "without_spark": {str(number): round(found, 2) for number, found in bare.items()},
        "ratio_without_spark": bare[many] / bare[_FEW],
        "behind_a_checkpoint": {str(number): round(found, 2) for number, found in after.items()},
        "bytes": {str(number): size for number, size in sizes.items()},
        "round_trips": {str(number): found for number, found in trips.items()},
        "ratio": ratio,
        "target": _TARGET,
        "passed": bare[many] / bare[_FEW] <= _TARGET,
    }
    results.save(results.name("manykeys", quick=quick), result)
    rows = [
        [number, medians[number], after[number], bare[number], trips[number], round(sizes[number] / 1e6)]
        for number in sorted(medians)
    ]
    head = ["keys", "ms an epoch", "behind a checkpoint", "without Spark", "round trips", "MB"]
    print(results.table(head, rows))
    strict = bare[many] / bare[_FEW]
    judged = "not judged" if quick else results.verdict(strict <= _TARGET)
    print(f"on Spark an epoch that touches {_TOUCHED:,} keys takes {ratio:.2f} times as long")
    print(f"{judged}  without Spark {strict:.2f} times, target {_TARGET}")
    return result


class _Loaded:
    """A store with so many rows, and a pipeline that touches some of them in each epoch."""

    def __init__(self, url: str, keys: int, spark: SparkSession) -> None:
        self._keys = keys
        self._random = random.Random(keys)
        self._injector = mw.injectors.Records(self._records(), per_epoch=_TOUCHED)
        p = mw.Pipeline("many keys")
        p.inject("in", self._injector)
        p.add(CountsRecords(), inputs={"in": mw.by_key})
        graph = build(p)
        self.store = PostgresStore(f"{url}?schema=keys_{keys}", shards=_SHARDS)
        self._driver = Driver(graph, self.store, Options(slots=_SHARDS), clock=lambda: 0, owner="a benchmark")
        numbers = self._driver.numbers
        self._here = LocalExecutor(Worker(graph, numbers, self.store))
        self._on_spark = SparkExecutor(spark.sparkContext, graph, numbers, self.store)
        self.trips = 0
        _load(url, f"keys_{keys}", self._driver.numbers["Counter"], keys, self.store)

    def _records(self) -> list[mw.Record]:
        drawn = (self._random.randrange(self._keys) for _ in range(2 * _TOUCHED * _TURNS))
        return [mw.Record(key=f"user-{number}", value=0, timestamp=1) for number in drawn]

    def epoch(self, *, on_spark: bool) -> float:
        """The milliseconds of one epoch."""
        plan = self._driver.next_plan()
        assert plan is not None
        before = self.store.traffic.waits
        started = time.perf_counter()
        self._driver.run(plan, self._on_spark if on_spark else self._here)
        spent = (time.perf_counter() - started) * 1e3
        if not on_spark:
            self.trips = self.store.traffic.waits - before
        return spent

    def close(self) -> None:
        self._driver.close()


def _load(url: str, schema: str, computation: int, keys: int, store: PostgresStore) -> None:
    """Writes rows as the engine would have, and the counters of the tablets that go with them."""
    prefix = row_prefix(computation)
    value = encode_row(pack({"count": 1, "last": 1}), {}, {}, {}, None)
    rows: Counter[int] = Counter()
    tables = [f"{schema}.shard_{shard:02d}" for shard in range(_SHARDS)]
    with ExitStack() as stack:
        opened = [stack.enter_context(psycopg.connect(url, autocommit=True)) for _ in tables]
        for connection, table in zip(opened, tables, strict=True):
            connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table[-8:]}_key".encode())
        with ExitStack() as copying:
            copies = [
                copying.enter_context(
                    connection.cursor().copy(f"COPY {table} (key, value) FROM STDIN (FORMAT BINARY)".encode())
                )
                for connection, table in zip(opened, tables, strict=True)
            ]
            for copy in copies:
                copy.write(b"PGCOPY\n\xff\r\n\x00" + bytes(8))
            for shard, piece in _pieces(keys, prefix, value, rows):
                copies[shard].write(piece)
            for copy in copies:
                copy.write(b"\xff\xff")
        for connection, table in zip(opened, tables, strict=True):
            connection.execute("SET maintenance_work_mem = '1GB'")
            connection.execute(
                f"ALTER TABLE {table} ADD CONSTRAINT {table[-8:]}_key PRIMARY KEY (key) "
                "WITH (fillfactor = 80)".encode()
            )
            connection.execute(f"VACUUM ANALYZE {table}".encode())
        opened[0].execute("CREATE EXTENSION IF NOT EXISTS pg_prewarm")
        for table in tables:
            opened[0].execute(f"SELECT pg_prewarm('{table}'), pg_prewarm('{table}_key')".encode())
    for shard, found in enumerate(store.shards):
        found.write(
            [
                (
                    counters_key(computation, tablet),
                    pack([rows[tablet], rows[tablet] * len(value), 0, 0, 0, *[MAX_TIME] * 3]),
                )
                for tablet in range(shard * 64 // _SHARDS, (shard + 1) * 64 // _SHARDS)
            ]
        )


def _pieces(keys: int, prefix: bytes, value: bytes, rows: Counter[int]) -> Iterator[tuple[int, bytes]]:
    """By shard: the binary form of COPY, some thousand rows at a time."""
    tail = struct.pack(">i", len(value)) + value
    fields = struct.pack(">h", 2)
    parts: list[list[bytes]] = [[] for _ in range(_SHARDS)]
    for number in range(keys):
        suffix = row_suffix(f"user-{number}")
        tablet = suffix[0] >> 2
        rows[tablet] += 1
        key = prefix + suffix
        shard = tablet * _SHARDS // 64
        mine = parts[shard]
        mine += (fields, struct.pack(">i", len(key)), key, tail)
        if len(mine) > 40_000:
            yield shard, b"".join(mine)
            mine.clear()
    for shard, mine in enumerate(parts):
        yield shard, b"".join(mine)
