"""Semantics 12: windows of windows, and that a window closes as deep as the graph goes in one epoch."""

from __future__ import annotations

import pytest

import millwheel as mw
from tests.computations import Log, Windower, values
from tests.conftest import MakeHarness


class Roller(mw.Computation):
    """Adds up the counts of windows in larger windows."""

    def __init__(self, size: int) -> None:
        self.size = size

    def process_record(self, record: mw.Record) -> None:
        bucket = record.timestamp // self.size
        self.state[bucket] = self.state.get(bucket, 0) + record.value["count"]
        self.set_timer(str(bucket), (bucket + 1) * self.size)

    def process_timer(self, timer: mw.Timer) -> None:
        count = self.state.pop(int(timer.tag))
        self.produce("rolled", {"window": int(timer.tag), "count": count}, timestamp=timer.timestamp - 1)


def windows_of_windows(stamp: int) -> mw.Pipeline:
    p = mw.Pipeline("rollup")
    p.inject("in", mw.injectors.Records([]))
    p.add(Windower(stamp=stamp), inputs={"in": mw.by("user")}, outputs=["windows"])
    p.add(Roller(10 * mw.SECOND), inputs={"windows": lambda record: "all"}, outputs=["rolled"])
    return p


def test_a_window_two_re_keyed_levels_deep_closes_in_the_same_epoch(harness: MakeHarness) -> None:
    h = harness(windows_of_windows(stamp=-1))
    for n in range(20):
        h.send("in", {"user": n % 3}, timestamp=n * mw.SECOND)
    h.advance("in", 10 * mw.SECOND)
    assert values(h.output("rolled")) == [{"window": 0, "count": 10}]
    h.advance("in", 20 * mw.SECOND)
    assert values(h.output("rolled")) == [{"window": 0, "count": 10}, {"window": 1, "count": 10}]


def test_a_window_stamped_with_its_end_falls_into_the_next_window_downstream(harness: MakeHarness) -> None:
    h = harness(windows_of_windows(stamp=0))
    for n in range(10):
        h.send("in", {"user": 0}, timestamp=n * mw.SECOND)
    h.advance("in", 10 * mw.SECOND)
    assert values(h.output("rolled")) == [{"window": 0, "count": 9}]
    h.drain()
    assert values(h.output("rolled")) == [{"window": 0, "count": 9}, {"window": 1, "count": 1}]


@pytest.mark.parametrize("stamp", [0, -1])
def test_a_window_stamped_with_its_end_or_just_before_is_not_late_downstream(
    stamp: int, harness: MakeHarness
) -> None:
    p = mw.Pipeline("stamps")
    p.inject("in", mw.injectors.Records([]))
    p.add(Windower(stamp=stamp), inputs={"in": mw.by_key}, outputs=["windows"])
    p.add(Log(), inputs={"windows": lambda record: "all"}, outputs=["log"], late="drop")
    h = harness(p)
    for n in range(10):
        h.send("in", n, timestamp=n * mw.SECOND)
        h.advance("in", n * mw.SECOND)
    h.drain()
    assert len(h.output("log")) == 10
    assert h.status().late["Log"] == 0


def test_a_window_in_the_same_epoch_as_its_records_and_its_watermark_is_complete(
    harness: MakeHarness,
) -> None:
    h = harness(windows_of_windows(stamp=-1))
    with h.epoch():
        h.advance("in", 10 * mw.SECOND)
        for n in range(10):
            h.send("in", {"user": n}, timestamp=n * mw.SECOND)
    assert values(h.output("rolled")) == [{"window": 0, "count": 10}]
