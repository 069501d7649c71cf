"""How long `millwheel status`, `inspect` and `explain` take on a store of ten million keys.

The store is filled directly, as a pipeline would leave it: a row and a timer for each key, and the
counters of the tablets. The commands run in processes of their own, as a user calls them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import millwheel as mw
from benchmarks import results
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.codec import pack
from millwheel.model.graph import build
from millwheel.model.keys import TABLETS
from millwheel.store.keyspace import (
    KIND_WATERMARK,
    counters_key,
    row_prefix,
    row_suffix,
    tablet_of,
    timer_key,
)
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.row import encode_row
from millwheel.watch.history import Recorder
from millwheel.worker.step import Worker

_GOAL = 1.0  # seconds
_SHARDS = 4
_BATCH = 250_000
_LATE = 2**60


class Keeper(mw.Computation):
    """Keeps a row for each key."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = 1
        self.set_timer("end", _LATE)

    def process_timer(self, timer: mw.Timer) -> None:
        """There is nothing to do."""


class One(mw.Injector):
    """One record, and more to come: the watermark stays where no timer is due."""

    bounded = False

    def poll(self) -> Mapping[str, int]:
        return {"only": 1}

    def read(self, partition: str, start: int | None, end: int) -> Iterable[mw.Record]:
        return [mw.Record(value=1, timestamp=1, key="first")]

    def low_watermark(self, partition: str, offset: int | None) -> int:
        return 1


def run(*, quick: bool = False) -> dict[str, Any]:
    """Fills a store, runs each command five times, prints a table, and writes the artifact."""
    keys = 200_000 if quick else 10_000_000
    with results.scratch("looking") as work:
        _fill(work / "store", keys)
        size = sum(path.stat().st_blocks * 512 for path in (work / "store").rglob("*.mdb"))
        commands = {
            "status": ["status"],
            "inspect": ["inspect", "Keeper", f"key-{keys // 2}"],
            "explain": ["explain", "Keeper"],
        }
        seconds = {name: _seconds(work / "store", command) for name, command in commands.items()}
    slowest = max(statistics.median(found) for found in seconds.values())
    result = {"quick": quick, "keys": keys, "bytes": size, "seconds": seconds, "passed": slowest < _GOAL}
    results.save(results.name("looking", quick=quick), result)
    print(f"{keys:,} keys, {size / 1e6:,.0f} MB")
    rows = [[name, statistics.median(found) * 1e3, max(found) * 1e3] for name, found in seconds.items()]
    print(results.table(["command", "median, ms", "longest, ms"], rows))
    print(f"{results.verdict(slowest < _GOAL)}  goal: a median under {_GOAL:.0f} s")
    return result


def _pipeline() -> mw.Pipeline:
    p = mw.Pipeline("many keys")
    p.inject("in", One())
    p.add(Keeper(), inputs={"in": mw.by_key})
    return p


def _fill(path: Path, keys: int) -> None:
    """The rows first; then an epoch, so that the journal knows of them."""
    store = LmdbStore(path, shards=_SHARDS, sync=False, map_size=8 << 30)
    row = encode_row(pack({"n": 1}), {"end": _LATE}, {}, {}, None)
    size = len(pack({"n": 1}))
    counts = [0] * TABLETS
    for start in range(0, keys, _BATCH):
        batches: list[list[tuple[bytes, bytes]]] = [[] for _ in range(_SHARDS)]
        for number in range(start, min(start + _BATCH, keys)):
            suffix = row_suffix(f"key-{number}")
            tablet = tablet_of(suffix, TABLETS)
            counts[tablet] += 1
            batches[tablet * _SHARDS // TABLETS] += (
                (row_prefix(0) + suffix, row),
                (timer_key(0, suffix, KIND_WATERMARK, _LATE, TABLETS), b""),
            )
        for shard, batch in zip(store.shards, batches, strict=True):
            shard.write(sorted(batch))
    for tablet, count in enumerate(counts):
        counters = [count, count * size, count, 0, 0, _LATE, mw.MAX_TIME, mw.MAX_TIME]
        shard = store.shards[tablet * _SHARDS // TABLETS]
        shard.write([(counters_key(0, tablet), pack(counters))])
    graph = build(_pipeline())
    driver = Driver(
        graph, store, Options(slots=_SHARDS), clock=lambda: time.time_ns() // 1000, owner="a benchmark"
    )
    driver.observer = Recorder(driver)
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, LocalExecutor(Worker(graph, driver.numbers, store)))
    driver.close()


def _seconds(store: Path, command: list[str]) -> list[float]:
    found = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "millwheel.cli", *command, "--store", os.fspath(store)],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=60,
        )
        found.append(time.perf_counter() - started)
    return found
