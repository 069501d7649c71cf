"""The order in which an epoch is written, and what is there if it ends between two writes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.errors import FencedError
from millwheel.model.codec import pack
from millwheel.model.graph import build
from millwheel.store.base import Get
from millwheel.store.keyspace import checkpoint_key, interval_key
from millwheel.store.memory import MemoryStore
from millwheel.worker.commit import (
    AlreadyCommitted,
    DeferredWrites,
    EpochMoved,
    Outcome,
    StepCommit,
    StepWrite,
    commit_compact,
    committed,
    touched,
    weak_levels,
)
from millwheel.worker.plan import Interval, Plan
from tests.computations import Echo


class Died(Exception):
    """The process ends here."""


def plan_of(levels: int, epoch: int = 1, sequencer: int = 1) -> Plan:
    """Each level is in a shard of its own, so that no two are one transaction."""
    intervals = tuple((Interval(0, 64, 0, level, sequencer),) for level in range(levels))
    values: dict[str, Any] = {key: {} for key in ("sources", "ignored", "before", "lows", "holds")}
    return Plan(
        epoch=epoch,
        now=0,
        slots=1,
        intervals=intervals,
        ranges=(),
        tasks=0,
        compact=True,
        drain=False,
        budget=1.0,
        due_limit=1,
        **values,
    )


def steps_of(store: MemoryStore, plan: Plan) -> list[StepCommit]:
    return [StepCommit(store, plan, level, part[0]) for level, part in enumerate(plan.intervals, 1)]


def write_of(step: StepCommit, begin: Callable[[], None] = lambda: None) -> StepWrite:
    """The write of a step; ``begin`` is called when it begins."""
    outcome = Outcome({}, [], [], {"level": step.level})
    entry = pack([step.interval.sequencer, step.plan.epoch])
    puts = [(interval_key(step.level, 0), entry), (checkpoint_key(step.level, 0), outcome.to_bytes())]

    def guard(get: Get) -> None:
        begin()
        step.guard(get)

    return StepWrite(step.plan.epoch, step.level, step.shard, puts, [], guard, lambda: None)


def write(step: StepCommit) -> None:
    write_of(step).make()


@given(levels=st.integers(1, 5), weak=st.sets(st.integers(1, 5)), dies=st.integers(0, 7))
def test_a_compact_epoch_commits_strong_levels_from_the_first_and_weak_ones_from_the_last(
    levels: int, weak: set[int], dies: int
) -> None:
    """Wherever it ends: no strong level without its strong senders, no weak one before all that follow."""
    weak = {level for level in weak if level <= levels}
    store, plan = MemoryStore(8), plan_of(levels)
    done: list[Any] = []

    def then(what: Any) -> None:
        if len(done) == dies:
            raise Died
        done.append(what)

    writes = DeferredWrites()
    for step in steps_of(store, plan):
        writes.add(write_of(step, partial(then, step.level)))
    with contextlib.suppress(Died):
        commit_compact(plan, writes.take(plan.epoch), sorted(weak), lambda: then("sinks"))
    strong = [level for level in range(1, levels + 1) if level not in weak]
    whole = [*strong, "sinks", *sorted(weak, reverse=True)]
    assert done == whole[:dies]
    for level in range(1, levels + 1):
        assert committed(store, plan, [level]) == (level in done)
    assert touched(store, plan) == bool(set(done) - {"sinks"})


def test_a_write_that_another_attempt_has_made_begins_a_compact_epoch_again() -> None:
    store, plan = MemoryStore(2), plan_of(2)
    first, second = steps_of(store, plan)
    write(first)
    with pytest.raises(EpochMoved):
        commit_compact(plan, [write_of(second), write_of(first)], (), lambda: None)
    assert not committed(store, plan, [2])
    assert first.answer().report == {"level": 1}


def test_a_step_is_written_once_and_by_its_owner_alone() -> None:
    store = MemoryStore(1)
    (step,) = steps_of(store, plan_of(1, epoch=3, sequencer=5))
    write(step)
    with pytest.raises(AlreadyCommitted):
        write(step)
    for stale in (plan_of(1, epoch=2, sequencer=5), plan_of(1, epoch=4, sequencer=4)):
        with pytest.raises(FencedError):
            write(*steps_of(store, stale))
    write(*steps_of(store, plan_of(1, epoch=4, sequencer=5)))


def test_writes_of_older_epochs_are_dropped_and_those_of_earlier_levels_wait() -> None:
    writes = DeferredWrites()
    store = MemoryStore(4)
    for epoch, level in [(1, 1), (2, 1), (2, 3), (2, 2)]:
        writes.add(write_of(steps_of(store, plan_of(3, epoch))[level - 1]))
    assert [one.level for one in writes.take(2, first=2)] == [3, 2]
    assert [(one.epoch, one.level) for one in writes.take(2)] == [(2, 1)]
    assert writes.take(1) == []


def test_a_level_is_weak_where_all_of_its_computations_are() -> None:
    p = mw.Pipeline("weak")
    p.inject("in", mw.injectors.Records([]))
    p.add(Echo("a"), name="A", inputs={"in": mw.by("k")}, outputs=["a"], strong_productions=False)
    p.add(Echo("b"), name="B", inputs={"a": mw.by("k")}, outputs=["b"])
    p.add(Echo("c"), name="C", inputs={"b": mw.by("k")}, outputs=["c"], strong_productions=False)
    assert weak_levels(build(p)) == (1, 3)
