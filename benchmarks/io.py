"""Reading: each injector against the plain reader of the same input that does nothing else.

Of files and tables both sides run on Spark with all cores: millwheel's ranges in tasks, as an epoch reads
them, with no routing behind, and Spark's own reader into its ``noop`` sink. That of Kafka is a consumer.
Besides, what 10,000 files and one file of 2 GB cost when a pipeline starts.
"""

from __future__ import annotations

import csv
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import results
from benchmarks.reading import PIECE, records_in_tasks
from benchmarks.session import session

_RECORDS = 500_000
_FILES = 4
_ROUNDS = 2
_SMALL_FILES = 10_000
_BIG_BYTES = 2 << 30
_MESSAGES = 200_000
_POSTED = 20_000
_TARGET = 2.0
_SCHEMA = "id long, time long, query string, region string"


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measures everything, prints tables, and writes the artifacts."""
    records = 40_000 if quick else _RECORDS
    rounds = 1 if quick else _ROUNDS
    rates: dict[str, dict[str, float]] = {}
    with results.scratch("io") as work:
        with session(work) as spark:
            _write_input(work, records)
            for name in ("jsonl", "csv", "parquet", "lines"):
                rates[name] = _files(spark, work, name, records, rounds)
            rates["SparkTable"] = _table(spark, work, records, rounds)
        kafka = _kafka(20_000 if quick else _MESSAGES, rounds)
        if isinstance(kafka, dict):
            rates["kafka"] = kafka
        else:
            print(f"kafka: not measured ({kafka})")
        http = _http(work, 2_000 if quick else _POSTED)
        rows = _show(rates, http)
        starts = {
            "many files": _in_process("many", work, 500 if quick else _SMALL_FILES),
            "one file": _in_process("big", work, (20 << 20) if quick else _BIG_BYTES),
        }
    columns = [
        "start",
        "files",
        "MB",
        "first poll, s",
        "next poll, s",
        "memory of polls, MB",
        "of reading, MB",
    ]
    print(results.table(columns, [[name, *found.values()] for name, found in starts.items()]))
    worst = max(row[3] for row in rows if row[0] in ("jsonl", "csv", "parquet"))
    print(f"files within {_TARGET:g}x of Spark's reader: {results.verdict(worst <= _TARGET)} ({worst:g}x)")
    result = {
        "quick": quick,
        "records": records,
        "rates": rates,
        "http": http,
        "starts": starts,
        "target": _TARGET,
        "passed": worst <= _TARGET,
    }
    results.save(results.name("io", quick=quick), result)
    return result


def _show(rates: dict[str, dict[str, float]], http: float) -> list[list[Any]]:
    """Prints what was measured of reading; gives the rows of the table."""
    rows: list[list[Any]] = []
    for name, found in rates.items():
        ratio = found["plain"] / found["millwheel"]
        rows.append([name, round(found["millwheel"]), round(found["plain"]), round(ratio, 2)])
    print(results.table(["injector", "records/s", "plain reader", "times slower"], rows))
    print(f"http: {http:,.0f} records/s durable, in POSTs of 100 by four callers", flush=True)
    return rows


def parse(line: str) -> dict[str, Any]:
    """A line of plain text: ID, time, region, and the query as the rest."""
    id, time, region, query = line.split(" ", 3)
    return {"id": int(id), "time": int(time), "region": region, "query": query}


def _record(number: int, rng: random.Random) -> dict[str, Any]:
    query = f"query {rng.randrange(1_000)} of somebody"
    return {"id": number, "time": 1_700_000_000_000_000 + number * 50, "query": query, "region": "europe"}


def _write_input(work: Path, records: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = random.Random(5)
    for part in range(_FILES):
        values = [_record(number, rng) for number in range(part, records, _FILES)]
        with open(work / f"{part}.jsonl", "w") as file:
            file.writelines(json.dumps(value) + "\n" for value in values)
        with open(work / f"{part}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(values[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(values)
        with open(work / f"{part}.lines", "w") as file:
            file.writelines(f"{v['id']} {v['time']} {v['region']} {v['query']}\n" for v in values)
        pq.write_table(pa.Table.from_pylist(values), work / f"{part}.parquet", row_group_size=PIECE)


def _rate(records: int, read: Callable[[], int | None], seconds: list[float]) -> None:
    started = time.perf_counter()
    found = read()
    seconds.append(time.perf_counter() - started)
    assert found in (None, records), f"{found} records were read, not {records}"


def _compare(
    records: int, ours: Callable[[], int | None], plain: Callable[[], int | None], rounds: int
) -> dict[str, float]:
    """Both in turn, after one turn of each that does not count."""
    found: dict[str, list[float]] = {"millwheel": [], "plain": []}
    for turn in range(rounds + 1):
        for name, read in (("millwheel", ours), ("plain", plain)):
            seconds: list[float] = []
            _rate(records, read, seconds)
            if turn:
                found[name] += seconds
    return {name: records / statistics.median(seconds) for name, seconds in found.items()}


def _files(spark: SparkSession, work: Path, name: str, records: int, rounds: int) -> dict[str, float]:
    pattern = os.fspath(work / f"*.{name}")
    options: dict[str, Any] = {"format": "lines", "parse": parse} if name == "lines" else {}
    injector = mw.injectors.Files(pattern, timestamp="time", **options)
    injector.open(follow=False)
    reader = spark.read.schema(_SCHEMA)

    def plain() -> None:
        if name == "jsonl":
            frame = reader.json(pattern)
        elif name == "csv":
            frame = reader.option("header", True).csv(pattern)
        elif name == "parquet":
            frame = spark.read.parquet(pattern)
        else:
            frame = spark.read.text(pattern)
        frame.write.format("noop").mode("overwrite").save()

    return _compare(records, lambda: records_in_tasks(spark, injector), plain, rounds)


def _table(spark: SparkSession, work: Path, records: int, rounds: int) -> dict[str, float]:
    """With the writing of the spool, which is what a backfill takes."""
    frame = spark.read.parquet(os.fspath(work / "*.parquet"))
    turn = iter(range(100))

    def ours() -> int:
        injector = mw.injectors.SparkTable(frame, timestamp="time", spool=work / f"spool-{next(turn)}")
        injector.begin("benchmark", "in")
        return records_in_tasks(spark, injector)

    return _compare(records, ours, lambda: frame.write.format("noop").mode("overwrite").save(), rounds)


def _kafka(messages: int, rounds: int) -> dict[str, float] | str:
    """In one process: Kafka's client is what limits both."""
    from tests.servers.kafka import broker
    from tests.servers.processes import Unavailable

    try:
        with broker() as found:
            return _kafka_rates(found, messages, rounds)
    except (Unavailable, ImportError) as reason:
        return str(reason)


