"""Intervals change while a pipeline runs, and nothing is lost, doubled, late or forgotten by it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.errors import FencedError
from millwheel.master.assignment import KEPT
from millwheel.master.balancer import Balancer, Decision
from millwheel.master.driver import Driver
from millwheel.master.intervals import Cuts, cuts_of
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.codec import unpack
from millwheel.model.graph import build
from millwheel.model.keys import TABLETS
from millwheel.model.names import SourceName
from millwheel.store.keyspace import after
from millwheel.store.memory import MemoryStore
from millwheel.store.tools.check import check
from millwheel.worker.commit import StepCommit
from millwheel.worker.step import Worker
from tests.watermarks.held_layout import BACK, FRONT
from tests.watermarks.held_layout import Running as Held

_SHARDS = 4


class Windows(mw.Computation):
    """Sums by window; a key holds the watermark while it has seen an odd number of records."""

    def process_record(self, record: mw.Record) -> None:
        assert not record.late
        window = record.timestamp // 100
        self.state[window] = self.state.get(window, 0) + 1
        self.set_timer(str(window), (window + 1) * 100)
        if sum(n for n in self.state.values()) % 2:
            self.hold(record.timestamp, "odd")
        else:
            self.release("odd")

    def process_timer(self, timer: mw.Timer) -> None:
        self.release("odd")
        self.produce("windows", [self.key, self.state.pop(int(timer.tag))], timestamp=timer.timestamp - 1)


class Totals(mw.Computation):
    """Adds the windows up, all together."""

    def process_record(self, record: mw.Record) -> None:
        self.state["sum"] = self.state.get("sum", 0) + record.value[1]
        self.set_timer("end", 10_000)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("totals", self.state["sum"])


class Running:
    """Two levels on one store, driven by hand; restarted with whatever slots."""

    def __init__(
        self, slots: int = 2, records: int = 120, balancer: Balancer | None = None, **options: Any
    ) -> None:
        self.sink, self.totals = mw.sinks.Collect(), mw.sinks.Collect()
        p = mw.Pipeline("laid out")
        source = random.Random(4)
        sent = [
            mw.Record(key=f"key {source.randrange(40)}", value=None, timestamp=i * 5) for i in range(records)
        ]
        p.inject("records", mw.injectors.Records(sent, per_epoch=10))
        p.add(Windows(), inputs={"records": mw.by_key}, outputs=["windows"])
        p.add(Totals(), inputs={"windows": lambda record: "all"}, outputs=["totals"])
        p.sink("windows", self.sink)
        p.sink("totals", self.totals)
        self.graph, self.store, self.options = build(p), MemoryStore(_SHARDS), options
        self.balancer = balancer
        self.start(slots)

    def start(self, slots: int) -> None:
        self.store.close()
        self.driver = Driver(
            self.graph,
            self.store,
            Options(slots=slots, **self.options),
            clock=lambda: 0,
            owner="a test",
            balancer=self.balancer,
        )
        self.executor = LocalExecutor(Worker(self.graph, self.driver.numbers, self.store))

    def epoch(self) -> bool:
        plan = self.driver.next_plan_to_the_end()
        if plan is not None:
            self.driver.run(plan, self.executor)
        return plan is not None

    def end(self) -> tuple[list[tuple[str, int, Any]], list[Any]]:
        while self.epoch():
            pass
        assert check(self.store).problems == []
        assert set(self.driver.authority.lows.values()) == {mw.MAX_TIME}
        windows = sorted((r.key, r.timestamp, r.value[1]) for r in self.sink.records)
        return windows, [r.value for r in self.totals.records]


_UNDISTURBED = Running().end()
_SPLIT: Cuts = [[0, 0], [8, 1], [16, 0], [40, 1]]


def _reshape(running: Running, cuts: Cuts, *levels: int, why: str = "a test") -> None:
    running.driver.lay_out({level: (cuts, why) for level in levels or (1,)})


@st.composite
def _layouts(draw: Any) -> list[list[int]]:
    firsts = draw(st.sets(st.integers(1, TABLETS - 1), max_size=7))
    return [[first, draw(st.integers(0, 1))] for first in sorted({0, *firsts})]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(_layouts(), st.sampled_from([(1,), (2,), (1, 2)]), st.booleans()), max_size=12))
def test_the_output_is_that_of_a_run_without_changes(changes: list[Any]) -> None:
    running = Running()
    lows: dict[str, int] = {}
    for cuts, levels, restart in changes:
        running.epoch()
        for name, low in running.driver.authority.lows.items():
            assert low >= lows.get(name, low), "a watermark went back"
            lows[name] = low
        _reshape(running, cuts, *levels)
        if restart:
            running.start(2)
    assert running.end() == _UNDISTURBED


@pytest.mark.parametrize("order", [(1, 8, 3), (3, 1, 8), (8, 2, 5)])
@pytest.mark.parametrize("live", [False, True])
def test_a_store_is_rescaled_with_timers_and_holds_pending(order: tuple[int, ...], live: bool) -> None:
    running = Running(slots=order[0])
    for slots in (*order[1:], *order):
        for _ in range(2):
            running.epoch()
        if live:
            running.driver.rescale(slots)
        else:
            running.start(slots)
        assert running.driver.layout.slots == slots
        assert {i.slot for i in running.driver.layout.intervals[0]} == set(range(slots))
    assert running.end() == _UNDISTURBED


def test_a_slow_step_s_records_are_found_by_whoever_has_their_tablet_then() -> None:
    running = Running(slots=2, step_budget=0.0)
    for cuts in (_SPLIT, [[0, 1]], [[0, 0], [1, 1], [2, 0], [3, 1]], [[0, 0], [32, 1]]):
        running.epoch()
        while not running.driver.authority.left:  # what the last one left was all that there was
            running.epoch()
        _reshape(running, cuts)
    windows, totals = running.end()
    assert sum(count for _, _, count in windows) == 120
    assert totals == [120]


def test_a_restart_goes_on_with_the_layout() -> None:
    running = Running()
    running.epoch()
    _reshape(running, _SPLIT)
    running.epoch()
    running.start(2)
    assert cuts_of(running.driver.layout.intervals[0]) == [[0, 0], [8, 1], [16, 0], [32, 0], [40, 1], [48, 1]]
    assert cuts_of(running.driver.layout.intervals[1]) == [[0, 0], [16, 0], [32, 1], [48, 1]]
    assert running.driver.layout.settled, "its watermarks are those of these intervals"
    running.start(3)
    assert len({i.slot for i in running.driver.layout.intervals[0]}) == 3, "with other slots it is cut anew"
    assert not running.driver.layout.settled
    assert running.end() == _UNDISTURBED


def test_a_crash_between_change_and_plan_leaves_the_change_to_the_next_driver() -> None:
    running = Running()
    running.epoch()
    _reshape(running, _SPLIT)
    running.start(2)
    assert not running.driver.layout.settled
    assert running.end() == _UNDISTURBED


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("committed", [0, 2, 5])
def test_a_plan_on_a_new_layout_is_run_again_on_it(slots: int, committed: int) -> None:
    """The driver dies in the first epoch after a change, when some of its intervals have committed."""
    running = Running()
    running.epoch()
    _reshape(running, _SPLIT, 1, 2)
    plan = running.driver.next_plan()
    assert plan is not None
    running.driver.journal.plan(plan, running.graph)
    worker = Worker(running.graph, running.driver.numbers, running.store)
    for index in range(committed):
        worker.step(plan, 2, index, {"Windows": 0, SourceName("records"): 0}, [])
    running.start(slots)
    again = running.driver.next_plan()
    assert again is not None
    assert [cuts_of(part) for part in again.intervals] == [cuts_of(part) for part in plan.intervals]
    if not committed:
        running.driver.recovering = again
        assert running.end() == _UNDISTURBED


def test_changed_intervals_get_a_new_sequencer_and_others_keep_theirs() -> None:
    running = Running()
    running.epoch()
    before = {i.first: i for i in running.driver.layout.intervals[0]}
    _reshape(running, [[0, 0], [8, 0], [32, 1]])
    now = {i.first: i for i in running.driver.layout.intervals[0]}
    assert now[0].sequencer == now[8].sequencer > before[0].sequencer
    assert now[32] == before[32]
    assert running.driver.layout.sequencer == now[0].sequencer


def test_a_new_interval_has_an_entry_before_any_plan_names_it() -> None:
    """So a driver that starts after a plan was forgotten finds and fences it, whatever its own layout."""
    running = Running()
    running.epoch()
    _reshape(running, _SPLIT)
    for interval in running.driver.layout.intervals[0]:
        with running.store.shards[interval.shard].snapshot() as snapshot:
            entry = snapshot.get(b"M" + bytes((1, interval.first)))
        assert entry is not None
        assert unpack(entry)[0] == interval.sequencer
    running.start(3)
    with running.store.shards[0].snapshot() as snapshot:
        assert unpack(snapshot.get(b"M\x01\x08") or b"")[0] == running.driver.layout.sequencer


def test_who_worked_for_an_interval_that_is_no_more_can_write_nothing() -> None:
    running = Running()
    running.epoch()
    _reshape(running, _SPLIT)
    plan = running.driver.next_plan()
    assert plan is not None
    running.driver.run(plan, running.executor)
    _reshape(running, [[0, 0], [32, 1]])
    shard = running.store.shards[0]
    with shard.snapshot() as snapshot:
        for interval in plan.intervals[0]:
            if interval.shard == 0 and interval.first in (0, 8):
                with pytest.raises(FencedError):
                    StepCommit(running.store, plan, 1, interval).state(snapshot.get)
    assert running.end() == _UNDISTURBED


def test_what_an_interval_that_is_no_more_left_refuses_no_new_one_and_keeps_no_checkpoint() -> None:
    running = Running()
    for cuts in (_SPLIT, [[0, 0], [32, 1]], _SPLIT, [[0, 1]], [[0, 0], [32, 1]]):
        running.epoch()
        _reshape(running, cuts)
    running.epoch()
    firsts = {i.first for i in running.driver.layout.intervals[0]}
    for shard in running.store.shards:
        with shard.snapshot() as snapshot:
            checkpoints = {key[2] for key, _ in snapshot.scan(b"P\x01", after(b"P\x01"))}
            entries = {key[2]: unpack(value) for key, value in snapshot.scan(b"M\x01", after(b"M\x01"))}
        assert checkpoints <= firsts
        assert all(epoch == 0 for first, (_, epoch) in entries.items() if first not in firsts)
    assert running.end() == _UNDISTURBED


def test_a_driver_that_was_taken_over_changes_nothing() -> None:
    running = Running()
    running.epoch()
    old = running.driver
    running.start(2)
    with pytest.raises(FencedError):
        old.lay_out({1: (_SPLIT, "too late")})
    assert "changes" not in running.driver.journal.layout()
    assert running.end() == _UNDISTURBED


def test_a_change_whose_write_is_made_again_is_our_own() -> None:
    """A store that was cut off writes once more, not knowing whether it had."""
    running = Running()
    running.epoch()
    journal = running.store.journal
    write = journal.write

    def twice(puts: Any, deletes: Any = (), guard: Any = None) -> None:
        write(list(puts), list(deletes), guard)
        write(list(puts), list(deletes), guard)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "write", twice)
        _reshape(running, _SPLIT)
    assert running.end() == _UNDISTURBED


def test_changes_are_told_with_reason_before_and_after_and_counted() -> None:
    running = Running()
    running.epoch()
    _reshape(running, [[0, 0], [8, 1], [16, 0], [32, 1]], why="tablet 8 was hot")
    report = running.driver.report()
    (change,) = report.changes
    assert (change["level"], change["epoch"], change["why"]) == (1, 1, "tablet 8 was hot")
    assert change["before"] == [[0, 0], [16, 0], [32, 1], [48, 1]]
    assert change["after"] == [[0, 0], [8, 1], [16, 0], [32, 1], [48, 1]]
    assert report.intervals == {"moved": 1, "split": 1, "merged": 0}
    _reshape(running, [[0, 0], [32, 1]])
    assert running.driver.report().intervals == {"moved": 2, "split": 1, "merged": 1}
    assert "tablet 8 was hot" not in str(running.driver.report())
    running.epoch()
    running.start(2)
    assert [found["why"] for found in running.driver.report().changes] == ["tablet 8 was hot", "a test"]


def test_only_the_last_changes_are_kept() -> None:
    running = Running()
    for number in range(KEPT + 5):
        _reshape(running, [[0, number % 2], [32, 1]], why=str(number))
    assert [found["why"] for found in running.driver.report().changes] == [
        str(number) for number in range(5, KEPT + 5)
    ]


def test_a_hold_keeps_chained_timers_while_its_interval_is_split_and_merged() -> None:
    running = Held(slots=1)
    running.send(BACK, "hold", 5)
    running.send(FRONT, "timer", 20)
    running.settle()
    running.injector.watermark = 50
    for cuts in ([[0, 0], [21, 0], [40, 0]], [[0, 0]], [[0, 0], [50, 0]]):
        running.settle()
        assert running.driver.authority.lows == {"Up": 5, "Down": 5}
        running.driver.lay_out({1: (cuts, "a test")})
        assert running.driver.next_plan() is not None, "new intervals are to report, though nothing is due"
    running.settle()
    assert running.driver.authority.lows == {"Up": 5, "Down": 5}
    assert running.seen == [[FRONT, "timer", False]]
    running.send(BACK, "release")
    running.settle()
    assert [FRONT, "fired", 20] in running.seen


class _Eager(Balancer):
    """Splits something after every epoch."""

    def decide(self, intervals: Any, now: float) -> Decision:
        number = len(intervals[0])
        return Decision(1, "eager", [[0, 0], [1 + number % 60, 1]])


def test_the_driver_does_what_its_balancer_says_between_two_epochs() -> None:
    running = Running(balancer=_Eager(2, _SHARDS))
    assert running.end() == _UNDISTURBED
    assert sum(running.driver.report().intervals.values()) > 5
