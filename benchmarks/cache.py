"""The framework-level cache (8.3, Fig. 16): CPU of the worker and of the database against its size.

Each record is compared with what is known of its key, which one in fifty of them changes: a job that reads
more than it writes, as those for which one wants a cache. The engine runs in this process, on a PostgreSQL
of its own; what is counted is CPU time, of this process and of all processes of the server.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

import millwheel as mw
from benchmarks import chart, results
from millwheel.master.driver import Driver
from millwheel.master.local import LocalExecutor
from millwheel.model.graph import build
from millwheel.store.lmdb import LmdbShard
from millwheel.store.open import open_store
from millwheel.worker.cache import Cache
from millwheel.worker.step import Worker

_MB = 1_000_000
_SIZES = (0, 4, 8, 12, 16, 24, 32)  # MB; all rows take about 22
_KEYS = 20_000
_PROFILE = 1_000  # bytes that are known of a key
_EPOCH = 10_000
_EPOCHS = 60
_CHANGED = 0.02
_TARGET = 0.5


class Looks(mw.Injector):
    """First one record of each key, then records of keys by chance; the same for each size."""

    def __init__(self, keys: int, epochs: int) -> None:
        self._keys = keys
        self._records = keys + epochs * _EPOCH

    def poll(self) -> Mapping[str, Any]:
        return {"one": self._records}

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        for number in range(start or 0, end):
            source = random.Random(number)
            key = number if number < self._keys else source.randrange(self._keys)
            changes = number < self._keys or source.random() < _CHANGED
            yield mw.Record(key=f"key-{key}", value={"at": number, "changes": changes}, timestamp=number)

    def low_watermark(self, partition: str, offset: Any) -> int:
        return mw.MAX_TIME if (offset or 0) >= self._records else offset or 0

    def bound(self, partition: str, start: Any, end: Any, records: int) -> Any:
        return min(end, (start or 0) + _EPOCH)


class Profiles(mw.Computation):
    """Compares a record with what is known of its key."""

    def process_record(self, record: mw.Record) -> None:
        known = self.state
        if record.value["changes"]:
            at = record.value["at"]
            known["changed"] = at
            known["profile"] = random.Random(at).randbytes(_PROFILE)
        elif record.value["at"] % 1_000 == known["changed"] % 1_000:
            self.produce("matches", known["changed"])


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measures each size, prints and writes."""
    from tests.servers.postgres import cluster

    keys, epochs = (10_000, 12) if quick else (_KEYS, _EPOCHS)
    sizes = _SIZES[::3] if quick else _SIZES
    found = []
    with results.scratch("cache") as work, cluster() as server:
        for size in sizes:
            url = server.make_database(f"cache-{size}")
            found.append(
                {"megabytes": size, **_measure(url, size * _MB, keys, epochs, work / str(size), server)}
            )
    base, best = found[0], min(found, key=lambda one: one["database"])
    saved = 1 - best["database"] / base["database"]
    same = len({one["matches"] for one in found}) == 1
    result = {
        "quick": quick,
        "keys": keys,
        "epochs": epochs,
        "records_per_epoch": _EPOCH,
        "sizes": found,
        "saved_of_the_database": saved,
        "saved_of_all": 1 - best["total"] / base["total"],
        "same_results": same,
        "passed": same and saved >= _TARGET,
    }
    name = results.name("cache", quick=quick)
    results.save(name, result)
    _draw(results.artifact(f"{name}.png"), found)
    head = ["cache MB", "worker CPU s", "database CPU s", "together", "rows cached %"]
    rows = [[o["megabytes"], o["worker"], o["database"], o["total"], 100 * o["hit_rate"]] for o in found]
    print(results.table(head, rows))
    print(
        f"{results.verdict(same and saved >= _TARGET)}  the cache saves {saved:.0%} of the database's CPU "
        f"(target {_TARGET:.0%}) and {result['saved_of_all']:.0%} of all"
    )
    return result


def _measure(url: str, size: int, keys: int, epochs: int, folder: Path, server: Any) -> dict[str, Any]:
    pipeline = mw.Pipeline("cache")
    sink = mw.sinks.Collect()
    pipeline.inject("looks", Looks(keys, epochs))
    pipeline.add(Profiles(), inputs={"looks": mw.by_key}, outputs=["matches"])
    pipeline.sink("matches", sink)
    graph = build(pipeline)
    store = open_store(url)
    driver = Driver(
        graph,
        store,
        slots=1,
        clock=lambda: time.time_ns() // 1000,
        owner="a benchmark",
        step_budget=math.inf,
    )
    cache = Cache(lambda shard: LmdbShard(folder / f"{shard}", sync=False, map_size=64 * _MB), size)
    executor = LocalExecutor(Worker(graph, driver.numbers, store, cache=cache if size else None))
    worker = database = 0.0
    read_before: dict[str, int] = {}
    warm = keys // _EPOCH + epochs // 4  # until every key is known, and the cache has what it can have
    for number in range(keys // _EPOCH + epochs):
        if number == warm:
            worker, database = -time.process_time(), -_server_cpu(server)
            report = driver.report()
            read_before = {"cached": report.rows_cached["Profiles"], "read": report.rows_read["Profiles"]}
        plan = driver.next_plan_to_the_end()
        assert plan is not None
        driver.run(plan, executor)
    worker += time.process_time()
    database += _server_cpu(server)
    report = driver.report()
    cached = report.rows_cached["Profiles"] - read_before["cached"]
    read = report.rows_read["Profiles"] - read_before["read"]
    driver.close()
    return {
        "worker": worker,
        "database": database,
        "total": worker + database,
        "hit_rate": cached / (cached + read) if cached + read else 0.0,
        "matches": len(sink.records),
    }


def _server_cpu(server: Any) -> float:
    """Of the server's processes: those that live, and those that have ended."""
    main = psutil.Process(server.process.pid)
    times = main.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for process in main.children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return float(total)


def _draw(path: Path, found: list[dict[str, Any]]) -> None:
    sizes = [float(one["megabytes"]) for one in found]
    cpu = {part: (sizes, [one[part] for one in found]) for part in ("total", "database", "worker")}
    hits = {"rows from the cache": (sizes, [100 * one["hit_rate"] for one in found])}
    chart.lines(
        path,
        "CPU of the worker and the database, by the size of the cache (Fig. 16)",
        "cache, MB",
        {"CPU, s": cpu, "hits, %": hits},
    )
