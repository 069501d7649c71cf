"""The framework-level cache (8.3, Fig. 16): CPU of the worker and of the database against its size.

Two jobs. The windowed count of the other benchmarks reads a key's row, and writes it, in every epoch in which
the key has records. In the other one each record is compared with what is known of its key, which one in
fifty of them changes: it reads more than it writes, as the jobs for which one wants a cache. The engine runs
in this process, on a PostgreSQL of its own; what is counted is CPU time, of this process and of all processes
of the server. The size that saves most is then measured again, in turns with no cache at all, and judged by
the medians: the processor's own speed changes meanwhile.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

import millwheel as mw
from benchmarks import chart, data, results
from benchmarks.pipelines.windows import Windower
from benchmarks.server import postgres
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.lmdb.environment import LmdbShard
from millwheel.store.open import open_store
from millwheel.worker.cache import Cache
from millwheel.worker.step import Worker

_MB = 1_000_000
_KEYS = 20_000
_PROFILE = 1_000  # bytes that are known of a key
_EPOCH = 10_000
_EPOCHS = 60
_CHANGED = 0.02
_TARGET = 0.5
_TURNS = 3  # of the two sizes that are compared


class _Counted(mw.Injector):
    """Records that are known by their number, the same for each size of the cache."""

    def __init__(self, keys: int, epochs: int) -> None:
        self._keys = keys
        self._records = keys + epochs * _EPOCH

    def poll(self) -> Mapping[str, Any]:
        return {"one": self._records}

    def bound(self, partition: str, start: Any, end: Any, records: int) -> Any:
        return min(end, (start or 0) + _EPOCH)


class Queries(_Counted):
    """Records of keys by chance, out of order, as in the files of `benchmarks.data`."""

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        for number in range(start or 0, end):
            source = random.Random(number)
            time = number * mw.SECOND // data.RATE - source.randrange(data.DISORDER)
            yield mw.Record(key=f"query-{source.randrange(self._keys)}", value=0, timestamp=time)

    def low_watermark(self, partition: str, offset: Any) -> int:
        read = offset or 0
        return mw.MAX_TIME if read >= self._records else read * mw.SECOND // data.RATE - data.DISORDER


class Looks(_Counted):
    """First one record of each key, then records of keys by chance."""

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        for number in range(start or 0, end):
            source = random.Random(number)
            key = number if number < self._keys else source.randrange(self._keys)
            changes = number < self._keys or source.random() < _CHANGED
            yield mw.Record(key=f"key-{key}", value={"at": number, "changes": changes}, timestamp=number)

    def low_watermark(self, partition: str, offset: Any) -> int:
        return mw.MAX_TIME if (offset or 0) >= self._records else offset or 0


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


@dataclass(frozen=True)
class Job:
    """What is run, with caches of so many megabytes."""

    injector: Callable[[int, int], mw.Injector]
    computation: Callable[[], mw.Computation]
    output: str
    sizes: tuple[int, ...]


JOBS = {
    "windowed count": Job(Queries, Windower, "windows", (0, 1, 2, 4, 6, 8, 16)),
    "compared with what is known": Job(Looks, Profiles, "matches", (0, 4, 8, 12, 16, 24, 32)),
}


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measures each size, prints and writes."""
    keys, epochs = (10_000, 12) if quick else (_KEYS, _EPOCHS)
    jobs: dict[str, dict[str, Any]] = {}
    with results.scratch("cache") as work, postgres() as server:
        for number, (title, job) in enumerate(JOBS.items()):
            places = (f"cache_{number}_{turn}" for turn in itertools.count())

            def measure(size: int, job: Job = job, places: Iterator[str] = places) -> dict[str, Any]:
                place = next(places)
                url = server.make_database(place)
                one = _measure(job, url, size * _MB, keys, epochs, work / place, server)
                return {"megabytes": size, **one}

            found = [measure(size) for size in (job.sizes[::3] if quick else job.sizes)]
            base, best = found[0], min(found, key=lambda one: one["database"])
            turns = [(base, best)]
            while len(turns) < (1 if quick else _TURNS):
                turns.append((measure(base["megabytes"]), measure(best["megabytes"])))
            jobs[title] = judged(found, turns)
            _print(title, jobs[title])
    result = {
        "quick": quick,
        "keys": keys,
        "epochs": epochs,
        "records_per_epoch": _EPOCH,
        "target": _TARGET,
        "jobs": jobs,
        "passed": all(job["passed"] for job in jobs.values()),
    }
    name = results.name("cache", quick=quick)
    results.save(name, result)
    _draw(results.artifact(f"{name}.png"), {title: job["sizes"] for title, job in jobs.items()})
    return result


