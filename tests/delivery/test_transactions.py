"""Which writes of a compact epoch are one transaction, and that no promise depends on the merging."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.memory import MemoryShard, MemoryStore
from millwheel.testing import Faults, SimulationFailure, simulate
from millwheel.worker import commit as commit_module
from millwheel.worker.commit import (
    AlreadyCommitted,
    EpochMoved,
    StepWrite,
    commit_compact,
    transactions,
)
from millwheel.worker.step import Worker
from tests.computations import Echo
from tests.simulator import pipelines

_SHARDS = [MemoryShard([]) for _ in range(4)]


def _deferred(level: int, shard: int, changes: int = 0) -> StepWrite:
    puts = [(b"%d" % number, b"") for number in range(changes)]
    return StepWrite(1, level, _SHARDS[shard], puts, [], lambda get: None, lambda: None)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=4))
def test_whatever_the_layout_a_level_is_never_durable_before_one_that_sends_to_it(layout: Any) -> None:
    writes = [_deferred(level, shard) for level, shards in enumerate(layout, 1) for shard in shards]
    found = transactions(writes)
    # No level has two transactions on one shard.
    parts = [{(one.level, id(one.shard)) for one in together} for together in found]
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert sorted(id(one) for part in found for one in part) == sorted(map(id, writes))
    durable: list[StepWrite] = []
    for together in found:
        assert len({id(one.shard) for one in together}) == 1
        durable += together
        for one in together:
            assert all(sender in durable for sender in writes if sender.level < one.level)


def test_each_level_behind_the_first_saves_a_transaction() -> None:
    writes = [_deferred(level, shard) for level in (1, 2, 3) for shard in (0, 1)]
    assert len(transactions(writes)) == 4
    assert len(transactions([_deferred(level, 0) for level in (1, 2, 3)])) == 1
    assert len(transactions([_deferred(1, shard) for shard in range(4)])) == 4


def test_the_intervals_of_a_level_in_one_shard_are_one_transaction_unless_they_are_very_large() -> None:
    layout = [(level, shard) for level in (1, 2) for shard in (0, 1, 0, 1)]
    assert [[(one.level, _SHARDS.index(one.shard)) for one in part] for part in _grouped(layout)] == [
        [(1, 0), (1, 0)],
        [(1, 1), (1, 1), (2, 1), (2, 1)],
        [(2, 0), (2, 0)],
    ]
    large = [_deferred(1, 0, 20_000) for _ in range(5)]
    assert [len(part) for part in transactions([*large, _deferred(2, 0, 20_000)])] == [2, 2, 2]


def _grouped(layout: list[tuple[int, int]]) -> list[list[StepWrite]]:
    return transactions([_deferred(level, shard) for level, shard in layout])


@pytest.mark.parametrize("levels", [(2, 1), (1, 1)], ids=["two levels", "two intervals of a level"])
def test_where_one_of_two_writes_is_refused_neither_is_made(levels: tuple[int, int]) -> None:
    store = MemoryStore(1)

    def refuse(get: Any) -> None:
        raise AlreadyCommitted

    done: list[int] = []
    deferred = []
    for number, level in enumerate(levels):
        puts = [(f"write {number}".encode(), b"")]
        guard = refuse if number else lambda get: None
        durable = partial(done.append, number)
        deferred.append(StepWrite(1, level, store.shards[0], puts, [], guard, durable))
    plan: Any = type("Plan", (), {"epoch": 1})
    with pytest.raises(EpochMoved):
        commit_compact(plan, deferred, (), lambda: None)
    with store.shards[0].snapshot() as snapshot:
        assert not list(snapshot.scan(b"write", b"x"))
    assert not done


def test_a_compact_epoch_of_three_stages_on_two_shards_makes_six_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of which two are the journal's: its plan, and its commit. Without merging there would be eight."""
    p = mw.Pipeline("three")
    p.inject("s0", mw.injectors.Records([mw.Record(value={"k": n}, timestamp=n) for n in range(20)]))
    for n in range(3):
        p.add(Echo(f"s{n + 1}"), name=f"C{n}", inputs={f"s{n}": mw.by("k")}, outputs=[f"s{n + 1}"])
    graph, store = build(p), MemoryStore(2)
    driver = Driver(graph, store, Options(slots=2), clock=lambda: 0, owner="a test")
    plan = driver.next_plan()
    assert plan is not None
    assert plan.compact
    writes: list[Any] = []
    write = MemoryShard.write
    monkeypatch.setattr(
        MemoryShard, "write", lambda self, *rest, **more: (writes.append(self), write(self, *rest, **more))[1]
    )
    driver.run(plan, LocalExecutor(Worker(graph, driver.numbers, store)))
    assert writes.count(store.journal) == 2
    assert len(writes) == 6


def test_a_level_that_is_merged_before_its_senders_are_durable_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The simulator can fail: all levels of a shard are one transaction, whatever the other shards have."""

    def by_shard(strong: Any) -> Any:
        groups: dict[int, list[StepWrite]] = {}
        for one in strong:
            groups.setdefault(id(one.shard), []).append(one)
        return list(groups.values())

    monkeypatch.setattr(commit_module, "transactions", by_shard)
    faults = Faults(kill=0.05, lose=0.2, late=0.0, repeat=0.0, fail=0.0, slow=0.0, cut=0.0, most=20)
    with pytest.raises(SimulationFailure):
        simulate(pipelines.draws, seeds=range(400), faults=faults, check=pipelines.check_draws)