def _kafka_rates(found: Any, messages: int, rounds: int) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    from tests.servers.topics import send

    rng = random.Random(5)
    topic = found.make_topic("benchmark")
    send(found.servers, topic, (_record(number, rng) for number in range(messages)))

    def ours() -> int:
        injector = mw.injectors.Kafka(found.servers, topic)
        injector.open(follow=False)
        ((partition, end),) = injector.poll().items()
        count = sum(len(batch.timestamps) for batch in injector.read_batches(partition, None, end))
        injector.close()
        return count

    def plain() -> int:
        consumer = Consumer({"bootstrap.servers": found.servers, "group.id": "plain"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        count = 0
        while count < messages:
            count += sum(message.error() is None for message in consumer.consume(10_000, 0.02))
        consumer.close()
        return count

    return _compare(messages, ours, plain, rounds)


def _http(work: Path, records: int) -> float:
    injector = mw.injectors.Http(0, timestamp="time", log=work / "http")
    injector.begin("benchmark", "in")
    rng = random.Random(5)
    body = json.dumps([_record(number, rng) for number in range(100)]).encode()
    url = f"http://127.0.0.1:{injector.port}/"

    def call() -> None:
        for _ in range(records // 400):
            urllib.request.urlopen(urllib.request.Request(url, body)).read()

    callers = [threading.Thread(target=call) for _ in range(4)]
    started = time.perf_counter()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    took = time.perf_counter() - started
    injector.close()
    return records / took


def _in_process(kind: str, work: Path, amount: int) -> dict[str, Any]:
    """In a process of its own, so that the memory is that of this measurement."""
    folder = work / kind
    folder.mkdir()
    rng = random.Random(5)
    files = amount if kind == "many" else 1
    block = "".join(
        json.dumps(_record(number, rng)) + "\n" for number in range(20 if kind == "many" else 10_000)
    )
    for number in range(files):
        with open(folder / f"{number}.jsonl", "w") as file:
            file.writelines([block] * (1 if kind == "many" else amount // len(block) + 1))
    size = sum(path.stat().st_size for path in folder.iterdir())
    command = [sys.executable, "-m", "benchmarks.io", os.fspath(folder / "*.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    return {"files": files, "MB": size >> 20, **json.loads(done.stdout)}


def _start(pattern: str) -> None:
    """What a driver does at the start with the files of a pattern, and a task with all of them."""

    def peak() -> int:
        """Megabytes; not `getrusage`, which counts what the parent had before the process was its own."""
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) >> 10
        return 0

    before = peak()
    injector = mw.injectors.Files(pattern, timestamp="time")
    started = time.perf_counter()
    injector.open(follow=True)
    ends = injector.poll()
    first = time.perf_counter() - started
    injector.folder._again = 0.0  # at once, and not after the pause that a large folder gets
    started = time.perf_counter()
    injector.poll()
    again = time.perf_counter() - started
    polled = peak()
    for partition, end in ends.items():
        for _ in injector.read_batches(partition, None, end):
            pass
    found = {"first": first, "again": again, "memory": polled - before, "reading": peak() - before}
    print(json.dumps({name: round(value, 2) for name, value in found.items()}))


if __name__ == "__main__":
    _start(sys.argv[1])
