"""Semantics 8: with errors="divert", a failed record or timer alone is undone, and goes to NAME.errors."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from tests.computations import Hooks, Log, hooks, single, values
from tests.conftest import MakeHarness
from tests.delivery.fragile import fragile


def diverting(**options: Any) -> mw.Pipeline:
    return hooks(fragile, errors="divert", **options)


def test_a_diverted_record_keeps_its_key_and_timestamp(harness: MakeHarness) -> None:
    h = harness(diverting())
    h.send("in", "bad", timestamp=7, key="a")
    (record,) = h.output("C.errors")
    assert (record.key, record.timestamp, record.stream) == ("a", 7, "C.errors")


def test_a_diverted_record_brings_its_value_and_the_traceback(harness: MakeHarness) -> None:
    h = harness(diverting())
    h.send("in", "bad", timestamp=7, key="a")
    (record,) = h.output("C.errors")
    text = repr(record.value)
    assert "bad" in text
    assert "ValueError: no good" in text
    assert "in fragile" in text


def test_all_that_the_failed_hook_did_is_undone(harness: MakeHarness) -> None:
    h = harness(diverting())
    h.send("in", "bad", timestamp=7, key="a")
    assert h.state("C", "a") is None
    assert h.timers("C", "a") == []
    assert h.output("out") == []
    assert h.status().user == {}
    h.advance("in", 50)
    assert h.low_watermark("C") == 50


def test_what_earlier_records_did_is_kept_and_later_ones_go_on(harness: MakeHarness) -> None:
    h = harness(diverting())
    with h.epoch():
        for value in ("one", "bad", "two", "bad"):
            h.send("in", value, timestamp=7, key="a")
        h.send("in", "other", timestamp=7, key="b")
    assert h.state("C", "a") == {"n": 2}
    assert h.state("C", "b") == {"n": 1}
    assert [r.value for r in h.output("out") if r.key == "a"] == ["one", "two"]
    assert len(h.output("C.errors")) == 2
    status = h.status()
    assert (status.failed["C"], status.user) == (2, {"seen": 3})
    assert status.streams["C.errors"] == 2


def test_a_moved_and_a_cleared_timer_come_back(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        if record.value == "good":
            c.set_timer("moved", 10)
            c.set_timer("cleared", 20, clock=mw.WALL)
        else:
            c.set_timer("moved", 99, clock=mw.WALL)
            c.clear_timer("cleared")
            c.set_timer("new", 30)
            raise ValueError

    for calls in ("one epoch", "two epochs"):
        h = harness(hooks(on_record, errors="divert"))
        if calls == "one epoch":
            with h.epoch():
                h.send("in", "good", timestamp=0)
                h.send("in", "bad", timestamp=0)
        else:
            h.send("in", "good", timestamp=0)
            h.send("in", "bad", timestamp=0)
        assert h.timers("C", "") == [mw.Timer("moved", 10), mw.Timer("cleared", 20, mw.WALL)]
        assert h.status().pending_wall_timers == 1


def test_a_deleted_or_assigned_state_and_its_holds_come_back(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        if record.value == "good":
            c.state["n"] = [1]
            c.hold(5)
            return
        c.state["n"].append(2)
        if record.value == "del":
            del c.state
        elif record.value == "assign":
            c.state = None
        c.hold(3, "other")
        c.release()
        raise ValueError

    for value in ("del", "assign", "mutate"):
        for together in (True, False):
            h = harness(hooks(on_record, errors="divert"))
            if together:
                with h.epoch():
                    h.send("in", "good", timestamp=5)
                    h.send("in", value, timestamp=5)
            else:
                h.send("in", "good", timestamp=5)
                h.send("in", value, timestamp=5)
            assert h.state("C", "") == {"n": [1]}
            h.advance("in", 50)
            assert h.low_watermark("C") == 5


def test_the_id_of_a_diverted_record_counts_as_seen(harness: MakeHarness) -> None:
    h = harness(diverting())
    h.send("in", "bad", timestamp=7, id="x")
    h.send("in", "bad", timestamp=7, id="x")
    h.crash()
    h.send("in", "good", timestamp=7, id="x")
    assert len(h.output("C.errors")) == 1
    assert h.output("out") == []
    assert h.status().duplicates["C"] == 2


def test_a_diverted_timer_is_gone_with_what_it_did_and_keeps_its_timestamp(harness: MakeHarness) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        c.state["fired"].append(timer.tag)
        c.produce("out", timer.tag)
        if timer.tag == "bad":
            c.set_timer("never", 15)
            raise ValueError("no good")

    def on_record(c: Hooks, record: mw.Record) -> None:
        c.state["fired"] = []
        for time, tag in ((10, "a"), (20, "bad"), (30, "c")):
            c.set_timer(tag, time)

    h = harness(hooks(on_record, on_timer, errors="divert"))
    h.send("in", None, timestamp=1, key="k")
    h.advance("in", 100)
    assert h.state("C", "k") == {"fired": ["a", "c"]}
    assert values(h.output("out")) == ["a", "c"]
    assert h.timers("C", "k") == []
    (record,) = h.output("C.errors")
    assert (record.key, record.timestamp) == ("k", 20)
    assert "bad" in repr(record.value)
    assert "ValueError: no good" in repr(record.value)
    assert h.status().failed["C"] == 1
    assert h.low_watermark("C") == 100


def test_a_diverted_wall_timer_goes_to_the_errors_stream_too(harness: MakeHarness) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        raise ValueError

    h = harness(hooks(lambda c, r: c.set_timer("w", 10, clock=mw.WALL), on_timer, errors="divert"))
    h.send("in", None, timestamp=1, key="k")
    h.advance_wall(10)
    assert [(record.key, record.timestamp) for record in h.output("C.errors")] == [("k", 10)]
    assert h.status().pending_wall_timers == 0


def test_the_errors_stream_can_be_consumed_and_need_not_be_declared(harness: MakeHarness) -> None:
    for key in (mw.by_key, lambda record: "all"):
        p = diverting()
        p.add(Log(), inputs={"C.errors": key}, outputs=["log"])
        h = harness(p)
        h.send("in", "good", timestamp=5, key="a")
        h.send("in", "bad", timestamp=7, key="a")
        assert [value[2] for value in values(h.output("log"))] == [7]
        assert h.low_watermark("Log") == mw.MIN_TIME
        h.advance("in", 50)
        assert h.low_watermark("Log") == 5


def test_the_errors_stream_can_go_to_a_sink(harness: MakeHarness) -> None:
    p = diverting()
    errors = mw.sinks.Collect()
    p.sink("C.errors", errors)
    h = harness(p)
    h.send("in", "bad", timestamp=7, key="a")
    assert [record.key for record in errors.records] == ["a"]


def test_each_consumer_of_an_errors_stream_has_its_own_copy(harness: MakeHarness) -> None:
    def spoil(c: Hooks, record: mw.Record) -> None:
        c.produce("seen", sorted(record.value))
        record.value.clear()

    p = diverting()
    p.add(Hooks(spoil), name="One", inputs={"C.errors": mw.by_key}, outputs=["seen"])
    p.add(Hooks(spoil), name="Two", inputs={"C.errors": mw.by_key}, outputs=["seen"])
    h = harness(p)
    h.send("in", "bad", timestamp=7)
    one, two = values(h.output("seen"))
    assert one == two
    assert sorted(values(h.output("C.errors"))[0]) == one


def test_a_record_that_the_hook_changed_before_it_raised_is_diverted_as_it_came(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        record.value["list"].append("changed")
        raise ValueError

    h = harness(hooks(on_record, errors="divert"))
    h.send("in", {"list": [1]}, timestamp=7)
    (record,) = h.output("C.errors")
    assert "changed" not in repr(record.value["value"])
    assert record.value["value"] == {"list": [1]}


def test_a_record_that_the_hook_made_unencodable_is_diverted_all_the_same(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        record.value["object"] = object()
        raise ValueError

    h = harness(hooks(on_record, errors="divert"))
    h.send("in", {"list": [1]}, timestamp=7)
    assert [record.timestamp for record in h.output("C.errors")] == [7]


def test_a_state_that_cannot_be_encoded_is_the_record_s_failure(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.state["x"] = object() if record.value == "bad" else record.value

    h = harness(hooks(on_record, errors="divert"))
    with h.epoch():
        h.send("in", "one", timestamp=1)
        h.send("in", "bad", timestamp=2)
    assert h.state("C", "") == {"x": "one"}
    assert [record.timestamp for record in h.output("C.errors")] == [2]


def test_a_value_that_cannot_be_encoded_is_the_record_s_failure(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.produce("out", object()), errors="divert"))
    h.send("in", 1, timestamp=2)
    assert [record.timestamp for record in h.output("C.errors")] == [2]


def test_a_late_record_that_fails_is_diverted_and_late(harness: MakeHarness) -> None:
    h = harness(diverting())
    h.advance("in", 10)
    h.send("in", "bad", timestamp=7)
    assert (h.status().late["C"], h.status().failed["C"]) == (1, 1)
    assert [record.timestamp for record in h.output("C.errors")] == [7]


def test_a_record_that_cannot_be_keyed_is_diverted_by_its_consumer(harness: MakeHarness) -> None:
    h = harness(single(Log(), key=mw.by("user"), outputs=["log"], errors="divert"))
    with h.epoch():
        h.send("in", {"user": "ann"}, timestamp=1)
        h.send("in", {"usr": "bob"}, timestamp=2)
        h.send("in", {"user": 1.5}, timestamp=3)
    assert [value[0] for value in values(h.output("log"))] == ["ann"]
    assert sorted(record.timestamp for record in h.output("C.errors")) == [2, 3]
    assert h.status().failed["C"] == 2


def test_a_production_that_cannot_be_keyed_is_diverted_by_its_consumer(harness: MakeHarness) -> None:
    p = hooks(lambda c, record: c.produce("out", record.value))
    p.add(Log(), inputs={"out": mw.by("user")}, outputs=["log"], errors="divert")
    p.add(Log(), name="Errors", inputs={"Log.errors": mw.by_key}, outputs=["log"])
    h = harness(p)
    h.send("in", {"usr": "bob"}, timestamp=2, key="k")
    assert [(record.key, record.timestamp) for record in h.output("Log.errors")] == [("k", 2)]
    assert [value[0] for value in values(h.output("log"))] == ["k"]
    assert h.status().failed["Log"] == 1


def test_other_computations_still_stop(harness: MakeHarness) -> None:
    p = diverting()
    p.add(Hooks(lambda c, record: 1 / 0), name="Stops", inputs={"C.errors": mw.by_key})
    h = harness(p)
    with pytest.raises(mw.UserCodeError) as caught:
        h.send("in", "bad", timestamp=7)
    assert caught.value.computation == "Stops"
    assert h.output("C.errors") == []


def test_without_divert_the_errors_stream_is_nobody_s(harness: MakeHarness) -> None:
    p = hooks(fragile)
    p.add(Log(), inputs={"C.errors": mw.by_key}, outputs=["log"])
    with pytest.raises(mw.PipelineError, match=r"C\.errors.*divert"):
        harness(p)


class _Unreadable:
    """A codec that cannot read what it wrote for some keys."""

    def encode(self, value: Any) -> bytes:
        return mw.codecs.msgpack.encode(value)

    def decode(self, data: bytes) -> Any:
        value = mw.codecs.msgpack.decode(data)
        if value.get("bad"):
            raise ValueError("this state is damaged")
        return value


class _Remembers(mw.Computation):
    """Marks the states of keys that begin with "bad", so that they cannot be read again."""

    codec = _Unreadable()

    def process_record(self, record: mw.Record) -> None:
        if record.value == "skip":
            return
        self.state["n"] = self.state.get("n", 0) + 1
        if self.key.startswith("bad") and record.value == "first":
            self.state = {"bad": True}
            self.set_timer("t", 50)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("out", self.state["n"])


def _remembering(errors: Any) -> mw.Pipeline:
    p = mw.Pipeline("unreadable")
    p.inject("in", mw.injectors.Records([]))
    p.add(_Remembers(), name="C", inputs={"in": mw.by_key}, outputs=["out"], errors=errors)
    return p


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "order", [["good", "bad 1", "bad 2"], ["bad 1", "good", "bad 2"], ["bad 1", "bad 2"]]
)
def test_a_state_that_cannot_be_read_is_diverted_whichever_key_ran_before(
    order: list[str], seed: int
) -> None:
    h = mw.testing.Harness(_remembering("divert"), seed=seed)
    for key in order:
        h.send("in", "first", timestamp=1, key=key)
    with h.epoch():
        for key in order:
            h.send("in", "again", timestamp=2, key=key)
            h.send("in", "skip", timestamp=2, key=key)
    bad = [key for key in order if key.startswith("bad")]
    assert sorted(record.key for record in h.output("C.errors")) == bad
    assert all("this state is damaged" in record.value["error"] for record in h.output("C.errors"))
    h.advance("in", 60)
    assert sorted(record.key for record in h.output("C.errors")) == sorted(bad * 2), "the timers, too"
    assert h.status().failed["C"] == 2 * len(bad)


@pytest.mark.parametrize("before", [["good"], []])
def test_a_state_that_cannot_be_read_stops_the_run_in_the_hook_that_asks_for_it(before: list[str]) -> None:
    h = mw.testing.Harness(_remembering("stop"))
    for key in [*before, "bad"]:
        h.send("in", "first", timestamp=1, key=key)
    with h.epoch():
        for key in [*before, "bad"]:
            h.send("in", "skip", timestamp=2, key=key)
    for key in before:
        h.send("in", "again", timestamp=3, key=key)
    with pytest.raises(mw.UserCodeError, match="this state is damaged") as caught:
        h.send("in", "again", timestamp=3, key="bad")
    assert (caught.value.computation, caught.value.key) == ("C", "bad")
