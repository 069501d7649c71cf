"""The balancer relieves the busiest slot, does not flap, and leaves small loads alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.master.balancer import Balancer, Decision, Estimate, improve
from millwheel.master.intervals import even_intervals, intervals_from
from millwheel.model.keys import TABLETS
from millwheel.worker.plan import Interval, Plan
from millwheel.worker.report import IntervalReport, NodeReport

_PLAN = Plan(
    epoch=1,
    now=0,
    slots=2,
    intervals=(),
    ranges=(),
    tasks=0,
    sources={},
    ignored={},
    before={},
    lows={},
    holds={},
    compact=False,
    drain=False,
    budget=1.0,
    due_limit=1,
    weigh=True,
)

Loads = Sequence[float]


class Running:
    """A level whose tablets take so many seconds an epoch, on however many slots."""

    def __init__(self, loads: Loads, *, slots: int = 2, shards: int = 2, cores: int | None = None) -> None:
        self.loads = list(loads)
        self.shards = shards
        self.balancer = Balancer(slots, shards, cores)
        self.intervals: tuple[Interval, ...] = even_intervals(slots, shards, 1)
        self.now = 0.0
        self.sizes = [0] * TABLETS

    def busiest(self) -> float:
        slots: dict[int, float] = {}
        for i in self.intervals:
            slots[i.slot] = slots.get(i.slot, 0.0) + sum(self.loads[i.first : i.last])
        return max(slots.values())

    def epoch(self, *, compact: bool = False) -> Decision | None:
        """One epoch, a second after the last one; its decision is carried out."""
        self.now += 1.0
        plan = replace(_PLAN, intervals=(self.intervals,), compact=compact, weigh=not compact)
        reports = []
        for i in self.intervals:
            mine = range(i.first, i.last)
            weights = {t: [int(self.loads[t] * 1e6), self.sizes[t]] for t in mine}
            node = NodeReport(weights=weights)
            reports.append(
                IntervalReport(1, i.first, 1, nodes={"C": node}, seconds=sum(self.loads[t] for t in mine))
            )
        self.balancer.observe(plan, reports, self.busiest() + 0.05, self.now)
        decision = self.balancer.decide((self.intervals,), self.now)
        if decision is not None:
            self.intervals = intervals_from(decision.cuts, self.shards, 2)
            self.balancer.changed(self.now)
        return decision

    def epochs(self, count: int) -> list[Decision]:
        return [found for _ in range(count) if (found := self.epoch()) is not None]


def _hot(*tablets: int, each: float = 0.1) -> list[float]:
    return [each if tablet in tablets else 0.0005 for tablet in range(TABLETS)]


def test_hot_tablets_of_one_slot_are_shared_with_the_idle_one() -> None:
    running = Running(_hot(1, 2, 3, 4, 5, 6))
    before = running.busiest()
    (decision,) = running.epochs(10)
    assert decision.level == 1
    assert "slot 0" in decision.why
    assert running.busiest() < 0.6 * before


def test_nothing_is_decided_before_the_layout_was_weighed_twice() -> None:
    running = Running(_hot(1, 2, 3, 4))
    assert running.epochs(1) == []
    assert len(running.epochs(1)) == 1


def test_epochs_of_half_a_second_all_weigh_and_short_ones_seldom() -> None:
    running = Running(_hot(1, 2, 3, 4, each=0.2))
    assert running.balancer.weighs(running.now)
    running.epoch()
    assert running.balancer.weighs(running.now), "the next one is planned in the same moment"
    running.loads = _hot(1, each=0.01)
    running.epoch()
    assert not running.balancer.weighs(running.now)
    assert running.balancer.weighs(running.now + 0.5)


def test_one_hot_tablet_is_left_alone_but_what_is_beside_it_goes() -> None:
    loads = _hot(3, each=0.5)
    running = Running(loads)
    running.epochs(20)
    assert running.busiest() < 0.54
    owner = next(i.slot for i in running.intervals if i.first <= 3 < i.last)
    assert owner == 0
    assert running.epochs(20) == []


def test_an_even_load_is_never_changed() -> None:
    assert Running([0.01] * TABLETS, slots=4, shards=4).epochs(30) == []


def test_small_loads_are_never_changed() -> None:
    assert Running([cost / 100 for cost in _hot(1, 2, 3)]).epochs(30) == []


def test_compact_epochs_decide_nothing() -> None:
    running = Running(_hot(1, 2, 3, 4))
    assert [running.epoch(compact=True) for _ in range(30)] == [None] * 30


def test_a_hot_range_that_shifts_is_followed() -> None:
    running = Running(_hot(1, 2, 3, 4))
    running.epochs(10)
    running.loads = _hot(50, 51, 52, 53)
    worst = running.busiest()
    assert running.epochs(20)
    assert running.busiest() < 0.6 * worst


def test_changes_are_seconds_apart() -> None:
    running = Running(_hot(1, 2, 3, 4))
    times = []
    for epoch in range(60):
        running.loads = _hot(*range(epoch % 60, epoch % 60 + 4))
        if running.epoch() is not None:
            times.append(running.now)
    assert len(times) > 1
    assert min(b - a for a, b in itertools.pairwise(times)) >= 3.0


def test_a_pipeline_at_rest_goes_back_to_the_fewest_intervals() -> None:
    running = Running(_hot(1, 2, 3, 4))
    running.epochs(10)
    assert len(running.intervals) > 2
    found = [running.epoch(compact=True) for _ in range(70)]
    assert sum(decision is not None for decision in found) == 1
    assert running.intervals == even_intervals(2, 2, 2)


def test_slots_that_share_few_cores_need_no_evening_out() -> None:
    """Eight slots on one core take the sum, whoever has the work."""
    assert Running(_hot(1, 2, 3), slots=8, shards=8, cores=1).epochs(20) == []


def test_state_decides_between_choices_that_are_alike() -> None:
    """Both hot tablets are as good to give away; the one with the state makes the other slot its home."""
    loads = [0.0] * TABLETS
    loads[0] = loads[31] = 0.3
    sizes = [0] * TABLETS
    sizes[0] = 10**9
    sizes[40] = 10**9
    estimate = Estimate(even_intervals(2, 2, 1), loads, 2, 2, 2)
    after = improve(estimate, sizes)
    assert after.slot_of[0] != after.slot_of[31]
    assert after.slot_of[0] != after.slot_of[40]


_costs = st.lists(st.floats(0, 1), min_size=TABLETS, max_size=TABLETS)


@settings(max_examples=60, deadline=None)
@given(_costs, st.sampled_from([(2, 2), (3, 4), (4, 4), (8, 2), (16, 16), (5, 1)]))
def test_an_improvement_loses_no_tablet_and_burdens_nobody(
    costs: list[float], shape: tuple[int, int]
) -> None:
    slots, shards = shape
    before = Estimate(even_intervals(slots, shards, 1), costs, slots, shards, slots)
    after = improve(before, [0] * TABLETS)
    assert max(after.loads) <= max(before.loads) + 1e-9
    found = intervals_from(after.cuts(), shards, 1)
    assert [t for i in found for t in range(i.first, i.last)] == list(range(TABLETS))
    per_shard = TABLETS // shards
    assert all(i.first // per_shard == (i.last - 1) // per_shard == i.shard for i in found)
    assert all(0 <= i.slot < slots for i in found)


@settings(max_examples=60, deadline=None)
@given(_costs, st.sampled_from([(2, 2), (3, 4), (4, 4), (8, 2)]))
def test_a_steady_load_brings_the_layout_to_rest(costs: list[float], shape: tuple[int, int]) -> None:
    running = Running(costs, slots=shape[0], shards=shape[1])
    running.epochs(15)
    assert running.epochs(15) == []
