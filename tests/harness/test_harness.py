"""The harness itself: what is an epoch, what a crash loses, what it says of unknown names."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from tests.computations import Counter, Echo, Hooks, Log, Windower, hooks, values
from tests.conftest import MakeHarness


def chain() -> mw.Pipeline:
    p = mw.Pipeline("chain")
    p.inject("in", mw.injectors.Records([mw.Record(value="never read", timestamp=0)]))
    p.add(Windower(), inputs={"in": mw.by_key}, outputs=["windows"])
    p.add(Log(), inputs={"windows": lambda record: "all"}, outputs=["log"], late="drop")
    return p


def test_each_call_is_one_epoch(harness: MakeHarness) -> None:
    h = harness(chain())
    assert h.status().epochs == 0
    h.send("in", 1, timestamp=0)
    assert h.status().epochs == 1
    h.advance("in", 10)
    assert h.status().epochs == 2
    h.advance_wall(10)
    assert h.status().epochs == 3


def test_epoch_makes_several_calls_one(harness: MakeHarness) -> None:
    h = harness(chain())
    with h.epoch():
        h.send("in", 1, timestamp=0)
        h.send("in", 2, timestamp=0)
        h.advance("in", 10)
        h.advance_wall(10)
        assert h.output("in") == []
    assert h.status().epochs == 1
    assert len(h.output("in")) == 2


def test_epochs_within_an_epoch_are_one(harness: MakeHarness) -> None:
    h = harness(chain())
    with h.epoch():
        h.send("in", 1, timestamp=0)
        with h.epoch():
            h.send("in", 2, timestamp=0)
    assert h.status().epochs == 1


def test_a_test_that_raises_inside_an_epoch_leaves_all_as_before(harness: MakeHarness) -> None:
    h = harness(chain())

    def fail() -> None:
        with h.epoch():
            h.send("in", 1, timestamp=0)
            h.advance("in", 10)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert h.status().epochs == 0
    assert h.low_watermark("Windower") == mw.MIN_TIME
    h.send("in", 1, timestamp=0)
    assert h.state("Windower", "") == {0: 1}


def test_the_pipeline_s_injectors_are_never_polled(harness: MakeHarness) -> None:
    class Untouchable(mw.Injector):
        def poll(self) -> dict[str, Any]:
            raise AssertionError("polled")

    p = mw.Pipeline("untouched")
    p.inject("in", Untouchable())
    p.add(Echo(), inputs={"in": mw.by_key}, outputs=["out"])
    h = harness(p)
    h.send("in", 1, timestamp=0)
    h.drain()
    assert values(h.output("out")) == [1]


def test_a_drain_moves_every_injector_to_its_end(harness: MakeHarness) -> None:
    h = harness(chain())
    h.send("in", 1, timestamp=0)
    h.drain()
    assert h.status().low_watermarks == {"Windower": mw.MAX_TIME, "Log": mw.MAX_TIME}
    assert len(h.output("log")) == 1
    h.drain()
    assert len(h.output("log")) == 1


def test_a_drain_may_be_part_of_an_epoch(harness: MakeHarness) -> None:
    h = harness(chain())
    with h.epoch():
        h.send("in", 1, timestamp=0)
        h.drain()
    assert len(h.output("log")) == 1
    assert h.status().epochs == 1


def test_a_drain_of_holds_may_be_part_of_an_epoch(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.hold(record.timestamp)))
    with h.epoch():
        h.send("in", 1, timestamp=0)
        h.drain()
    assert h.low_watermark("C") == mw.MAX_TIME


def test_a_crash_loses_nothing_that_was_committed(harness: MakeHarness) -> None:
    h = harness(chain())
    h.send("in", 1, timestamp=0, id=1)
    h.advance("in", 5)
    h.advance_wall(7)
    before = h.status()
    h.crash()
    assert h.status() == before
    assert h.state("Windower", "") == {0: 1}
    assert h.timers("Windower", "") == [mw.Timer("0", mw.SECOND)]
    assert values(h.output("in")) == [1]
    h.crash()
    h.crash()
    h.drain()
    assert len(h.output("log")) == 1


def test_a_crash_before_anything_happened_is_fine(harness: MakeHarness) -> None:
    h = harness(chain())
    h.crash()
    h.send("in", 1, timestamp=0)
    h.drain()
    assert len(h.output("log")) == 1


def test_status_has_every_count(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        if record.value == "bad":
            raise ValueError
        c.count("hooks")
        c.count("letters", len(record.value))
        c.set_timer("w", 1_000, clock=mw.WALL)
        c.produce("out", record.value)

    p = hooks(on_record, errors="divert", late="drop")
    p.add(Counter(), inputs={"out": lambda record: "all"}, outputs=["counts"])
    h = harness(p)
    h.send("in", "one", timestamp=10, id=1)
    h.send("in", "one", timestamp=10, id=1)
    h.send("in", "bad", timestamp=10, id=2)
    h.advance("in", 10)
    h.send("in", "late", timestamp=9, id=3)
    h.send("in", "three", timestamp=10, id=4)
    status = h.status()
    assert status.epochs == 6
    assert status.records_in == 5
    assert status.records == {"C": 2, "Counter": 2}
    assert status.produced == {"C": 2, "Counter": 2}
    assert status.late == {"C": 1, "Counter": 0}
    assert status.dropped == {"C": 1, "Counter": 0}
    assert status.duplicates == {"C": 1, "Counter": 0}
    assert status.failed == {"C": 1, "Counter": 0}
    assert status.streams == {"in": 5, "out": 2, "counts": 2, "C.errors": 1}
    assert status.user == {"hooks": 2, "letters": 8}
    assert status.low_watermarks == {"C": 10, "Counter": 10}
    assert status.pending_wall_timers == 1


def test_a_status_in_hand_does_not_change(harness: MakeHarness) -> None:
    h = harness(chain())
    before = h.status()
    h.send("in", 1, timestamp=0)
    assert before.epochs == 0
    assert before.records == {"Windower": 0, "Log": 0}


def test_the_pipeline_s_own_collect_sink_is_fed(harness: MakeHarness) -> None:
    p = chain()
    collected = mw.sinks.Collect()
    p.sink("log", collected)
    h = harness(p)
    h.send("in", 1, timestamp=0)
    h.drain()
    assert collected.records == h.output("log")


def test_the_output_of_an_injected_stream_is_what_was_sent(harness: MakeHarness) -> None:
    h = harness(chain())
    h.send("in", {"a": 1}, timestamp=3, id="x", key="k")
    (record,) = h.output("in")
    assert (record.key, record.value, record.timestamp, record.id) == ("k", {"a": 1}, 3, "x")


def test_one_pipeline_serves_several_harnesses() -> None:
    p = chain()
    first, second = mw.testing.Harness(p), mw.testing.Harness(p, seed=5)
    first.send("in", 1, timestamp=0)
    assert second.state("Windower", "") is None
    assert second.output("in") == []


def test_seeds_and_slots_change_no_result() -> None:
    def run(seed: int, slots: int) -> tuple[Any, ...]:
        h = mw.testing.Harness(chain(), seed=seed, slots=slots)
        for n in range(30):
            h.send("in", n, timestamp=n * mw.SECOND // 3, key=f"key {n % 7}", id=n % 25)
            if n % 10 == 9:
                h.advance("in", (n - 8) * mw.SECOND // 3)
        h.drain()
        status = h.status()
        outputs = {
            stream: sorted((r.key, repr(r.value), r.timestamp) for r in h.output(stream))
            for stream in ("in", "windows", "log")
        }
        return outputs, status

    results = [run(seed, slots) for seed in range(3) for slots in (1, 2, 3, 8)]
    assert all(result == results[0] for result in results)


def test_unknown_names_give_clear_errors(harness: MakeHarness) -> None:
    h = harness(chain())
    with pytest.raises(mw.PipelineError, match=r"'nope'.*in"):
        h.send("nope", 1, timestamp=0)
    with pytest.raises(mw.PipelineError, match=r"'windows'"):
        h.send("windows", 1, timestamp=0)
    with pytest.raises(mw.PipelineError, match=r"'nope'"):
        h.advance("nope", 1)
    with pytest.raises(mw.PipelineError, match=r"'nope'.*windows"):
        h.output("nope")
    with pytest.raises(mw.PipelineError, match=r"'nope'.*Windower"):
        h.state("nope", "key")
    with pytest.raises(mw.PipelineError, match=r"'nope'.*Windower"):
        h.timers("nope", "key")
    with pytest.raises(mw.PipelineError, match=r"'nope'.*Windower"):
        h.low_watermark("nope")
    assert h.status().epochs == 0


@pytest.mark.parametrize("timestamp", [1.5, "1", None, 2**63, -(2**63)])
def test_a_timestamp_that_is_none_is_an_error_and_changes_nothing(
    timestamp: Any, harness: MakeHarness
) -> None:
    h = harness(chain())
    with pytest.raises(mw.MillWheelError):
        h.send("in", 1, timestamp=timestamp)
    assert h.status().epochs == 0
    h.send("in", 1, timestamp=0)
    assert h.status().records_in == 1


def test_a_value_that_does_not_travel_is_an_error_and_changes_nothing(harness: MakeHarness) -> None:
    h = harness(chain())
    with pytest.raises(mw.MillWheelError, match=r"stream 'in': the value <object.* cannot be sent"):
        h.send("in", object(), timestamp=0)
    assert h.status().epochs == 0
    h.send("in", 1, timestamp=0)
    assert h.status().records_in == 1