def judged(found: list[dict[str, Any]], turns: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """What the best size saves: by the medians of turns without a cache and with that one."""

    def saved(part: str) -> float:
        bases, bests = ([one[part] for one in side] for side in zip(*turns, strict=True))
        return 1 - statistics.median(bests) / statistics.median(bases)

    same = len({one["results"] for one in (*found, *itertools.chain.from_iterable(turns))}) == 1
    return {
        "sizes": found,
        "turns": [[base["database"], best["database"]] for base, best in turns],
        "saved_of_the_database": saved("database"),
        "saved_of_all": saved("total"),
        "same_results": same,
        "passed": same and saved("database") >= _TARGET,
    }


def _print(title: str, job: dict[str, Any]) -> None:
    head = ["cache MB", "worker CPU s", "database CPU s", "together", "rows cached %"]
    rows = [
        [o["megabytes"], o["worker"], o["database"], o["total"], 100 * o["hit_rate"]] for o in job["sizes"]
    ]
    print(results.table(head, rows))
    turns = ", ".join(f"{base:.1f} and {best:.1f}" for base, best in job["turns"])
    print(f"database CPU s without a cache and with the best one, in turns: {turns}")
    print(
        f"{results.verdict(job['passed'])}  {title}: the cache saves {job['saved_of_the_database']:.0%} of "
        f"the database's CPU (target {_TARGET:.0%}) and {job['saved_of_all']:.0%} of all",
        flush=True,
    )


def _measure(
    job: Job, url: str, size: int, keys: int, epochs: int, folder: Path, server: Any
) -> dict[str, Any]:
    pipeline = mw.Pipeline("cache")
    sink = mw.sinks.Collect()
    pipeline.inject("records", job.injector(keys, epochs))
    computation = job.computation()
    pipeline.add(computation, inputs={"records": mw.by_key}, outputs=[job.output])
    pipeline.sink(job.output, sink)
    graph = build(pipeline)
    store = open_store(url)
    driver = Driver(
        graph,
        store,
        Options(slots=1, step_budget=math.inf),
        clock=lambda: time.time_ns() // 1000,
        owner="a benchmark",
    )
    cache = Cache(lambda shard: LmdbShard(folder / f"{shard}", sync=False, map_size=64 * _MB), size)
    executor = LocalExecutor(Worker(graph, driver.numbers, store, cache=cache if size else None))
    worker = database = 0.0
    name = type(computation).__name__
    read_before: dict[str, int] = {}
    warm = keys // _EPOCH + epochs // 4  # until every key is known, and the cache has what it can have
    for number in range(keys // _EPOCH + epochs):
        if number == warm:
            worker, database = -time.process_time(), -_server_cpu(server)
            report = driver.report()
            read_before = {"cached": report.rows_cached[name], "read": report.rows_read[name]}
        plan = driver.next_plan_to_the_end()
        assert plan is not None
        driver.run(plan, executor)
    worker += time.process_time()
    database += _server_cpu(server)
    report = driver.report()
    cached = report.rows_cached[name] - read_before["cached"]
    read = report.rows_read[name] - read_before["read"]
    driver.close()
    return {
        "worker": worker,
        "database": database,
        "total": worker + database,
        "hit_rate": cached / (cached + read) if cached + read else 0.0,
        "results": len(sink.records),
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


def _draw(path: Path, jobs: dict[str, list[dict[str, Any]]]) -> None:
    panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for title, found in jobs.items():
        sizes = [float(one["megabytes"]) for one in found]
        panels[f"CPU, s: {title}"] = {
            part: (sizes, [one[part] for one in found]) for part in ("total", "database", "worker")
        }
    chart.lines(path, "CPU by the size of the cache (Fig. 16)", "cache, MB", panels)
