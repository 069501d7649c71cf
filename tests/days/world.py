"""Inputs that grow from day to day, one for each kind of injector, into windows that days share.

world.py CONFIG    runs one day in a process of its own, which dies at the moment that CONFIG names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import millwheel as mw
from millwheel.master.driver import Driver
from tests.computations import Windower
from tests.servers.topics import send
from tests.spark.counted import counted, set_count

A_DAY = 60
SIZE = 50  # of a window, so that every two days share one
KINDS = ("files", "records", "table", "stream", "kafka")


def value(n: int) -> dict[str, Any]:
    return {"n": n, "k": "a", "t": n + 1}


def grow(folder: Path, day: int, servers: str | None, topic: str) -> None:
    """Adds what comes on a day to the inputs outside of this process."""
    values = [value(n) for n in range(A_DAY * day, A_DAY * (day + 1))]
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / f"{day}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in values))
    set_count(folder / "count", A_DAY * (day + 1))
    if servers is not None:
        send(servers, topic, values)


def pipeline(
    folder: Path, day: int, spark: Any, servers: str | None, topic: str, per_epoch: int | None = None
) -> mw.Pipeline:
    """Windows over each kind of injector; nothing is late, or it is dropped and counted."""
    every = A_DAY * (day + 1)
    table = spark.range(every).selectExpr("id as n", "'a' as k", "id + 1 as t")
    records = [mw.Record(value=value(n), timestamp=n + 1) for n in range(every)]
    injectors: dict[str, mw.Injector] = {
        "files": mw.injectors.Files(folder / "in" / "*.jsonl", timestamp="t", unit="us"),
        "records": mw.injectors.Records(records, per_epoch=per_epoch),
        "table": mw.injectors.SparkTable(table, timestamp="t", spool=folder / "table"),
        "stream": mw.injectors.SparkStream(
            counted(spark, folder / "count"), timestamp="t", spool=folder / "stream"
        ),
    }
    if servers is not None:
        injectors["kafka"] = mw.injectors.Kafka(servers, topic, timestamp="t")
    p = mw.Pipeline("days")
    for name, injector in injectors.items():
        p.inject(name, injector)
        p.add(
            Windower(name + ".windows", size=SIZE, stamp=-1),
            name=name,
            inputs={name: lambda record: "a"},
            outputs=[name + ".windows"],
            late="drop",
        )
        p.sink(name + ".windows", mw.sinks.JsonLines(folder / "out" / name))
    return p


def windows(folder: Path, kind: str) -> list[tuple[int, int]]:
    """What came out so far: each window and its count."""
    found = mw.sinks.JsonLines(folder / "out" / kind).records()
    return sorted((record.value["window"], record.value["count"]) for record in found)


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Runs a day; ``dies``: after so many epochs, or as it concludes."""
    config = json.loads(sys.argv[1])
    from millwheel.spark.session import local_session

    if config["dies"] == "concluding":
        Driver.conclude = _die  # type: ignore[method-assign, assignment]
    elif config["dies"] is not None:
        commit, left = Driver._commit, [config["dies"]]

        def committed(driver: Driver, *arguments: Any) -> None:
            commit(driver, *arguments)
            left[0] -= 1
            if not left[0]:
                _die()

        Driver._commit = committed  # type: ignore[method-assign]
    folder = Path(config["folder"])
    spark = local_session()
    p = pipeline(folder, config["day"], spark, config["servers"], config["topic"], per_epoch=20)
    report = mw.run(p, store=folder / "store", spark=spark, progress=False)
    print(json.dumps([report.late, report.records_in]), flush=True)


if __name__ == "__main__":
    main()
