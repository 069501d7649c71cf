"""A key's persistent state: where it begins, what changes it, what ends it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import millwheel as mw
from tests.computations import Counter, Hooks, OnRecord, hooks, single, values
from tests.conftest import MakeHarness


@dataclass
class Visit:
    page: str
    seconds: int = 0


@dataclass
class Profile:
    visits: list[Visit] = field(default_factory=list)
    total: int = 0


class Profiler(mw.Computation):
    def initial_state(self) -> Profile:
        return Profile()

    def process_record(self, record: mw.Record) -> None:
        assert isinstance(self.state, Profile)
        self.state.visits.append(Visit(record.value, 3))
        self.state.total += 3


class StartsAt(mw.Computation):
    """Its state is no dict, and depends on how it was built."""

    def __init__(self, start: int) -> None:
        self.start = start

    def initial_state(self) -> int:
        return self.start

    def process_record(self, record: mw.Record) -> None:
        self.state += record.value
        self.produce("out", self.state)


def steps(*parts: OnRecord) -> mw.Pipeline:
    """A record with value n runs part n, and then shows the state."""

    def on_record(c: Hooks, record: mw.Record) -> None:
        parts[record.value](c, record)

    return hooks(on_record)


def assign(state: Any) -> OnRecord:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.state = state

    return on_record


def delete(c: Hooks, record: mw.Record) -> None:
    del c.state


def show(c: Hooks, record: mw.Record) -> None:
    c.produce("out", c.state)


def test_the_state_of_a_key_never_seen_is_none_outside_and_an_empty_dict_inside(harness: MakeHarness) -> None:
    h = harness(hooks(show))
    assert h.state("C", "a") is None
    h.send("in", None, timestamp=0, key="a")
    assert values(h.output("out")) == [{}]
    assert h.state("C", "b") is None


def test_a_hook_that_never_touches_the_state_leaves_no_row(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.produce("out", record.value)))
    h.send("in", 1, timestamp=0, key="a")
    assert h.state("C", "a") is None


def test_a_key_with_timers_only_has_no_state(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.set_timer("t", 10), lambda c, timer: c.produce("out", c.state)))
    h.send("in", 1, timestamp=0, key="a")
    assert h.state("C", "a") is None
    h.drain()
    assert values(h.output("out")) == [{}]


def test_mutations_persist_across_records_epochs_and_crashes(harness: MakeHarness) -> None:
    h = harness(single(Counter(), outputs=["counts"]))
    with h.epoch():
        h.send("in", None, timestamp=0, key="a")
        h.send("in", None, timestamp=0, key="a")
    h.send("in", None, timestamp=0, key="a")
    h.crash()
    h.send("in", None, timestamp=0, key="a")
    assert values(h.output("counts")) == [1, 2, 3, 4]
    assert h.state("C", "a") == {"n": 4}


def test_each_key_has_a_state_of_its_own(harness: MakeHarness) -> None:
    h = harness(single(Counter(), outputs=["counts"]))
    with h.epoch():
        for key in ("a", "b", "a", "c", "a", ""):
            h.send("in", None, timestamp=0, key=key)
    assert [h.state("C", key) for key in ("a", "b", "c", "", "d")] == [
        {"n": 3},
        {"n": 1},
        {"n": 1},
        {"n": 1},
        None,
    ]


def test_each_computation_has_a_state_of_its_own_for_a_key(harness: MakeHarness) -> None:
    p = mw.Pipeline("two")
    p.inject("in", mw.injectors.Records([]))
    p.add(Counter(), name="first", inputs={"in": mw.by_key}, outputs=["counts"])
    p.add(Hooks(lambda c, record: c.state.update(n=-1)), name="second", inputs={"in": mw.by_key})
    h = harness(p)
    h.send("in", None, timestamp=0, key="a")
    assert h.state("first", "a") == {"n": 1}
    assert h.state("second", "a") == {"n": -1}


def test_a_mutated_nested_value_is_kept(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.state.setdefault("list", []).append(record.value)
        c.state.setdefault("deep", {}).setdefault("er", {})[record.value] = True

    h = harness(hooks(on_record))
    h.send("in", 1, timestamp=0)
    h.send("in", 2, timestamp=0)
    assert h.state("C", "") == {"list": [1, 2], "deep": {"er": {1: True, 2: True}}}


@pytest.mark.parametrize("state", [None, 0, 1.5, "text", b"bytes", [1, [2]], {"a": {"b": 1}}, True])
def test_any_value_can_be_assigned(state: Any, harness: MakeHarness) -> None:
    h = harness(steps(assign(state), show))
    h.send("in", 0, timestamp=0)
    assert h.state("C", "") == state
    h.crash()
    h.send("in", 1, timestamp=0)
    assert values(h.output("out")) == [state]


def test_an_assigned_value_is_kept_as_it_is_at_the_end_of_the_epoch(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        mine: dict[str, int] = {}
        c.state = mine
        mine["later"] = record.value

    h = harness(hooks(on_record))
    h.send("in", 1, timestamp=0)
    assert h.state("C", "") == {"later": 1}


def test_initial_state_is_used_for_each_new_key(harness: MakeHarness) -> None:
    h = harness(single(StartsAt(100)))
    h.send("in", 1, timestamp=0, key="a")
    h.send("in", 2, timestamp=0, key="b")
    h.send("in", 3, timestamp=0, key="a")
    assert values(h.output("out")) == [101, 102, 104]


def test_initial_state_may_use_the_key(harness: MakeHarness) -> None:
    class Named(mw.Computation):
        def initial_state(self) -> dict[str, str]:
            return {"name": self.key}

        def process_record(self, record: mw.Record) -> None:
            self.produce("out", self.state)

    h = harness(single(Named()))
    h.send("in", None, timestamp=0, key="a")
    assert values(h.output("out")) == [{"name": "a"}]


def test_an_initial_state_that_one_key_changed_is_fresh_for_the_next(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.state[c.key] = 1
        c.produce("out", len(c.state))

    h = harness(hooks(on_record))
    with h.epoch():
        for key in "abc":
            h.send("in", None, timestamp=0, key=key)
    assert values(h.output("out")) == [1, 1, 1]


def test_a_dataclass_state_comes_back_as_itself(harness: MakeHarness) -> None:
    h = harness(single(Profiler()))
    h.send("in", "home", timestamp=0, key="a")
    h.crash()
    h.send("in", "about", timestamp=0, key="a")
    assert h.state("C", "a") == Profile([Visit("home", 3), Visit("about", 3)], 6)


def test_del_state_removes_the_row(harness: MakeHarness) -> None:
    h = harness(steps(assign({"n": 1}), delete, show))
    h.send("in", 0, timestamp=0)
    h.send("in", 1, timestamp=0)
    assert h.state("C", "") is None
    h.send("in", 2, timestamp=0)
    assert values(h.output("out")) == [{}]


def test_del_state_may_come_first_and_twice(harness: MakeHarness) -> None:
    def twice(c: Hooks, record: mw.Record) -> None:
        del c.state
        del c.state

    h = harness(steps(assign({"n": 1}), twice))
    h.send("in", 1, timestamp=0)
    assert h.state("C", "") is None
    h.send("in", 0, timestamp=0)
    h.send("in", 1, timestamp=0)
    assert h.state("C", "") is None


def test_after_del_the_state_is_the_initial_one_again_in_the_same_hook(harness: MakeHarness) -> None:
    class Resets(StartsAt):
        def process_record(self, record: mw.Record) -> None:
            self.state += record.value
            del self.state
            self.produce("out", self.state)
            del self.state
            self.produce("out", self.state)

    h = harness(single(Resets(7)))
    h.send("in", 5, timestamp=0)
    assert values(h.output("out")) == [7, 7]
    assert h.state("C", "") is None


def test_after_del_a_new_state_can_be_built_in_the_same_hook(harness: MakeHarness) -> None:
    def rebuild(c: Hooks, record: mw.Record) -> None:
        del c.state
        c.state["fresh"] = True

    h = harness(steps(assign({"n": 1}), rebuild))
    h.send("in", 0, timestamp=0)
    h.send("in", 1, timestamp=0)
    assert h.state("C", "") == {"fresh": True}


def test_del_after_assignment_and_assignment_after_del_both_count(harness: MakeHarness) -> None:
    def assign_then_delete(c: Hooks, record: mw.Record) -> None:
        c.state = {"n": 1}
        del c.state

    def delete_then_assign(c: Hooks, record: mw.Record) -> None:
        del c.state
        c.state = {"n": 2}

    h = harness(steps(assign_then_delete, delete_then_assign))
    h.send("in", 0, timestamp=0)
    assert h.state("C", "") is None
    h.send("in", 1, timestamp=0)
    assert h.state("C", "") == {"n": 2}


def test_a_later_record_of_the_epoch_finds_the_initial_state_after_del(harness: MakeHarness) -> None:
    h = harness(steps(assign({"n": 1}), delete, show))
    with h.epoch():
        for value in (0, 2, 1, 2):
            h.send("in", value, timestamp=0)
    assert values(h.output("out")) == [{"n": 1}, {}]


def test_del_state_leaves_the_timers(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.state["n"] = 1
        c.set_timer("t", 10)
        del c.state

    h = harness(hooks(on_record, lambda c, timer: c.produce("out", c.state)))
    h.send("in", None, timestamp=0)
    assert h.state("C", "") is None
    assert h.timers("C", "") == [mw.Timer("t", 10)]
    h.drain()
    assert values(h.output("out")) == [{}]


def test_del_state_in_a_timer_removes_the_row(harness: MakeHarness) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        del c.state

    def on_record(c: Hooks, record: mw.Record) -> None:
        c.state["n"] = 1
        c.set_timer("t", 10)

    h = harness(hooks(on_record, on_timer))
    h.send("in", None, timestamp=0)
    assert h.state("C", "") == {"n": 1}
    h.drain()
    assert h.state("C", "") is None


def test_the_state_read_by_a_test_is_a_copy(harness: MakeHarness) -> None:
    h = harness(single(Counter(), outputs=["counts"]))
    h.send("in", None, timestamp=0)
    h.state("C", "")["n"] = 99
    assert h.state("C", "") == {"n": 1}


def test_rows_go_through_the_codec_after_every_epoch(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.produce("out", type(c.state.get("data")).__name__)
        c.state["data"] = bytearray(b"the one type that comes back as another")

    h = harness(hooks(on_record))
    h.send("in", None, timestamp=0)
    h.send("in", None, timestamp=0)
    assert values(h.output("out")) == ["NoneType", "bytes"]


def test_a_state_that_the_codec_cannot_encode_names_computation_and_key(harness: MakeHarness) -> None:
    h = harness(steps(assign({"n": 1}), assign(object())))
    h.send("in", 0, timestamp=0, key="a")
    with pytest.raises(mw.UserCodeError, match=r"'C'.*'a'") as caught:
        h.send("in", 1, timestamp=0, key="a")
    assert isinstance(caught.value.cause, mw.CodecError)
    assert (caught.value.computation, caught.value.key) == ("C", "a")
    assert h.state("C", "a") == {"n": 1}


class Looks(mw.Computation):
    """Deletes its state when it is told to, and else looks at it."""

    def process_record(self, record: mw.Record) -> None:
        if record.value["delete"]:
            del self.state
        else:
            self.produce("seen", len(self.state))


@pytest.mark.parametrize("apart", [True, False])
def test_what_is_stored_after_a_deletion_does_not_depend_on_the_cutting_into_epochs(apart: bool) -> None:
    p = mw.Pipeline("looking")
    p.inject("in", mw.injectors.Records([]))
    p.add(Looks(), inputs={"in": lambda record: "key"}, outputs=["seen"])
    h = mw.testing.Harness(p)
    if apart:
        for delete in (True, False):
            h.send("in", {"delete": delete}, timestamp=1)
    else:
        with h.epoch():
            for delete in (True, False):
                h.send("in", {"delete": delete}, timestamp=1)
    assert h.state("Looks", "key") == {}
