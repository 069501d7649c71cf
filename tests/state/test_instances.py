"""The instance of a computation: its own ``__init__``, its attributes, and what a crash leaves of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import millwheel as mw
from tests.computations import Counter, Hooks, Idle, hooks, single, values
from tests.conftest import MakeHarness


class Scale(mw.Computation):
    """Its __init__ does not call the base's."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def process_record(self, record: mw.Record) -> None:
        self.state["sum"] = self.state.get("sum", 0) + record.value * self.factor
        self.produce("out", self.state["sum"])


@dataclass
class Offset(mw.Computation):
    """A computation that is a dataclass."""

    by: int = 1

    def process_record(self, record: mw.Record) -> None:
        self.produce("out", record.value + self.by)


def test_a_subclass_need_not_call_the_base_init(harness: MakeHarness) -> None:
    h = harness(single(Scale(10)))
    h.send("in", 1, timestamp=0)
    h.send("in", 2, timestamp=0)
    assert values(h.output("out")) == [10, 30]
    assert h.state("C", "") == {"sum": 30}


def test_a_computation_may_be_a_dataclass(harness: MakeHarness) -> None:
    h = harness(single(Offset(by=5)))
    h.send("in", 1, timestamp=0)
    assert values(h.output("out")) == [6]


def test_one_instance_under_two_names_has_two_lives(harness: MakeHarness) -> None:
    p = mw.Pipeline("twice")
    p.inject("in", mw.injectors.Records([]))
    counter = Counter()
    p.add(counter, name="first", inputs={"in": mw.by_key}, outputs=["counts"])
    p.add(counter, name="second", inputs={"in": lambda record: "all"}, outputs=["counts"])
    h = harness(p)
    for key in "xyx":
        h.send("in", None, timestamp=0, key=key)
    assert [h.state("first", key) for key in ("x", "y", "all")] == [{"n": 2}, {"n": 1}, None]
    assert [h.state("second", key) for key in ("x", "y", "all")] == [None, None, {"n": 3}]


def test_the_user_s_own_instance_is_left_alone(harness: MakeHarness) -> None:
    scale = Scale(3)
    h = harness(single(scale))
    h.send("in", 1, timestamp=0)
    assert vars(scale) == {"factor": 3}


def test_what_a_hook_leaves_on_the_instance_is_lost_in_a_crash(harness: MakeHarness) -> None:
    class Caches(mw.Computation):
        cache: int | None = None

        def process_record(self, record: mw.Record) -> None:
            self.produce("out", self.cache)
            self.cache = record.value

    h = harness(single(Caches()))
    h.send("in", 1, timestamp=0)
    h.crash()
    h.send("in", 2, timestamp=0)
    assert values(h.output("out")) == [None, None]


def test_accessors_outside_a_hook_say_so() -> None:
    counter = Counter()
    for use in (lambda: counter.state, lambda: counter.produce("out", 1), lambda: counter.set_timer("t", 1)):
        with pytest.raises(RuntimeError, match="inside"):
            use()


def test_an_unknown_attribute_is_an_attribute_error(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.nothing))
    with pytest.raises(mw.UserCodeError) as caught:
        h.send("in", None, timestamp=0)
    assert isinstance(caught.value.cause, AttributeError)


def test_an_accessor_may_be_overridden_and_call_the_base(harness: MakeHarness) -> None:
    class Loud(Counter):
        def produce(self, stream: str, value: Any, timestamp: int | None = None) -> None:
            super().produce(stream, value * 100, timestamp)

    h = harness(single(Loud(), outputs=["counts"]))
    h.send("in", None, timestamp=0)
    assert values(h.output("counts")) == [100]


def test_a_computation_with_no_hooks_of_its_own_does_nothing(harness: MakeHarness) -> None:
    h = harness(single(Idle()))
    h.send("in", None, timestamp=0)
    h.drain()
    assert h.output("out") == []
    assert h.status().records["C"] == 1


def test_the_key_is_there_in_both_hooks(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        assert record.key == c.key
        c.set_timer("t", 10)

    h = harness(hooks(on_record, lambda c, timer: c.produce("out", c.key)))
    with h.epoch():
        h.send("in", None, timestamp=0, key="a")
        h.send("in", None, timestamp=0, key="ä\U0001f600")
        h.send("in", None, timestamp=0, key="x" * 1000)
    h.drain()
    assert sorted(values(h.output("out"))) == sorted(["a", "ä\U0001f600", "x" * 1000])
    assert sorted(record.key for record in h.output("out")) == sorted(values(h.output("out")))
