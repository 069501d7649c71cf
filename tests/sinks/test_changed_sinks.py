"""Sinks that come and go with a restart, while an epoch is not finished: each record is there once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.store.memory import MemoryStore
from millwheel.worker.envelope import Frame
from millwheel.worker.epoch import inject, run_level
from millwheel.worker.plan import Plan
from millwheel.worker.step import Worker
from tests.computations import Echo, Hooks
from tests.store.driving import run, take

_RECORDS = [mw.Record(key=f"k{n}", value=n, timestamp=n) for n in range(5)]


def _pipeline(folder: Path, *streams: str, strong: bool = True) -> mw.Pipeline:
    p = mw.Pipeline("changing")
    p.inject("in", mw.injectors.Records(_RECORDS))
    p.add(Echo(), inputs={"in": mw.by_key}, outputs=["out"], strong_productions=strong)
    p.stream("in").map(_negative).named("a map")
    for stream in streams:
        p.sink(stream, mw.sinks.JsonLines(folder / stream))
    return p


def _negative(value: int) -> int:
    return -value


def _die_before_the_commit(pipeline: mw.Pipeline, store: MemoryStore) -> None:
    """Runs an epoch, and ends before it is in the journal."""
    driver, executor = take(pipeline, store)
    plan = driver.next_plan()
    assert plan is not None
    driver.journal.plan(plan, driver.graph)
    executor.execute(plan)
    store.close()


def _values(folder: Path, stream: str) -> list[int]:
    return sorted(record.value for record in mw.sinks.JsonLines(folder / stream).records())


@pytest.mark.parametrize("strong", [True, False])
@pytest.mark.parametrize("stream", ["in", "out"])
def test_a_sink_that_is_added_does_not_repeat_what_others_have(
    tmp_path: Path, stream: str, strong: bool
) -> None:
    store = MemoryStore(1)
    _die_before_the_commit(_pipeline(tmp_path, stream, strong=strong), store)
    run(_pipeline(tmp_path, "a map", stream, strong=strong), store)
    assert _values(tmp_path, stream) == [record.value for record in _RECORDS]


@pytest.mark.parametrize("strong", [True, False])
@pytest.mark.parametrize("gone", ["a map", "out"])
def test_a_sink_may_be_removed_while_an_epoch_is_not_finished(
    tmp_path: Path, gone: str, strong: bool
) -> None:
    store = MemoryStore(1)
    _die_before_the_commit(_pipeline(tmp_path, "a map", "in", "out", strong=strong), store)
    run(_pipeline(tmp_path, *{"a map", "in", "out"} - {gone}, strong=strong), store)
    for stream in {"in", "out"} - {gone}:
        assert _values(tmp_path, stream) == [record.value for record in _RECORDS]


class _Wide:
    """Runs the tasks of a wide epoch in the order of slots, the last one first."""

    job = None

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def execute(self, plan: Plan) -> list[Frame]:
        sent = [inject(self._worker, plan, task) for task in range(plan.tasks)]
        last = []
        for slot in reversed(range(plan.slots)):
            frames = run_level(self._worker, plan, 1, slot, [frames[slot] for frames in sent])
            last.append(frames[slot])
        return last

    def close(self) -> None:
        """Nothing is held."""


class _Thirds(mw.Injector):
    """Three partitions with two records each."""

    def poll(self) -> dict[str, int]:
        return dict.fromkeys("abc", 2)

    def read(self, partition: str, start: Any, end: Any) -> list[mw.Record]:
        return [
            mw.Record(key=partition, value=f"{partition}{n}", timestamp=n) for n in range(start or 0, end)
        ]

    def low_watermark(self, partition: str, offset: Any) -> int:
        return mw.MAX_TIME if offset else mw.MIN_TIME


def test_an_epoch_that_is_forgotten_after_an_error_is_in_no_sink(tmp_path: Path) -> None:
    """The slot that has no interval runs first, and the one that has all of them raises."""
    fixed = [False]

    def picky(c: Hooks, record: mw.Record) -> None:
        if not fixed[0]:
            raise ValueError("not yet")

    p = mw.Pipeline("forgotten")
    p.inject("in", _Thirds()).sink(mw.sinks.JsonLines(tmp_path))
    p.add(Hooks(picky), name="C", inputs={"in": mw.by_key})
    store = MemoryStore(1)
    driver, _ = take(p, store, slots=3, compact_below=0)
    driver.lay_out({1: ([[0, 0]], "a test")})
    plan = driver.next_plan()
    assert plan is not None
    plan = replace(plan, tasks=3, ranges=tuple(replace(r, task=n) for n, r in enumerate(plan.ranges)))
    with pytest.raises(mw.UserCodeError):
        driver.run(plan, _Wide(Worker(driver.graph, driver.numbers, store)))
    store.close()
    fixed[0] = True
    run(p, store)
    assert sorted(record.value for record in mw.sinks.JsonLines(tmp_path).records()) == [
        f"{part}{n}" for part in "abc" for n in range(2)
    ]
