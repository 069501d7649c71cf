"""Skew (8.4): one of eight partitions an hour behind, with a limit of skew and without, against an even run.

What waits in the store for the watermark is what a limit bounds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

import millwheel as mw
from benchmarks import chart, results
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.master.planner import Mode
from millwheel.model.graph import build
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.worker.step import Worker
from millwheel.worker.timer_index import WATERMARK_TIMERS

_PARTITIONS = 8
_HOUR = 3_600
_LIMIT = 60 * mw.SECOND
_KEYS = 20
_BOUND = 16_000  # records of an epoch: the same for all three, so that their epochs are comparable


class Partitions(mw.Injector):
    """Partitions in order of time, a record a second and key; the last one may be an hour behind."""

    bounded = True

    def __init__(self, seconds: int, behind: int) -> None:
        self._first = [0] * (_PARTITIONS - 1) + [-behind]
        self._counts = [(seconds - first) * _KEYS for first in self._first]

    def poll(self) -> Mapping[str, Any]:
        return {str(number): count for number, count in enumerate(self._counts)}

    def _time(self, number: int, index: int) -> int:
        return (self._first[number] + index // _KEYS) * mw.SECOND

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        number = int(partition)
        return (
            mw.Record(key=f"key-{number}-{index % _KEYS}", value=index, timestamp=self._time(number, index))
            for index in range(start or 0, end)
        )

    def low_watermark(self, partition: str, offset: Any) -> int:
        number = int(partition)
        if (offset or 0) >= self._counts[number]:
            return mw.MAX_TIME
        return self._time(number, offset) if offset else mw.MIN_TIME

    def bound(self, partition: str, start: Any, end: Any, records: int) -> Any:
        return min(end, (start or 0) + records)


class Windower(mw.Computation):
    """A window a minute, with what came in it."""

    def process_record(self, record: mw.Record) -> None:
        window = record.timestamp // mw.MINUTE
        self.state.setdefault(window, []).append(record.value)
        self.set_timer(str(window), (window + 1) * mw.MINUTE)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("windows", len(self.state.pop(int(timer.tag))))


def run(*, quick: bool = False) -> dict[str, Any]:
    """Runs the three, prints a table, and writes the artifacts."""
    hours = 1 if quick else 3
    cases = {}
    with results.scratch("skew") as work:
        cases["even"] = _case(work / "even", hours, behind=0, max_skew=None)
        cases["an hour behind, limit of a minute"] = _case(
            work / "limited", hours, behind=_HOUR, max_skew=_LIMIT
        )
        cases["an hour behind, no limit"] = _case(work / "unlimited", hours, behind=_HOUR, max_skew=None)
    even = cases["even"]
    limited = cases["an hour behind, limit of a minute"]
    ratio = limited["peak_store_bytes"] / even["peak_store_bytes"]
    result = {"quick": quick, "cases": cases, "store_ratio": ratio, "target": 2.0, "passed": ratio <= 2.0}
    label = results.name("skew", quick=quick)
    results.save(label, result)
    rows = [
        [
            name,
            part["records"],
            part["peak_open_windows"],
            part["peak_state_bytes"] / 1e6,
            part["peak_rss"] / 1e6,
        ]
        for name, part in cases.items()
    ]
    print(results.table(["run", "records", "open windows at most", "state, MB", "memory, MB"], rows))
    print(f"store with the limit / even: {ratio:.2f} ({results.verdict(result['passed'])}, at most 2)")
    chart.bars(
        results.artifact(f"{label}.png"),
        "State that waits for the watermark, MB (peak)",
        ["state"],
        {name: [part["peak_state_bytes"] / 1e6] for name, part in cases.items()},
    )
    return result


def _case(folder: Path, hours: int, *, behind: int, max_skew: int | None) -> dict[str, Any]:
    p = mw.Pipeline("skew")
    p.inject("records", Partitions(hours * _HOUR, behind))
    p.add(Windower(), inputs={"records": mw.by_key}, outputs=["windows"])
    graph = build(p)
    store = LmdbStore(folder, shards=1, sync=False)
    driver = Driver(graph, store, Options(slots=1, max_skew=max_skew), clock=lambda: 0, owner="a benchmark")
    driver.sizer.learn = lambda *_: None  # type: ignore[method-assign]
    driver.sizer.bound = _BOUND
    executor = LocalExecutor(Worker(graph, driver.numbers, store))
    process = psutil.Process(os.getpid())
    windows = state = size = memory = 0
    while (plan := driver.next_plan() or driver.next_plan(Mode.OVER_SKEW)) is not None:
        driver.run(plan, executor)
        windows = max(windows, driver.authority.counter("Windower", WATERMARK_TIMERS))
        state = max(state, driver.authority.counter("Windower", 1))
        size = max(size, store.size())
        memory = max(memory, process.memory_info().rss)
    records = driver.report().records_in
    driver.close()
    return {
        "records": records,
        "peak_open_windows": windows,
        "peak_state_bytes": state,
        "peak_store_bytes": size,
        "peak_rss": memory,
    }
