"""Duplicates among many IDs in one interval: how many new ones need no lookup in the store, and none passes.

The engine runs in this process, on LMDB: what is measured is a step with IDs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

import millwheel as mw
from benchmarks import results
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.worker.step import Worker

_IDS = 5_000_000
_NEW = 100_000  # after them, in the epochs that are measured
_EPOCH = 100_000
_TARGET = 0.95


class Sent(mw.Injector):
    """Records with IDs; the last ones are sent a second time."""

    def __init__(self, ids: int, again: int) -> None:
        self._ids = ids
        self._again = again

    def poll(self) -> Mapping[str, Any]:
        return {"one": self._ids + self._again}

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        for number in range(start or 0, end):
            sent = number if number < self._ids else number - self._again
            yield mw.Record(key=f"key-{sent % 1000}", value=None, timestamp=sent, id=sent)

    def low_watermark(self, partition: str, offset: Any) -> int:
        return mw.MAX_TIME if (offset or 0) >= self._ids + self._again else 0

    def bound(self, partition: str, start: Any, end: Any, records: int) -> Any:
        return min(end, (start or 0) + _EPOCH)


class Counts(mw.Computation):
    """Counts what is delivered."""

    def process_record(self, record: mw.Record) -> None:
        self.count("delivered")


def run(*, quick: bool = False) -> dict[str, Any]:
    """Fills, measures, prints and writes."""
    ids = 200_000 if quick else _IDS
    p = mw.Pipeline("dedup")
    p.inject("in", Sent(ids + _NEW, _NEW))
    p.add(Counts(), inputs={"in": mw.by_key})
    graph = build(p)
    with results.scratch("dedup") as work:
        store = LmdbStore(work / "store")
        driver = Driver(
            graph,
            store,
            Options(slots=1, step_budget=math.inf),
            clock=lambda: time.time_ns() // 1000,
            owner="a benchmark",
        )
        executor = LocalExecutor(Worker(graph, driver.numbers, store))
        before = driver.report()
        found: list[dict[str, Any]] = []
        while (plan := driver.next_plan_to_the_end()) is not None:
            started = time.perf_counter()
            driver.run(plan, executor)
            report = driver.report()
            found.append(
                {
                    "seconds": time.perf_counter() - started,
                    "filtered": report.ids_filtered["Counts"] - before.ids_filtered["Counts"],
                    "read": report.ids_read["Counts"] - before.ids_read["Counts"],
                    "duplicates": report.duplicates["Counts"] - before.duplicates["Counts"],
                }
            )
            before = report
        driver.close()
    new, again = found[ids // _EPOCH], found[ids // _EPOCH + 1]
    share = new["filtered"] / _NEW
    right = before.records["Counts"] == ids + _NEW and again["duplicates"] == _NEW
    result = {
        "quick": quick,
        "ids": ids,
        "share_of_new_ids_without_a_read": share,
        "filter_bytes": before.filter_bytes["Counts"],
        "expected_error": before.filter_error["Counts"],
        "seconds_new": new["seconds"],
        "seconds_again": again["seconds"],
        "no_duplicate_passed": right,
        "passed": right and share >= _TARGET,
    }
    results.save(results.name("dedup", quick=quick), result)
    print(
        f"{results.verdict(right and share >= _TARGET)}  {ids:,} IDs known: {share:.1%} of {_NEW:,} new ones "
        f"without a read, target {_TARGET:.0%}; {again['duplicates']:,} of {_NEW:,} duplicates found"
    )
    print(
        f"the filter has {result['filter_bytes'] / 1e6:.1f} MB; an epoch of {_NEW:,} new IDs took "
        f"{new['seconds']:.2f} s, one of duplicates {again['seconds']:.2f} s"
    )
    return result
