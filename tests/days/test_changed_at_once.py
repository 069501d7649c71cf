"""A pipeline that is changed before the first epoch of its run, or behind its last (semantics 9)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.job import Job, _Apply
from millwheel.master.driver import Driver
from millwheel.master.ending import Start
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import Graph, build
from millwheel.store.base import Store
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.worker.envelope import Frame
from millwheel.worker.plan import Plan
from millwheel.worker.step import Worker
from tests.computations import Hooks, Idle, Windower
from tests.days.mortal import Died
from tests.store.driving import run

MONDAY = [mw.Record(value={"k": "a"}, timestamp=n) for n in range(20)]
TUESDAY = [mw.Record(value={"k": "a"}, timestamp=n) for n in range(20, 40)]


def _pipeline(records: list[mw.Record], out: mw.sinks.Collect, *, more: bool = False) -> mw.Pipeline:
    p = mw.Pipeline("days")
    p.inject("in", mw.injectors.Records(records))
    p.add(Windower(size=10, stamp=-1), inputs={"in": mw.by("k")}, outputs=["windows"], late="drop")
    p.sink("windows", out)
    if more:
        p.add(Idle(), name="More", inputs={"in": mw.by("k")})
    return p


def _windows(out: mw.sinks.Collect) -> list[tuple[int, int]]:
    return sorted((record.value["window"], record.value["count"]) for record in out.records)


def _run_and_change_at_once(store: Store, pipeline: mw.Pipeline, other: mw.Pipeline) -> mw.Report:
    """A run, and a change of its pipeline that comes before its first epoch."""

    def drive(graph: Graph, start: Start = Start.CHANGE) -> tuple[Driver, LocalExecutor]:
        driver = Driver(
            graph,
            store,
            Options(slots=1),
            clock=lambda: 0,
            owner="a test",
            start=start,
        )
        return driver, LocalExecutor(Worker(driver.graph, driver.numbers, store))

    driver, executor = drive(build(pipeline), Start.RUN)
    job = Job(driver, executor, until_exhausted=True, on_close=lambda: None, rebuild=drive)
    asked = _Apply(other, "drain")
    job._asked.put(asked)
    job.start()
    report = job.wait()
    assert report is not None
    if asked.error is not None:
        raise asked.error
    return report


def test_what_the_last_run_left_at_its_end_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(driver: Driver) -> None:
        raise Died

    out = mw.sinks.Collect()
    with monkeypatch.context() as patch:
        patch.setattr(Driver, "conclude", dies)
        with pytest.raises(Died):
            run(_pipeline(MONDAY, out), LmdbStore(tmp_path, shards=1))
    both = MONDAY + TUESDAY
    report = _run_and_change_at_once(
        LmdbStore(tmp_path, shards=1), _pipeline(both, out), _pipeline(both, out, more=True)
    )
    assert report.dropped["Windower"] == 0
    assert _windows(out) == [(0, 10), (1, 10), (2, 10), (3, 10)]


def test_an_epoch_that_was_begun_is_finished_before_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*arguments: object) -> None:
        raise Died

    out = mw.sinks.Collect()
    with monkeypatch.context() as patch:
        patch.setattr(Driver, "_commit", dies)
        with pytest.raises(Died):
            run(_pipeline(MONDAY, mw.sinks.Collect()), LmdbStore(tmp_path, shards=1))
    _run_and_change_at_once(
        LmdbStore(tmp_path, shards=1), _pipeline(MONDAY, out), _pipeline(MONDAY, out, more=True)
    )
    assert _windows(out) == [(0, 10), (1, 10)]


class _ChangedAtTheEnd(LocalExecutor):
    """Has the pipeline changed once the epoch has run that ends its holds."""

    ask: Callable[[], None]

    def execute(self, plan: Plan) -> list[Frame]:
        frames = super().execute(plan)
        if plan.ends_holds:
            self.ask()
        return frames


def test_a_change_behind_the_end_of_the_holds_does_not_forget_how_many_there_were(tmp_path: Path) -> None:
    def held(*, more: bool = False) -> mw.Pipeline:
        p = mw.Pipeline("held")
        p.inject("in", mw.injectors.Records(MONDAY))
        holds = Hooks(lambda c, record: c.hold(record.timestamp, tag=str(record.timestamp)))
        p.add(holds, name="Holds", inputs={"in": mw.by("k")})
        if more:
            p.add(Idle(), name="More", inputs={"in": mw.by("k")})
        return p

    store = LmdbStore(tmp_path, shards=1)
    asked = _Apply(held(more=True), "drain")

    def drive(graph: Graph, start: Start = Start.CHANGE) -> tuple[Driver, _ChangedAtTheEnd]:
        driver = Driver(graph, store, Options(slots=1), clock=lambda: 0, owner="a test", start=start)
        executor = _ChangedAtTheEnd(Worker(driver.graph, driver.numbers, store))
        executor.ask = lambda: job._asked.put(asked)
        return driver, executor

    job = Job(
        *drive(build(held()), Start.RECOVERY), until_exhausted=True, on_close=lambda: None, rebuild=drive
    )
    job.start()
    report = job.wait()
    assert asked.change is not None
    assert report is not None
    assert report.unreleased_holds == len(MONDAY)
