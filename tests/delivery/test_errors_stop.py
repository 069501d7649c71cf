"""Semantics 8: a hook that raises stops the pipeline, and nothing of its epoch is committed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import millwheel as mw
from tests.computations import Counter, Hooks, hooks, single, values
from tests.conftest import MakeHarness
from tests.delivery.fragile import fragile


def test_the_error_names_computation_key_record_and_cause(harness: MakeHarness) -> None:
    h = harness(hooks(fragile))
    with pytest.raises(mw.UserCodeError, match=r"'C'.*'a'.*ValueError: no good") as caught:
        h.send("in", "bad", timestamp=7, id="x", key="a")
    error = caught.value
    assert isinstance(error, mw.MillWheelError)
    assert (error.computation, error.key) == ("C", "a")
    assert error.record == mw.Record(key="a", value="bad", timestamp=7, stream="in", id="x")
    assert isinstance(error.cause, ValueError)
    assert error.cause.args == ("no good",)


def test_the_message_has_the_traceback_of_the_user_s_code(harness: MakeHarness) -> None:
    h = harness(hooks(fragile))
    with pytest.raises(mw.UserCodeError, match="in fragile"):
        h.send("in", "bad", timestamp=7)


def test_the_error_of_a_timer_names_the_timer(harness: MakeHarness) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        raise KeyError(timer.tag)

    h = harness(hooks(lambda c, record: c.set_timer("t", 10), on_timer))
    h.send("in", 1, timestamp=0, key="a")
    with pytest.raises(mw.UserCodeError, match="process_timer raised KeyError") as caught:
        h.advance("in", 20)
    assert caught.value.record == mw.Timer("t", 10, mw.WATERMARK)
    assert (caught.value.computation, caught.value.key) == ("C", "a")
    assert isinstance(caught.value.cause, KeyError)


def test_after_an_error_all_is_as_before_the_call(harness: MakeHarness) -> None:
    h = harness(hooks(fragile))
    h.send("in", "good", timestamp=5, id=1, key="a")
    h.advance("in", 10)
    before = h.status()

    def fail() -> None:
        with h.epoch():
            h.send("in", "good", timestamp=11, id=2, key="b")
            h.send("in", "bad", timestamp=12, id=3, key="a")
            h.advance("in", 90)
            h.advance_wall(60)

    with pytest.raises(mw.UserCodeError):
        fail()
    assert h.status() == before
    assert h.state("C", "a") == {"n": 1}
    assert h.state("C", "b") is None
    assert h.timers("C", "a") == [mw.Timer("t", 1_000)]
    assert h.timers("C", "b") == []
    assert h.low_watermark("C") == 5
    assert values(h.output("out")) == ["good"]
    assert values(h.output("in")) == ["good"]


def test_after_an_error_the_pipeline_goes_on_and_ids_are_not_seen(harness: MakeHarness) -> None:
    h = harness(hooks(fragile))
    with pytest.raises(mw.UserCodeError):
        h.send("in", "bad", timestamp=5, id=1)
    h.send("in", "good", timestamp=5, id=1)
    assert h.state("C", "") == {"n": 1}
    assert values(h.output("out")) == ["good"]
    assert h.status().duplicates["C"] == 0


def test_a_failed_advance_can_be_tried_again(harness: MakeHarness) -> None:
    broken = [True]

    class Breaks(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            self.set_timer("t", 10)

        def process_timer(self, timer: mw.Timer) -> None:
            if broken:
                raise RuntimeError("broken")
            self.produce("out", timer.tag)

        def __deepcopy__(self, memo: object) -> Breaks:
            return Breaks()

    h = harness(single(Breaks()))
    h.send("in", 1, timestamp=0)
    with pytest.raises(mw.UserCodeError):
        h.advance("in", 20)
    assert h.low_watermark("C") < 10
    assert h.timers("C", "") == [mw.Timer("t", 10)]
    broken.clear()
    h.advance("in", 20)
    assert values(h.output("out")) == ["t"]


def test_a_failure_downstream_undoes_the_computations_before_it(harness: MakeHarness) -> None:
    for key in (mw.by_key, lambda record: "all"):
        p = single(Counter(), outputs=["counts"])
        p.add(Hooks(lambda c, record: 1 / (record.value - 2)), name="Down", inputs={"counts": key})
        h = harness(p)
        h.send("in", None, timestamp=0)
        with pytest.raises(mw.UserCodeError) as caught:
            h.send("in", None, timestamp=0)
        assert caught.value.computation == "Down"
        assert isinstance(caught.value.cause, ZeroDivisionError)
        assert h.state("C", "") == {"n": 1}
        assert values(h.output("counts")) == [1]


def test_an_error_while_draining_leaves_all_as_before(harness: MakeHarness) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        raise RuntimeError("broken")

    h = harness(hooks(lambda c, record: c.set_timer("t", 10), on_timer))
    h.send("in", 1, timestamp=0)
    before = h.status()
    with pytest.raises(mw.UserCodeError):
        h.drain()
    assert h.status() == before
    assert h.timers("C", "") == [mw.Timer("t", 10)]


def test_an_error_behind_a_hold_while_draining_leaves_all_as_before(harness: MakeHarness) -> None:
    """The hold ends with the run, which sets free what fails."""

    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        raise RuntimeError("broken")

    p = hooks(lambda c, record: (c.produce("out", 1), c.hold(record.timestamp))[0])
    p.add(
        Hooks(lambda c, record: c.set_timer("t", 10), on_timer),
        name="Down",
        inputs={"out": lambda record: "all"},
    )
    h = harness(p)
    h.send("in", 1, timestamp=0)
    before = h.status()
    with pytest.raises(mw.UserCodeError):
        h.drain()
    assert h.status() == before
    assert h.timers("Down", "all") == [mw.Timer("t", 10)]
    h.advance("in", 5)
    assert h.low_watermark("Down") == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda c, record: c.produce("nowhere", 1),
        lambda c, record: c.produce("in", 1),
    ],
)
def test_producing_to_a_stream_that_is_no_output_says_so(
    use: Callable[[Hooks, mw.Record], None], harness: MakeHarness
) -> None:
    h = harness(hooks(use))
    with pytest.raises(mw.UserCodeError, match=r"'C'.*not among its outputs.*out") as caught:
        h.send("in", 1, timestamp=0)
    assert isinstance(caught.value.cause, mw.PipelineError)


def test_an_error_with_an_unpicklable_cause_still_arrives(harness: MakeHarness) -> None:
    class Awkward(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__("awkward")
            self.sum = lambda: a + b

    def on_record(c: Hooks, record: mw.Record) -> None:
        raise Awkward(1, 2)

    h = harness(hooks(on_record))
    with pytest.raises(mw.UserCodeError, match="awkward") as caught:
        h.send("in", 1, timestamp=3, key="a")
    assert (caught.value.computation, caught.value.key) == ("C", "a")
    assert caught.value.record == mw.Record(key="a", value=1, timestamp=3, stream="in")
    assert "awkward" in str(caught.value.cause)


def test_the_cause_is_the_exception_itself_wherever_its_class_is_defined(harness: MakeHarness) -> None:
    class Local(Exception):
        pass

    def on_record(c: Hooks, record: mw.Record) -> None:
        raise Local("here")

    h = harness(hooks(on_record))
    with pytest.raises(mw.UserCodeError) as caught:
        h.send("in", 1, timestamp=3, key="a")
    assert isinstance(caught.value.cause, Local)
    assert caught.value.record == mw.Record(key="a", value=1, timestamp=3, stream="in")
