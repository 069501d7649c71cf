"""Semantics 13: a percentile low watermark is a position among all pending timestamps, each counted once."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import pytest

import millwheel as mw
from tests.computations import Hooks, Windower

KEYS = [f"key {n}" for n in range(12)]


def obey(c: Hooks, record: mw.Record) -> None:
    """Sets and clears timers and holds as the record says."""
    for what, tag, time in record.value:
        if what == "timer":
            c.set_timer(tag, time)
        elif what == "clear":
            c.clear_timer(tag)
        elif what == "wall":
            c.set_timer(tag, time, mw.WALL)
        elif what == "hold":
            c.hold(time, tag)
        else:
            c.release(tag)


def pipeline(percentile: Any, extractor: Any = None) -> mw.Pipeline:
    """Behind the one that obeys is one whose input watermark is its percentile watermark."""
    p = mw.Pipeline("percentiles")
    p.inject("in", mw.injectors.Records([]))
    p.add(Hooks(obey), name="First", inputs={"in": mw.by_key}, outputs=["out"])
    by = extractor or (lambda record: "all")
    p.add(Windower(size=10), name="Second", inputs={"out": by}, outputs=["windows"], watermark=percentile)
    return p


def expected(percentile: Any, pending: list[int], reached: int) -> int:
    """The definition."""
    if not pending:
        return reached
    place = math.floor((1 - Fraction(str(percentile))) * len(pending))
    return min(reached, sorted(pending)[place])


def reached(h: mw.testing.Harness) -> int:
    return h.status().input_watermarks["Second"]


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_position_among_all_timers_and_holds_of_all_keys(
    seed: int, slots: int, chained: bool
) -> None:
    draw = random.Random(seed)
    percentile = draw.choice([0.5, 0.75, 0.9, 0.99])
    h = mw.testing.Harness(pipeline(percentile, mw.by_key if chained else None), slots=slots)
    timers: dict[tuple[str, str], int] = {}
    holds: dict[tuple[str, str], int] = {}
    at = highest = mw.MIN_TIME
    time = 0
    for _ in range(25):
        with h.epoch():
            for _ in range(draw.randrange(6)):
                key, tag = draw.choice(KEYS), draw.choice("abc")
                what = draw.choice(["timer", "timer", "hold", "hold", "clear", "release", "wall"])
                when = time + draw.randrange(1, 80)
                h.send("in", [[what, tag, when]], timestamp=time, key=key)
                if what in ("timer", "clear", "wall"):
                    timers.pop((key, tag), None)
                else:
                    holds.pop((key, tag), None)
                if what == "timer":
                    timers[key, tag] = when
                elif what == "hold":
                    holds[key, tag] = when
            if draw.random() < 0.6:
                time += draw.randrange(30)
                at = time
                h.advance("in", at)
        timers = {name: when for name, when in timers.items() if when > at}
        highest = max(highest, expected(percentile, [*timers.values(), *holds.values()], at))
        assert reached(h) == highest
        if draw.random() < 0.2:
            h.crash()


@pytest.mark.parametrize(
    ("percentile", "count", "left"), [(0.9, 10, 1), (0.7, 10, 3), (0.99, 100, 1), (0.9, 9, 0)]
)
def test_the_percentage_is_meant_as_it_is_written(percentile: float, count: int, left: int) -> None:
    h = mw.testing.Harness(pipeline(percentile))
    for n in range(count):
        h.send("in", [["hold", "", 100 + n]], timestamp=0, key=str(n))
    h.advance("in", 1_000)
    assert reached(h) == 100 + left


def test_each_timer_of_a_key_counts() -> None:
    h = mw.testing.Harness(pipeline(0.9), slots=2)
    h.send("in", [["timer", str(n), 1_000 + n] for n in range(30)], timestamp=0, key="many")
    h.send("in", [["hold", str(n), 50 + n] for n in range(3)], timestamp=0, key="few")
    h.advance("in", 500)
    assert reached(h) == expected(0.9, [50, 51, 52, *range(1_000, 1_030)], 500) == 500
    h.send("in", [["hold", "one more", 60]], timestamp=500, key="few")
    assert reached(h) == 500, "it never goes back"


def test_it_moves_in_an_idle_pipeline() -> None:
    h = mw.testing.Harness(pipeline(0.5), slots=3)
    for n, key in enumerate(KEYS):
        h.send("in", [["hold", "", 100 + 10 * n]], timestamp=0, key=key)
    for at in (50, 120, 155, 1_000):
        h.advance("in", at)
        assert reached(h) == min(at, 160)


def test_a_step_reads_no_more_timestamps_than_it_needs() -> None:
    h = mw.testing.Harness(pipeline(0.9))
    with h.epoch():
        for n in range(500):
            h.send("in", [["timer", "t", 10_000 + n]], timestamp=0, key=str(n))
    h.advance("in", 5)
    (mark,) = h.driver.authority.intervals("First").values()
    total, times, _, known = mark.pending
    assert (total, len(times), known) == (500, 64, 10_064)


def test_a_drain_brings_it_to_its_end_whatever_is_held() -> None:
    h = mw.testing.Harness(pipeline(0.9), slots=2, due_limit=1)
    for n, key in enumerate(KEYS):
        h.send("in", [["hold", "", 100 + n], ["timer", "t", 500]], timestamp=0, key=key)
    h.advance("in", 300)
    assert reached(h) == 102
    h.drain()
    assert reached(h) == mw.MAX_TIME
