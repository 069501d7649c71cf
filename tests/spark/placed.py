"""A program for `test_placement`: wide epochs on a cluster of two executors; prints what became of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

import millwheel as mw
from tests.computations import Windower
from tests.spark.waiting import eventually

KEYS, EPOCHS, PER_EPOCH = 40, 10, 200
EXECUTORS, SLOTS, LEVELS = 2, 4, 2


class Sums(mw.Computation):
    """Adds up what comes; a second level, behind another shuffle."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("sums", self.state["n"])


def _lose_one(store: Path) -> None:
    """Kills one executor once every slot has run several epochs, and whatever Spark starts in its place.

    A new executor would find what the lost one left: Spark's workers keep the folders of an application.
    """
    epochs = 3
    while len(list(store.glob("shard-*/log/*"))) < SLOTS * (1 + LEVELS * epochs):  # the first ones are fences
        threading.Event().wait(0.01)
    lost = ""
    while True:
        for process, worker in _executors():
            if worker == (lost := lost or worker):
                process.send_signal(signal.SIGKILL)
        threading.Event().wait(0.01)


def _executors() -> Iterator[tuple[psutil.Process, str]]:
    """Each executor, with the worker that started it."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            words = process.cmdline()
            if "--worker-url" in words:
                yield process, words[words.index("--worker-url") + 1]


def main(store: str, watched: str) -> None:
    """Runs the pipeline; an executor is lost if there is a folder to watch."""
    spark = (
        SparkSession.builder.master(f"local-cluster[{EXECUTORS},1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        # On a busy machine an executor that lives keeps its slots; of a lost one they go at once.
        .config("spark.locality.wait", "3s" if watched else "60s")
        .getOrCreate()
    )
    # Without its slots an executor could be killed unnoticed.
    status = spark.sparkContext._jsc.sc()
    eventually(lambda: int(status.getExecutorMemoryStatus().size()) == 1 + EXECUTORS)
    records = [
        mw.Record(value={"key": f"k{n % KEYS}"}, timestamp=n * 10 * mw.SECOND // PER_EPOCH)
        for n in range(EPOCHS * PER_EPOCH)
    ]
    p = mw.Pipeline("placed")
    p.inject("in", mw.injectors.Records(records, per_epoch=PER_EPOCH))
    p.add(Windower("windows"), inputs={"in": mw.by("key")}, outputs=["windows"])
    p.add(Sums(), inputs={"windows": lambda record: record.key[-1]}, outputs=["sums"])
    sink = mw.sinks.Collect()
    p.sink("windows", sink)
    if watched:
        threading.Thread(target=_lose_one, args=(Path(watched),), daemon=True).start()
    report = mw.run(p, store=store, spark=spark, progress=False, compact_below=0, slots=SLOTS)
    found = Counter(record.key for record in sink.records)
    print(
        json.dumps(
            {
                "windows": sum(found.values()),
                "keys": len(found),
                "sums": report.produced["Sums"],
                "stayed": report.steps_stayed,
                "moved": report.steps_moved,
                "rows": [report.rows_cached, report.rows_read],
                "text": str(report),
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
