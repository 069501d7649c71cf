"""A production is what it was when it was produced, and each consumer has its own copy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import millwheel as mw
from tests.computations import Hooks, hooks, single, values
from tests.conftest import MakeHarness


@dataclass
class Order:
    item: str
    lines: list[int] = field(default_factory=list)


@dataclass
class Basket:
    orders: list[Order]


class Spoiler(mw.Computation):
    """Shows the value it got, then spoils it."""

    def process_record(self, record: mw.Record) -> None:
        self.produce("seen", [self.key, list(record.value["list"])])
        record.value["list"].append("spoilt")


def test_changing_a_value_after_produce_does_not_change_the_production(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        value = {"list": [1]}
        c.produce("out", value)
        value["list"].append(2)
        c.produce("out", value)
        value.clear()

    h = harness(hooks(on_record))
    h.send("in", None, timestamp=0)
    assert values(h.output("out")) == [{"list": [1]}, {"list": [1, 2]}]


def test_producing_the_state_takes_a_snapshot_of_it(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.state.setdefault("seen", []).append(record.value)
        c.produce("out", c.state)

    h = harness(hooks(on_record))
    with h.epoch():
        h.send("in", 1, timestamp=0)
        h.send("in", 2, timestamp=0)
    assert values(h.output("out")) == [{"seen": [1]}, {"seen": [1, 2]}]


@pytest.mark.parametrize("keys", [(mw.by_key, mw.by_key), (mw.by("k"), mw.by("k")), (mw.by_key, mw.by("k"))])
def test_each_consumer_of_an_injected_stream_has_its_own_copy(keys: Any, harness: MakeHarness) -> None:
    p = mw.Pipeline("copies")
    p.inject("in", mw.injectors.Records([]))
    for n, key in enumerate(keys):
        p.add(Spoiler(), name=f"C{n}", inputs={"in": key}, outputs=["seen"])
    h = harness(p)
    h.send("in", {"k": "k", "list": [1]}, timestamp=0, key="k")
    assert values(h.output("seen")) == [["k", [1]]] * 2
    assert values(h.output("in")) == [{"k": "k", "list": [1]}]


@pytest.mark.parametrize("keys", [(mw.by_key, mw.by_key), (mw.by("k"), mw.by("k")), (mw.by_key, mw.by("k"))])
def test_each_consumer_of_a_production_has_its_own_copy(keys: Any, harness: MakeHarness) -> None:
    p = hooks(lambda c, record: c.produce("out", record.value))
    for n, key in enumerate(keys):
        p.add(Spoiler(), name=f"S{n}", inputs={"out": key}, outputs=["seen"])
    h = harness(p)
    h.send("in", {"k": "k", "list": [1]}, timestamp=0, key="k")
    assert values(h.output("seen")) == [["k", [1]]] * 2
    assert values(h.output("out")) == [{"k": "k", "list": [1]}]


def test_a_value_kept_in_the_state_is_not_changed_by_a_consumer(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.state["kept"] = record.value
        c.produce("out", record.value)

    p = hooks(on_record)
    p.add(Spoiler(), inputs={"out": mw.by_key}, outputs=["seen"])
    h = harness(p)
    h.send("in", {"list": [1]}, timestamp=0)
    assert h.state("C", "") == {"kept": {"list": [1]}}


def test_changing_a_sent_value_later_changes_nothing(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.produce("out", record.value)))
    value = {"list": [1]}
    with h.epoch():
        h.send("in", value, timestamp=0)
        value["list"].append(2)
    assert values(h.output("out")) == [{"list": [1]}]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -(2**63),
        2**64 - 1,
        1.5,
        float("inf"),
        "",
        "text ä\U0001f600",
        b"\x00\xff",
        [],
        {},
    ],
)
def test_a_value_arrives_as_it_was(value: Any, harness: MakeHarness) -> None:
    p = hooks(lambda c, record: c.produce("out", record.value))
    p.add(Hooks(lambda c, r: c.produce("again", r.value)), inputs={"out": lambda r: "x"}, outputs=["again"])
    h = harness(p)
    h.send("in", value, timestamp=0)
    (arrived,) = values(h.output("again"))
    assert arrived == value
    assert type(arrived) is type(value)


def test_a_dict_with_integer_keys_arrives_as_it_was(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.produce("out", record.value)))
    h.send("in", {1: {2: [3, {"x": b"y"}]}}, timestamp=0)
    assert values(h.output("out")) == [{1: {2: [3, {"x": b"y"}]}}]


@pytest.mark.parametrize(
    "value",
    [
        Order("tea", [1, 2]),
        [Order("tea"), Order("milk", [3])],
        {"first": Order("tea"), "n": 3},
        Basket([Order("tea", [1]), Order("milk")]),
        [Basket([Order("tea", [1])]), 5],
    ],
    ids=["plain", "in a list", "in a dict", "nested", "nested in a list"],
)
def test_a_dataclass_arrives_as_it_was(value: Any, harness: MakeHarness) -> None:
    p = hooks(lambda c, record: c.produce("out", record.value))
    p.add(Hooks(lambda c, r: c.produce("again", r.value)), inputs={"out": lambda r: "x"}, outputs=["again"])
    h = harness(p)
    h.send("in", value, timestamp=0)
    assert values(h.output("again")) == [value]


def test_a_dataclass_can_be_keyed_by_a_field(harness: MakeHarness) -> None:
    h = harness(single(Hooks(lambda c, record: c.produce("out", record.value.lines)), key=mw.by("item")))
    h.send("in", Order("tea", [1, 2]), timestamp=0)
    assert [(record.key, record.value) for record in h.output("out")] == [("tea", [1, 2])]


def test_a_value_that_cannot_be_encoded_names_the_computation_and_the_stream(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.produce("out", {"x": object()})))
    with pytest.raises(mw.UserCodeError, match=r"'C'.*'out'.*object") as caught:
        h.send("in", 1, timestamp=0)
    assert isinstance(caught.value.cause, mw.CodecError)


def test_a_step_that_is_run_again_gets_the_values_as_they_came() -> None:
    """The store is cut off in the middle of a step, which the worker then runs again."""

    def make() -> mw.Pipeline:
        p = mw.Pipeline("spoils")
        records = [mw.Record({"k": f"k{i % 3}", "list": [i]}, i) for i in range(60)]
        p.inject("in", mw.injectors.Records(records, per_epoch=20))
        p.add(Spoiler(), inputs={"in": mw.by("k")}, outputs=["seen"])
        return p

    only = dict.fromkeys(("kill", "pause", "lose", "late", "repeat", "fail", "slow", "jump", "reshape"), 0.0)
    faults = mw.testing.Faults(cut=0.5, most=40, **only)  # type: ignore[arg-type]
    assert mw.testing.simulate(make, seeds=range(20), faults=faults)["cut"] > 100
