"""A driver process that is killed: a pipeline from an injector to a sink, in many small epochs.

victim.py CONFIG    CONFIG is JSON: store, source, sink
"""

from __future__ import annotations

import json
import sys
from typing import Any

import millwheel as mw
from millwheel.master.planner import Mode
from tests.computations import Echo
from tests.store.driving import take

PER_EPOCH = 15


def injector(config: dict[str, Any]) -> mw.Injector:
    if config["kind"] == "kafka":
        return mw.injectors.Kafka(config["servers"], config["topic"], timestamp="t")
    if config["kind"] == "delta":
        return mw.injectors.Delta(config["table"], timestamp="t")
    return mw.injectors.Files(config["pattern"], timestamp="t", slack=0)


def sink(config: dict[str, Any]) -> mw.Sink:
    kind = config["kind"]
    if kind == "jsonlines":
        return mw.sinks.JsonLines(config["folder"], file_size=4_000)
    if kind == "parquet":
        return mw.sinks.Parquet(config["folder"], every=0.05)
    if kind == "postgres":
        return mw.sinks.Postgres(config["url"], "rows")
    return mw.sinks.Kafka(config["servers"], config["topic"])


def sinks(config: dict[str, Any]) -> list[mw.Sink]:
    if config["kind"] == "tables":  # both in one victim: what takes long is to import their packages
        return [
            mw.sinks.Delta(config["delta"], every=0.1, compact_after=3),
            mw.sinks.Iceberg(config["catalog"], "ns.table", every=0.2),
        ]
    return [sink(config)]


def main() -> None:
    """Runs to the end, unless it is killed."""
    from millwheel.store.lmdb.lmdb_store import LmdbStore

    config = json.loads(sys.argv[1])
    p = mw.Pipeline("victim")
    p.inject("in", injector(config["source"]))
    p.add(Echo(), name="C", inputs={"in": mw.by("k")}, outputs=["out"])
    for each in sinks(config["sink"]):
        p.sink("out", each)
    driver, executor = take(p, LmdbStore(config["store"]))
    print("running", flush=True)
    while True:
        driver.sizer.bound = PER_EPOCH
        plan = driver.next_plan()
        if plan is None:
            if not driver.held:
                break
            plan = driver.next_plan(Mode.DRAIN)
            assert plan is not None
        driver.run(plan, executor)
        print(driver.epoch, flush=True)
    driver.close()
    print("done", flush=True)


if __name__ == "__main__":
    main()
