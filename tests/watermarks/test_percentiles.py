"""Percentile low watermarks: timers that do not wait for stragglers."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.store.memory import MemoryStore
from tests.computations import Hooks, Windower
from tests.watermarks.partitions import Partitions, Running


def held(percentile: float, **options: Any) -> mw.Pipeline:
    """Each record holds the watermark at its timestamp; a window behind waits for a share of them."""
    p = mw.Pipeline("held")
    p.inject("in", mw.injectors.Records([]))

    def on_record(c: Hooks, record: mw.Record) -> None:
        if record.value == "release":
            c.release()
        else:
            c.hold(record.timestamp)
            c.produce("out", "one")

    p.add(Hooks(on_record), name="First", inputs={"in": mw.by_key}, outputs=["out"])
    p.add(
        Windower(size=100),
        inputs={"out": lambda record: "all"},
        outputs=["windows"],
        watermark=percentile,
        **options,
    )
    return p


def sent(percentile: float, **options: Any) -> mw.testing.Harness:
    """Two hundred keys hold at 1,000 and one at 5."""
    h = mw.testing.Harness(held(percentile, **options))
    with h.epoch():
        h.send("in", 1, timestamp=5, key="straggler")
        for number in range(200):
            h.send("in", 1, timestamp=1_000, key=str(number))
    h.advance("in", 2_000)
    return h


def test_the_exact_watermark_waits_for_the_last() -> None:
    h = sent(1.0)
    assert h.low_watermark("Windower") == 5
    assert h.output("windows") == []


def test_the_percentile_watermark_leaves_a_straggler_behind() -> None:
    h = sent(0.99)
    assert [record.timestamp for record in h.output("windows")] == [100]
    assert h.status().input_watermarks["Windower"] == 1_000


def test_the_exact_watermark_stays_available_beside_it() -> None:
    h = sent(0.99)
    assert h.low_watermark("Windower") == h.low_watermark("First") == 5


def test_it_does_not_leave_more_than_its_share_behind() -> None:
    h = mw.testing.Harness(held(0.99))
    with h.epoch():
        for number in range(50):
            h.send("in", 1, timestamp=5 + number // 25, key=str(number))
    h.advance("in", 2_000)
    assert h.status().input_watermarks["Windower"] == 5


def test_records_behind_it_are_late_and_follow_the_late_policy() -> None:
    h = sent(0.99, late="drop")
    h.send("in", 1, timestamp=50, key="straggler")
    assert h.status().late["Windower"] == 1
    assert h.status().dropped["Windower"] == 1
    h = sent(0.99, late="divert")
    h.send("in", 1, timestamp=50, key="straggler")
    assert [record.timestamp for record in h.output("Windower.late")] == [50]


def test_it_never_goes_back_also_across_a_crash() -> None:
    h = sent(0.99)
    h.crash()
    assert h.status().input_watermarks["Windower"] == 1_000
    with h.epoch():
        for number in range(300):
            h.send("in", 1, timestamp=500, key=f"more {number}")
    h.crash()
    assert h.status().input_watermarks["Windower"] == 1_000


def test_a_drain_brings_it_to_its_end() -> None:
    h = sent(0.99)
    h.drain()
    assert h.low_watermark("Windower") == mw.MAX_TIME
    assert sum(record.value["count"] for record in h.output("windows")) == 201


@pytest.mark.parametrize("slots", [1, 3])
def test_without_stragglers_it_is_the_exact_one(slots: int) -> None:
    p = mw.Pipeline("even")
    p.inject("in", mw.injectors.Records([]))
    p.add(Windower(size=100), inputs={"in": mw.by_key}, outputs=["windows"], watermark=0.9)
    h = mw.testing.Harness(p, slots=slots)
    for time in range(0, 500, 50):
        h.send("in", 1, timestamp=time, key=str(time))
    h.advance("in", 250)
    assert sorted(record.timestamp for record in h.output("windows")) == [100, 100, 200, 200]


class Percentile(Running):
    """The same over partitions, at the 90% watermark."""

    def __init__(self, injector: Partitions) -> None:
        p = mw.Pipeline("partitions")
        p.inject("in", injector)
        p.add(Windower(), inputs={"in": mw.by_key}, outputs=["windows"], watermark=0.9)
        self._set_up(p, MemoryStore())


def test_a_partition_that_holds_few_of_the_pending_records_is_left_behind() -> None:
    times = {str(number): [1_000, 2_000] for number in range(20)}
    running = Percentile(Partitions({**times, "slow": [5]}))
    running.settle()
    assert running.watermark == 5
    assert running.driver.authority.inputs["Windower"] == 2_000


@pytest.mark.parametrize("share", [0, -1, 1.5, True, "0.99"])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    p = mw.Pipeline("wrong")
    with pytest.raises(mw.PipelineError, match=r"watermark is a percentile such as 0\.99"):
        p.add(Windower(), inputs={}, watermark=share)
