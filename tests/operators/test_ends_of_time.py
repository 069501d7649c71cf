"""Windows at the ends of time, and of all of it, and what stands beside them in a pipeline."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from tests.operators.feeding import source


def counted(window: Any) -> mw.testing.Harness:
    p = mw.Pipeline("ends")
    p.inject("in", source()).key_by("k").window(window).count("out")
    return mw.testing.Harness(p)


@pytest.mark.parametrize("others", [0, 100], ids=["alone", "among those that are added up"])
def test_a_window_that_begins_before_all_time_is_an_error_that_names_the_record(others: int) -> None:
    h = counted(mw.windows.sliding(10, 3))

    def send() -> None:
        with h.epoch():
            for time in range(others):
                h.send("in", {"k": "b"}, time)
            h.send("in", {"k": "a"}, mw.MIN_TIME + 1)

    with pytest.raises(mw.UserCodeError, match="more than 64 bits") as raised:
        send()
    assert raised.value.computation == "out"
    assert raised.value.key == "a"
    assert isinstance(raised.value.record, mw.Record)
    assert raised.value.record.timestamp == mw.MIN_TIME + 1


@pytest.mark.parametrize("size", [1 << 62, (1 << 63) - 1, 1 << 63])
def test_a_window_may_have_all_of_time(size: int) -> None:
    h = counted(mw.windows.tumbling(size))
    h.send("in", {"k": "a"}, 5)
    h.send("in", {"k": "a"}, 7)
    h.drain()
    assert [record.value for record in h.output("out")] == [{"key": "a", "start": 0, "end": size, "count": 2}]


class Folds(mw.Computation):
    """Has attributes of names that the library uses too."""

    def __init__(self) -> None:
        self._folding = {"by": 2}

    def process_record(self, record: mw.Record) -> None:
        self.produce("out", record.value["n"] // self._folding["by"])


def test_a_computation_may_name_an_attribute_as_it_likes() -> None:
    p = mw.Pipeline("names")
    p.inject("in", source())
    p.add(Folds(), inputs={"in": mw.by("k")}, outputs=["out"])
    h = mw.testing.Harness(p)
    h.send("in", {"k": "a", "n": 8}, 1)
    assert [record.value for record in h.output("out")] == [4]
