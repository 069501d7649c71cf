"""A hook that would silently do nothing is an error: when its computation is added, or when it runs."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import millwheel as mw
from tests.computations import single
from tests.conftest import MakeHarness


def computation(**methods: Any) -> mw.Computation:
    made: mw.Computation = type("Mine", (mw.Computation,), methods)()
    return made


def nothing(self: Any, given: Any) -> None:
    pass


def test_a_computation_without_a_hook_is_refused_when_it_is_added() -> None:
    with pytest.raises(
        mw.PipelineError,
        match=r"'C': Mine defines neither process_record nor process_timer.*would do nothing",
    ):
        single(computation())


@pytest.mark.parametrize(
    ("method", "hook"),
    [
        *((name, "process_record") for name in ("process", "process_records", "on_record", "processrecord")),
        *((name, "process_record") for name in ("processRecord", "proces_record", "handle_record")),
        *(
            (name, "process_timer")
            for name in ("on_timer", "process_timers", "processTimer", "proccess_timer")
        ),
    ],
)
def test_a_method_that_is_called_almost_like_a_hook_is_told_its_name(method: str, hook: str) -> None:
    with pytest.raises(mw.PipelineError, match=f"It has {method}: did you mean {hook}\\?"):
        single(computation(**{method: nothing}))


@pytest.mark.parametrize("method", ["process_batch", "helper", "recorded", "produce_all"])
def test_any_other_method_is_not_taken_for_a_hook(method: str) -> None:
    with pytest.raises(mw.PipelineError) as refused:
        single(computation(**{method: nothing}))
    assert "did you mean" not in str(refused.value)


def test_with_one_hook_there_a_name_like_the_other_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="millwheel"):
        single(computation(process_timer=nothing, process_records=nothing))
        assert "process_records and no process_record: did you mean process_record?" in caplog.text
        caplog.clear()
        single(computation(process_record=nothing, timer=nothing))
        assert not caplog.text


@pytest.mark.parametrize("hook", ["process_record", "process_timer"])
def test_a_hook_that_nobody_would_run_is_refused_when_it_is_added(hook: str) -> None:
    def generator(self: Any, given: Any) -> Any:
        yield given

    async def coroutine(self: Any, given: Any) -> None:
        pass

    async def both(self: Any, given: Any) -> Any:
        yield given

    with pytest.raises(mw.PipelineError, match=f"{hook} has a yield.*self.produce"):
        single(computation(**{hook: generator}))
    for wrong in (coroutine, both):
        with pytest.raises(mw.PipelineError, match=f"{hook} is defined with async def.*write def {hook}"):
            single(computation(**{hook: wrong}))


def test_a_hook_may_be_inherited_or_set_on_the_instance() -> None:
    class Base(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            pass

    class Derived(Base):
        pass

    single(Derived())
    mine = computation()
    mine.process_record = lambda record: None  # type: ignore[method-assign]
    single(mine)


@pytest.mark.parametrize("clock", [mw.WATERMARK, mw.WALL])
def test_a_timer_without_process_timer_is_an_error_of_the_hook(clock: Any, harness: MakeHarness) -> None:
    class Forgotten(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            self.set_timer("close", 10, clock)

    h = harness(single(Forgotten()))
    with pytest.raises(
        mw.UserCodeError, match=r"'close', but Forgotten has no process_timer.*define process_timer"
    ) as raised:
        h.send("in", {}, timestamp=1, key="k")
    assert (raised.value.computation, raised.value.key) == ("C", "k")


def test_a_timer_without_process_timer_is_found_through_super_too() -> None:
    class Forgotten(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            super().set_timer("close", 10)

    with pytest.raises(mw.UserCodeError, match="has no process_timer"):
        mw.testing.Harness(single(Forgotten())).send("in", {}, timestamp=1)


@pytest.mark.parametrize("returned", [0, False, "", [], 5, {"a": 1}])
def test_a_hook_that_returns_a_value_is_an_error(returned: Any, harness: MakeHarness) -> None:
    class Returns(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            return returned  # type: ignore[no-any-return]

    class Fires(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            self.set_timer("t", 5)

        def process_timer(self, timer: mw.Timer) -> None:
            return returned  # type: ignore[no-any-return]

    with pytest.raises(mw.UserCodeError, match=r"process_record returned .*self\.produce") as raised:
        harness(single(Returns())).send("in", {}, timestamp=1, key="k")
    assert raised.value.key == "k"
    h = harness(single(Fires()))
    h.send("in", {}, timestamp=1, key="k")
    with pytest.raises(mw.UserCodeError, match=r"process_timer returned .*self\.produce"):
        h.drain()


def test_a_returned_value_is_diverted_as_any_error_of_a_hook(harness: MakeHarness) -> None:
    class Returns(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            return record.value  # type: ignore[no-any-return]

    h = harness(single(Returns(), errors="divert"))
    h.send("in", None, timestamp=1)
    h.send("in", 7, timestamp=2)
    (found,) = h.output("C.errors")
    assert (found.value["value"], found.timestamp) == (7, 2)
    assert "returned 7" in found.value["error"]


def test_a_hook_of_an_ordered_computation_returns_nothing_either() -> None:
    class Returns(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            return 7  # type: ignore[return-value]

    h = mw.testing.Harness(single(Returns(), in_order=True))
    h.send("in", {}, timestamp=1)
    with pytest.raises(mw.UserCodeError, match="returned 7"):
        h.advance("in", 5)


def test_a_combined_computation_s_hook_returns_nothing_either() -> None:
    class Returns(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            return 7  # type: ignore[return-value]

    h = mw.testing.Harness(single(Returns(), combine=mw.combiners.Count(10)))
    with pytest.raises(mw.UserCodeError, match="returned 7"):
        h.send("in", {}, timestamp=1)
