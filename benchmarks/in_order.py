"""What ``in_order=True`` costs: the windowed count with it and without, in turns, in one process.

Measured is CPU time, in which other work on the machine shows less: a driver, a worker and a store as under
Spark, but no shuffle and no second process. The records are up to two seconds out of order, so those of the
last two seconds before the end of each epoch wait in the store.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import millwheel as mw
from benchmarks import data, results
from benchmarks.pipelines import windows
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.worker.step import Worker

_TARGET = 1.5  # times the time of a record
_EPOCH = 100_000  # records: five seconds of event time, of which two wait


def run(*, quick: bool = False, rounds: int = 5) -> dict[str, Any]:
    """Runs both in turns, prints a table, and writes the artifact."""
    cases: dict[str, dict[str, Any]] = {}
    count = 100_000 if quick else 1_000_000
    with results.scratch("in_order") as work:
        for keys in (1_000, 20_000 if quick else 100_000):
            source = data.generate(work / f"in-{keys}", keys=keys, records=count, files=count // 50_000)
            found: dict[bool, list[float]] = {False: [], True: []}
            for number in range(rounds):
                for in_order in (False, True) if number % 2 else (True, False):
                    found[in_order].append(_turn(source, work / "turn", in_order=in_order))
            pairs = [one / other for one, other in zip(found[True], found[False], strict=True)]
            cases[f"{keys:,} keys"] = {
                "plain": statistics.median(found[False]),
                "in_order": statistics.median(found[True]),
                "pairs": pairs,
                "ratio": statistics.median(pairs),
            }
    worst = max(case["ratio"] for case in cases.values())
    result = {
        "quick": quick,
        "records": count,
        "cases": cases,
        "target": _TARGET,
        "passed": worst <= _TARGET,
    }
    results.save(results.name("in_order", quick=quick), result)
    rows = [
        [name, f"{case['plain']:.2f}", f"{case['in_order']:.2f}", f"{case['ratio']:.2f}"]
        for name, case in cases.items()
    ]
    print(results.table(["", "µs a record", "in order", "ratio"], rows))
    print(f"{results.verdict(worst <= _TARGET)}  at most {worst:.2f} times, goal {_TARGET:g}")
    return result


def _turn(source: data.Input, folder: Path, *, in_order: bool) -> float:
    """One whole run; microseconds of CPU time a record."""
    p = mw.Pipeline("in order")
    p.inject("queries", mw.injectors.Files(source.pattern, timestamp="time", slack=data.DISORDER))
    p.add(
        windows.Windower(),
        inputs={"queries": mw.by("query")},
        outputs=["windows"],
        in_order=in_order,
    )
    p.sink("windows", mw.sinks.JsonLines(folder / "out"))
    graph, store = build(p), LmdbStore(folder / "store", shards=2)
    driver = Driver(
        graph, store, Options(slots=2, target=3.0), clock=lambda: time.time_ns() // 1_000, owner="a benchmark"
    )
    driver.sizer.bound = _EPOCH
    driver.sizer.learn = lambda *_: None  # type: ignore[method-assign]
    executor = LocalExecutor(Worker(graph, driver.numbers, store))
    gc.disable()  # as in a worker while it has a task
    started = time.process_time()
    while (plan := driver.next_plan_to_the_end()) is not None:
        driver.run(plan, executor)
    spent = time.process_time() - started
    gc.enable()
    report = driver.report()
    driver.close()
    if report.records["Windower"] != report.records_in:
        raise AssertionError(
            f"{report.records_in:,} records came, {report.records['Windower']:,} were counted"
        )
    shutil.rmtree(folder)
    return spent / report.records_in * 1e6
