"""A driver on Spark that is killed: every injector into every sink, in one pipeline and many small epochs.

spark_victim.py CONFIG    CONFIG is JSON. It prints a line for each epoch, and stops when its input is closed.
"""

from __future__ import annotations

import json
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import millwheel as mw
from millwheel import launch
from millwheel.master.sizing import Sizer
from millwheel.spark.session import local_session
from tests.computations import Echo
from tests.spark.counted import SCHEMA, counted

RECORDS = 120
"""Of each injector."""
PER_EPOCH = 60


def value(n: int) -> dict[str, Any]:
    return {"n": n, "k": f"k{n % 5}", "t": n + 1}


class Small(Sizer):
    """Epochs stay small, however fast they are: there are to be many moments to be killed at."""

    def __init__(self, target: float, longest: float | None = None) -> None:
        super().__init__(target, longest)
        self.bound = PER_EPOCH

    def learn(self, records: int, seconds: float, waiting: int = 0) -> None:
        self.bound = PER_EPOCH


class Note:
    """A callback: a file for each call, so that a call that comes again shows."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def __call__(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        numbers = [record.value["n"] for record in records]
        staged = self._folder / f".{uuid.uuid4().hex}"
        staged.write_text(json.dumps([epoch, shard, numbers]))
        staged.rename(self._folder / f"{uuid.uuid4().hex}.json")


def injectors(config: dict[str, Any], spark: SparkSession) -> Iterator[tuple[str, mw.Injector]]:
    """Those that the configuration has; ``first`` is the number of an injector's first record."""
    folder = config["folder"]
    for name, source in config["sources"].items():
        spool = f"{folder}/spool-{name}"
        if name in ("files", "s3-files"):
            yield name, mw.injectors.Files(source["pattern"], timestamp="t", slack=0)
        elif name == "s3-ordered":
            yield name, mw.injectors.OrderedFiles(source["pattern"], timestamp="t", slack=0)
        elif name == "iceberg":
            yield name, mw.injectors.Iceberg(source["catalog"], "ns.table", timestamp="t")
        elif name == "delta":
            yield name, mw.injectors.Delta(source["table"], timestamp="t")
        elif name == "http":
            yield name, mw.injectors.Http(source["port"], timestamp="t", id="n", log=f"{folder}/http")
        elif name == "table":
            frame = spark.range(source["first"], source["first"] + RECORDS)
            frame = frame.selectExpr("id as n", "concat('k', id % 5) as k", "id + 1 as t")
            yield name, mw.injectors.SparkTable(frame, timestamp="t", spool=spool)
        elif name == "python":
            frame = counted(spark, Path(source["count"]), source["first"])
            yield name, mw.injectors.SparkStream(frame, timestamp="t", spool=spool)
        elif name == "kafka":
            yield name, mw.injectors.Kafka(source["servers"], source["topic"], timestamp="t")
        else:
            yield name, mw.injectors.SparkStream(_kafka(spark, source), timestamp="t", spool=spool)


def _kafka(spark: SparkSession, source: dict[str, Any]) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", source["servers"])
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "20")
    frame = reader.option("subscribe", source["topic"]).load()
    parsed = frame.selectExpr(f"from_json(cast(value as string), '{SCHEMA}') as v")
    return parsed.selectExpr("v.n", "v.k", "v.t")


class Batches:
    """A function for Spark's own writers: a folder for each batch, in the place of one that is there."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, frame: DataFrame, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{self._folder}/batch={batch}")


def sinks(config: dict[str, Any], spark: SparkSession) -> Iterator[mw.Sink]:
    """Those that the configuration has."""
    for whole, sink in config["sinks"].items():
        name = whole.removeprefix("s3-")  # the folder is a URL there, and the catalog's warehouse
        if name == "jsonlines":
            yield mw.sinks.JsonLines(sink["folder"], file_size=4_000)
        elif name == "parquet":
            yield mw.sinks.Parquet(sink["folder"], every=0.3)
        elif name == "spark":
            staging = f"{sink['folder']}-staged"
            yield mw.sinks.SparkTable(spark, Batches(sink["folder"]), every=0.5, staging=staging)
        elif name == "callback":
            yield mw.sinks.Callback(Note(sink["folder"]))
        elif name == "delta":
            yield mw.sinks.Delta(sink["folder"], every=0.3, compact_after=3)
        elif name == "iceberg":
            yield mw.sinks.Iceberg(sink["catalog"], "ns.table", every=0.3)
        elif name == "postgres":
            yield mw.sinks.Postgres(sink["url"], "rows")
        else:
            yield mw.sinks.Kafka(sink["servers"], sink["topic"])


def main() -> None:
    """Runs until its input is closed, unless it is killed."""
    config = json.loads(sys.argv[1])
    launch.Sizer = Small  # type: ignore[attr-defined, misc]
    spark = local_session()
    p = mw.Pipeline("victim")
    names = []
    for name, injector in injectors(config, spark):
        p.inject(name, injector)
        names.append(name)
    p.add(Echo(), name="C", inputs={name: mw.by("k") for name in names}, outputs=["out"])
    for sink in sinks(config, spark):
        p.sink("out", sink)
    closed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    with mw.start(p, store=config["store"], spark=spark, **config["options"]) as job:
        print("running", flush=True)
        seen = 0
        while not closed.wait(0.01):
            if (epochs := job.status().epochs) > seen:
                seen = epochs
                print(f"epoch {seen}", flush=True)


if __name__ == "__main__":
    main()
