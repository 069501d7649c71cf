"""The join of two streams in Structured Streaming, as a process of its own; no Python in its path.

python -m benchmarks.peers.spark_join SOURCE WORK CORES FILES_A_BATCH
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.peers import transform_with_state
from benchmarks.session import session


def join(spark: SparkSession, source: Path, work: Path, files_a_batch: int) -> None:
    """Joins the files that are there: inner, a watermark for each side, state in RocksDB."""

    def side(name: str) -> DataFrame:
        records = (
            spark.readStream.schema("time BIGINT, key STRING, number BIGINT")
            .option("maxFilesPerTrigger", files_a_batch)
            .json(str(source / name))
        )
        columns = [F.col(column).alias(f"{name}_{column}") for column in ("time", "key", "number")]
        moment = F.timestamp_micros("time").alias(f"{name}_moment")
        return records.select(*columns, moment).withWatermark(f"{name}_moment", "2 seconds")

    near = F.expr(
        "left_key = right_key AND right_moment >= left_moment - INTERVAL 60 SECONDS "
        "AND right_moment <= left_moment + INTERVAL 60 SECONDS"
    )
    pairs = side("left").join(side("right"), near).drop("left_moment", "right_moment")
    query = (
        pairs.writeStream.format("json")
        .option("path", str(work / "out"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def read(work: Path) -> Counter[tuple[int, int]]:
    """The pairs, as the commit log of the sink has them."""
    pairs: Counter[tuple[int, int]] = Counter()
    for path in transform_with_state.committed(work / "out" / "_spark_metadata"):
        with open(path) as lines:
            rows = map(json.loads, lines)
            pairs.update((row["left_number"], row["right_number"]) for row in rows)
    return pairs


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    with session(folder, transform_with_state.SETTINGS, cores=int(sys.argv[3])) as started:
        join(started, Path(sys.argv[1]), folder, int(sys.argv[4]))
