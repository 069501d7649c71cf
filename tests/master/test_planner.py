"""The planner against a naive statement of its rules: when there is an epoch, and which one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.master.planner import Limits, Mode, Situation, ceiling, make_plan
from millwheel.model.names import SourceName
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.watermark.source import SourceMark
from millwheel.worker.plan import Interval, Plan, Range

IN = SourceName("in")
HALVES = ((Interval(0, 32, 0, 0, 1), Interval(32, 64, 1, 1, 1)),)
LIMITS = Limits(compact_below=100, due_limit=7, budget=2.5)

RANGES = st.lists(
    st.builds(
        Range, st.just(IN), st.sampled_from("ab"), st.none(), st.just(5), st.integers(0, 3), *[st.just(0)] * 2
    ),
    max_size=3,
).map(tuple)
SITUATIONS = st.builds(
    Situation,
    epoch=st.integers(0, 9),
    now=st.integers(0, 5),
    slots=st.just(2),
    intervals=st.just(HALVES),
    settled=st.booleans(),
    ranges=RANGES,
    size=st.integers(0, 150),
    sources=st.booleans().map(lambda final: {IN: SourceMark(MIN_TIME, MAX_TIME, MIN_TIME, None, final)}),
    ignored=st.just({}),
    inputs=st.just({"A": 3}),
    lows=st.just({"A": 2}),
    holds=st.sampled_from([{}, {"A": {0: 5, 32: 4}}]),
    pending=st.just({}),
    continued=st.booleans(),
    more_due=st.booleans(),
    left=st.integers(0, 150),
    draining=st.booleans(),
    fired=st.integers(0, 150),
    due=st.booleans(),
    timers=st.integers(0, 150),
    next_wall=st.integers(0, 9),
    relogs=st.booleans(),
    weighs=st.booleans(),
).map(lambda s: replace(s, continued=s.more_due or s.left > 0))
MODES = st.sampled_from(list(Mode))


def reasons(s: Situation, mode: Mode) -> list[str]:
    """Why there is an epoch."""
    found = {
        "something is read": bool(s.ranges),
        "due timers were left": s.more_due,
        "records were left": s.left > 0,
        "a timer or a record becomes due": s.due,
        "a wall timer is due": s.now >= s.next_wall and mode is not Mode.FINISH,
        "new intervals are to report": not s.settled,
        "somebody wants it": mode is Mode.FORCED,
        "holds are over": mode is Mode.DRAIN or mode is Mode.END_HOLDS,
    }
    return [why for why, so in found.items() if so]


@given(SITUATIONS, MODES)
def test_there_is_an_epoch_where_there_is_a_reason_for_one(situation: Situation, mode: Mode) -> None:
    assert (make_plan(situation, LIMITS, mode) is not None) == bool(reasons(situation, mode))


def plan_of(situation: Situation, mode: Mode = Mode.FORCED, limits: Limits = LIMITS) -> Plan:
    plan = make_plan(situation, limits, mode)
    assert plan is not None
    return plan


@given(SITUATIONS, st.sampled_from([Mode.FORCED, Mode.DRAIN, Mode.END_HOLDS]))
def test_a_plan_says_what_was_known_and_nothing_else(situation: Situation, mode: Mode) -> None:
    plan = plan_of(situation, mode)
    assert plan.epoch == situation.epoch + 1
    assert plan.now == situation.now
    assert (plan.slots, plan.intervals, plan.ranges) == (2, HALVES, situation.ranges)
    assert plan.tasks == len(range(max([-1, *(item.task for item in situation.ranges)]) + 1))
    assert (plan.before, plan.lows) == (situation.inputs, situation.lows)
    assert (plan.budget, plan.due_limit) == (2.5, 7)
    assert plan.ends_holds == (mode is Mode.END_HOLDS)
    assert plan.weigh == (situation.weighs and not plan.compact)
    assert Plan.from_bytes(plan.to_bytes()) == plan


@given(SITUATIONS, MODES)
def test_holds_are_over_in_a_drain_and_in_what_continues_one(situation: Situation, mode: Mode) -> None:
    plan = make_plan(situation, LIMITS, mode)
    if plan is not None:
        asked = mode in (Mode.DRAIN, Mode.END_HOLDS)
        assert plan.drain == (asked or (situation.draining and (situation.more_due or situation.left > 0)))


@given(SITUATIONS, st.sampled_from([-1, 0, 1, 100, 1_000]))
def test_an_epoch_is_compact_where_all_that_is_expected_is_little(situation: Situation, most: int) -> None:
    plan = plan_of(situation, limits=replace(LIMITS, compact_below=most))
    expected = [situation.size + situation.left + situation.fired]
    if situation.due and situation.sources[IN].final:
        expected.append(situation.timers)  # event time ends: all of them
    little = all(count <= most for count in expected)
    assert plan.compact == (most > 0 and not situation.more_due and little)


@given(SITUATIONS)
def test_holds_of_intervals_that_were_changed_are_in_none_of_the_new_ones(situation: Situation) -> None:
    plan = plan_of(situation)
    if situation.settled:
        assert plan.holds == situation.holds
    else:
        assert {name: min(found.values()) for name, found in plan.holds.items()} == {
            name: min(found.values()) for name, found in situation.holds.items()
        }
        firsts = {interval.first for level in plan.intervals for interval in level}
        assert not any(first in firsts for found in plan.holds.values() for first in found)


@given(
    st.dictionaries(st.sampled_from("ABC"), st.integers(-5, 50)),
    st.none() | st.integers(0, 20),
    st.sets(st.sampled_from("ABC")),
)
def test_nothing_is_read_that_is_further_than_the_skew_from_the_slowest(
    lows: dict[str, int], skew: int | None, besides: set[str]
) -> None:
    limit = ceiling(lows, skew, besides)
    counted = [low for name, low in lows.items() if name not in besides]
    if skew is None or not counted:
        assert limit == MAX_TIME
    else:
        assert all(limit - low <= skew for low in counted)
        assert any(limit - low == skew for low in counted)


@pytest.mark.parametrize("unknown", [MIN_TIME, MAX_TIME])
def test_a_computation_that_has_no_watermark_yet_or_is_at_its_end_limits_nothing(unknown: int) -> None:
    assert ceiling({"A": unknown}, 10) == MAX_TIME


MODE_TABLE: dict[Mode, tuple[Any, ...]] = {
    Mode.NORMAL: (True, False, False),
    Mode.FORCED: (True, True, False),
    Mode.OVER_SKEW: (True, False, False),
    Mode.FINISH: (False, False, False),
    Mode.DRAIN: (True, True, True),
    Mode.END_HOLDS: (True, True, True),
}


@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.value)
def test_a_mode_says_whether_it_reads_runs_in_any_case_and_drains(mode: Mode) -> None:
    assert (mode.reads, mode.runs, mode.drains) == MODE_TABLE[mode]
