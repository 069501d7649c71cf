"""A hold of one key holds the computation, hence all keys of its consumers, wherever the keys live."""

from __future__ import annotations

import pytest

import millwheel as mw
from tests.computations import Hooks, hooks, values

KEYS = [f"key {n}" for n in range(8)]

pytestmark = [
    pytest.mark.parametrize("slots", [1, 3]),
    pytest.mark.parametrize("chained", [True, False], ids=["chained", "re-keyed"]),
]


def obey(c: Hooks, record: mw.Record) -> None:
    if record.value == "hold":
        c.hold(5)
    elif record.value == "release":
        c.release()
    else:
        c.produce("out", record.value)


def timed(chained: bool) -> mw.Pipeline:
    """Behind the one that holds: a timer for 20 for each key."""
    p = hooks(obey)
    p.add(
        Hooks(lambda c, record: c.set_timer("t", 20), lambda c, timer: c.produce("fired", c.low_watermark)),
        name="Down",
        inputs={"out": mw.by_key if chained else lambda record: record.key},
        outputs=["fired"],
    )
    return p


def test_a_hold_keeps_the_timers_of_all_keys_from_firing(chained: bool, slots: int) -> None:
    h = mw.testing.Harness(timed(chained), slots=slots)
    h.send("in", "hold", timestamp=5, key="holder")
    for key in KEYS:
        h.send("in", "go", timestamp=10, key=key)
    h.advance("in", 50)
    assert h.low_watermark("C") == h.low_watermark("Down") == 5
    assert h.output("fired") == []


def test_a_release_lets_the_timers_of_all_keys_fire(chained: bool, slots: int) -> None:
    h = mw.testing.Harness(timed(chained), slots=slots)
    h.send("in", "hold", timestamp=5, key="holder")
    for key in KEYS:
        h.send("in", "go", timestamp=10, key=key)
    h.advance("in", 50)
    h.send("in", "release", timestamp=50, key="holder")
    assert values(h.output("fired")) == [50] * len(KEYS)
    assert h.low_watermark("Down") == 50


def test_a_hold_set_while_the_watermark_moves_keeps_the_timers_of_all_keys(chained: bool, slots: int) -> None:
    """But for chained consumers in other intervals: they hear of it with the next epoch, as is documented."""
    if chained and slots > 1:
        h = mw.testing.Harness(timed(chained), slots=slots)
        with h.epoch():
            h.send("in", "hold", timestamp=5, key="holder")
            h.advance("in", 50)
        assert h.low_watermark("C") == h.low_watermark("Down") == 5
        return
    h = mw.testing.Harness(timed(chained), slots=slots)
    for key in KEYS:
        h.send("in", "go", timestamp=10, key=key)
    with h.epoch():
        h.send("in", "hold", timestamp=5, key="holder")
        h.advance("in", 50)
    assert h.low_watermark("C") == h.low_watermark("Down") == 5
    assert h.output("fired") == []


def test_the_end_of_a_run_fires_the_timers_behind_a_hold(chained: bool, slots: int) -> None:
    h = mw.testing.Harness(timed(chained), slots=slots)
    h.send("in", "hold", timestamp=5, key="holder")
    for key in KEYS:
        h.send("in", "go", timestamp=10, key=key)
    h.drain()
    assert values(h.output("fired")) == [mw.MAX_TIME] * len(KEYS)
    assert h.status().unreleased_holds == 1


def test_a_second_key_s_hold_takes_over_when_the_first_is_released(chained: bool, slots: int) -> None:
    """The low watermark stands at the first hold, so that another key may hold there too."""
    for other in KEYS:
        h = mw.testing.Harness(timed(chained), slots=slots)
        h.send("in", "hold", timestamp=5, key="holder")
        h.advance("in", 50)
        h.send("in", "hold", timestamp=5, key=other)
        h.send("in", "release", timestamp=50, key="holder")
        assert h.low_watermark("C") == h.low_watermark("Down") == 5
