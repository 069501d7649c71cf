"""What looking costs: the same pipeline with everything on and with everything off, in turns.

On: the history in the store, the page served, one browser's stream of events read all the time, and
`/metrics` scraped every second. Off: none of it. Each round runs both, in an order that alternates, as
machines have moods. Beside the throughput stands the CPU time of all processes, in which other work on the
machine shows less.

`run_parts` measures each part by itself, in CPU time, which other work on the machine changes little.
"""

from __future__ import annotations

import http.client
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import data, results
from benchmarks.pipelines import windows
from benchmarks.processes import cpu_seconds
from benchmarks.session import session
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.watch.history import Recorder
from millwheel.watch.metrics import exposition
from millwheel.watch.server import _message
from millwheel.watch.view import Viewer
from millwheel.worker.step import Worker

_GOAL = 0.03  # of the throughput
_KEYS = 1_000
_FILES = 60
_RECORDS = 3_000_000  # ten seconds and more: a difference of 3% is to be seen
_SLOTS = 8


def run(*, quick: bool = False, rounds: int = 5) -> dict[str, Any]:
    """Runs the rounds, prints the ratio, and writes the artifact."""
    records = 200_000 if quick else _RECORDS
    rates: dict[str, list[float]] = {"off": [], "on": []}
    cpu: dict[str, list[float]] = {"off": [], "on": []}
    looks = 0
    with results.scratch("overhead") as work, session(work) as spark:
        source = data.generate(work / "input", keys=_KEYS, records=records, files=_FILES)
        for watched in (False, True):  # what is imported once is no part of a run
            _turn(spark, source, work / f"warm-{watched}", watched=watched)
        for number in range(rounds):
            for watched in (False, True) if number % 2 else (True, False):
                before = cpu_seconds()
                seconds, seen = _turn(spark, source, work / f"{number}-{watched}", watched=watched)
                cpu["on" if watched else "off"].append(cpu_seconds() - before)
                rates["on" if watched else "off"].append(records / seconds)
                looks += seen
            print(
                f"round {number + 1} of {rounds}: off {rates['off'][-1]:,.0f} records/s, "
                f"on {rates['on'][-1]:,.0f}",
                flush=True,
            )
    pairs = [on / off for on, off in zip(rates["on"], rates["off"], strict=True)]
    ratio = statistics.median(pairs)  # of neighbours in time: a slow minute of the machine slows both
    used = statistics.median(on / off for on, off in zip(cpu["on"], cpu["off"], strict=True))
    result = {
        "quick": quick,
        "records": records,
        "rates": {name: [round(rate) for rate in found] for name, found in rates.items()},
        "cpu_seconds": cpu,
        "pairs": pairs,
        "ratio": ratio,
        "cpu_ratio": used,
        "looks": looks,
        "goal": _GOAL,
        "passed": 1 - ratio < _GOAL,
    }
    results.save(results.name("overhead", quick=quick), result)
    rows = [
        [
            name,
            round(statistics.median(found)),
            round(min(found)),
            round(max(found)),
            statistics.median(cpu[name]),
        ]
        for name, found in rates.items()
    ]
    print(results.table(["watched", "records/s (median)", "slowest", "fastest", "CPU s"], rows))
    judged = "not judged" if quick else results.verdict(1 - ratio < _GOAL)
    print(
        f"{judged}  everything on: {ratio:.3f} times the throughput of everything off "
        f"(median of the rounds, {min(pairs):.3f} to {max(pairs):.3f}), goal: {1 - _GOAL:.2f}; "
        f"{used:.3f} times the CPU time; {looks} events and scrapes were read"
    )
    return result


def _turn(spark: SparkSession, source: data.Input, folder: Path, *, watched: bool) -> tuple[float, int]:
    """One whole run; the seconds, and how often somebody looked."""
    folder.mkdir()
    port = _free_port()
    options: dict[str, Any] = {"ui": port} if watched else {"watch": False}
    with _looking(port if watched else None) as looks:
        started = time.perf_counter()
        mw.run(
            windows.pipeline(source.pattern, folder / "out"),
            store=folder / "store",
            spark=spark,
            progress=False,
            **options,
        )
        seconds = time.perf_counter() - started
    shutil.rmtree(folder)
    return seconds, len(looks)


def run_parts(*, quick: bool = False) -> dict[str, Any]:
    """The CPU time of each part by itself, in one process: it is the same on a busy machine."""
    epochs = 50 if quick else 300
    with results.scratch("overhead") as work:
        source = data.generate(work / "input", keys=_KEYS, records=epochs * 200, files=1)
        store = LmdbStore(work / "store", shards=_SLOTS, sync=False)
        graph = build(windows.pipeline(source.pattern, work / "out"))
        driver = Driver(
            graph, store, Options(slots=_SLOTS), clock=lambda: time.time_ns() // 1000, owner="a benchmark"
        )
        seconds: dict[str, list[float]] = {"an epoch": []}
        driver.observer = recorder = Recorder(driver)
        recorder.epoch = _timed(recorder.epoch, seconds["an epoch"])  # type: ignore[method-assign]
        executor = LocalExecutor(Worker(graph, driver.numbers, store))
        driver.sizer.bound = 200
        while len(seconds["an epoch"]) < epochs and (plan := driver.next_plan()) is not None:
            driver.sizer.bound = 200
            driver.run(plan, executor)
        viewer = Viewer(store)
        view = viewer.look(0)
        for name, part in {
            "a sample": recorder._take,
            "a look": lambda: viewer.look(time.time_ns() // 1000),
            "an event": lambda: _message(view, []),
            "a scrape": lambda: exposition(view),
        }.items():
            timed = _timed(part, seconds.setdefault(name, []))
            for _ in range(epochs):
                timed()
        driver.close()
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    often = {"an epoch": 10, "a sample": 1, "a look": 2, "an event": 1, "a scrape": 1}
    share = sum(medians[name] * times for name, times in often.items())
    results.save(results.name("overhead-parts", quick=quick), {"seconds": medians, "share": share})
    rows = [[name, medians[name] * 1e6, often[name]] for name in medians]
    print(results.table(["part", "CPU us (median)", "times a second"], rows))
    print(f"together {share:.2%} of a core, with ten epochs a second, one page open and one scrape a second")
    return {"seconds": medians, "share": share}


def _timed(part: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        started = time.thread_time()
        try:
            return part(*arguments)
        finally:
            seconds.append(time.thread_time() - started)

    return call


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _looking(port: int | None) -> Iterator[list[str]]:
    """A browser that has the page open, and a Prometheus that scrapes every second."""
    looks: list[str] = []
    if port is None:
        yield looks
        return
    ended = threading.Event()

    def ask(path: str) -> http.client.HTTPResponse | None:
        """None before the pipeline has started and after it has ended."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", path)
            return connection.getresponse()
        except OSError:
            return None

    def browse() -> None:
        while not ended.wait(0.1):
            response = ask("/api/events")
            while response is not None and (line := response.readline()):
                if line.startswith(b"data"):
                    looks.append("event")

    def scrape() -> None:
        while not ended.wait(1.0):
            response = ask("/metrics")
            if response is not None and response.read():
                looks.append("scrape")

    threads = [threading.Thread(target=browse), threading.Thread(target=scrape)]
    for thread in threads:
        thread.start()
    try:
        yield looks
    finally:
        ended.set()
        for thread in threads:
            thread.join()
