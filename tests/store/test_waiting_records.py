"""The tools of a store know the records that wait for the watermark."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.ending import Start
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.base import Store
from millwheel.store.keyspace import waiting_prefix
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.tools.check import check
from millwheel.store.tools.copy import copy
from millwheel.store.tools.export import timers
from millwheel.store.tools.forget import forget
from millwheel.worker.step import Worker
from tests.computations import Log

_RECORDS = [
    mw.Record(key=f"key {number % 7}", value=number, timestamp=100 - number, id=number)
    for number in range(40)
]


def _pipeline() -> tuple[mw.Pipeline, mw.sinks.Collect]:
    p = mw.Pipeline("waiting")
    p.inject("in", mw.injectors.Records(_RECORDS, [0] * len(_RECORDS), per_epoch=39))
    p.add(Log(), inputs={"in": mw.by_key}, outputs=["log"], in_order=True)
    sink = mw.sinks.Collect()
    p.sink("log", sink)
    return p, sink


def _run(store: Store, epochs: int | None, slots: int = 2) -> list[mw.Record]:
    p, sink = _pipeline()
    graph = build(p)
    driver = Driver(graph, store, Options(slots=slots), clock=lambda: 0, owner="a test", start=Start.CHANGE)
    executor = LocalExecutor(Worker(graph, driver.numbers, store))
    while epochs != 0 and (plan := driver.next_plan_to_the_end()) is not None:
        driver.run(plan, executor)
        epochs = None if epochs is None else epochs - 1
    driver.let_go()
    return sink.records


def test_a_copy_with_more_shards_has_them_and_delivers_them_in_order(tmp_path: Path) -> None:
    with closing(LmdbStore(tmp_path / "one", shards=2)) as one:
        assert _run(one, 1) == []
        assert check(one).problems == []
        assert check(one).counts["records that wait"] == 39
        with closing(LmdbStore(tmp_path / "other", shards=8)) as other:
            copy(one, other)
            assert check(other).problems == []
            found = _run(other, None, slots=5)
            assert check(other).counts["records that wait"] == 0
    for number in range(7):
        times = [record.timestamp for record in found if record.key == f"key {number}"]
        assert times == sorted(r.timestamp for r in _RECORDS if r.key == f"key {number}")


def test_a_check_finds_what_the_counters_do_not_count(tmp_path: Path) -> None:
    with closing(LmdbStore(tmp_path / "one", shards=2)) as store:
        _run(store, 1)
        for shard in store.shards:
            with shard.snapshot() as snapshot:
                gone = [key for key, _ in snapshot.scan(b"W", b"X")][:1]
            shard.write([], gone)
        assert any("the counters say" in problem for problem in check(store).problems)


def test_they_are_in_the_table_of_timers(tmp_path: Path) -> None:
    with closing(LmdbStore(tmp_path / "one", shards=2)) as store:
        _run(store, 1)
        found = [row for row in timers(store, range(64)) if row[2] == "record"]
    assert sorted((key, time) for _, key, _, _, time in found) == sorted(
        (record.key, record.timestamp) for record in _RECORDS[:39]
    )
    assert {(name, stream) for name, _, _, stream, _ in found} == {("Log", "in")}


def test_they_are_forgotten_with_their_computation(tmp_path: Path) -> None:
    with closing(LmdbStore(tmp_path / "one", shards=2)) as store:
        _run(store, 1)
        forget(store, "Log", "a test")
        for shard in store.shards:
            with shard.snapshot() as snapshot:
                assert list(snapshot.scan(waiting_prefix(0, 0)[:1], b"X")) == []
