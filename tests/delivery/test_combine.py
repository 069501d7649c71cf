"""A combiner joins a key's records before the hook gets them; the result is the one without it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.memory import MemoryStore
from millwheel.worker.step import Worker
from tests.computations import Hooks, values

_WINDOW = 100


class Windows(mw.Computation):
    """Sums by key and window."""

    def process_record(self, record: mw.Record) -> None:
        self.count("arrivals")
        if record.late:
            self.count("late arrivals")
        window = record.timestamp // _WINDOW
        self.state[window] = self.state.get(window, 0) + record.value
        self.set_timer(str(window), (window + 1) * _WINDOW)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("sums", self.state.pop(int(timer.tag)), timestamp=timer.timestamp - 1)


Combine = Callable[[str, Sequence[mw.Record]], Any]


def _run(
    records: list[mw.Record],
    combine: Combine | None,
    *,
    slots: int = 2,
    late: Any = "deliver",
    watermarks: list[int] | None = None,
    twice: bool = False,
) -> tuple[list[tuple[str, int, Any]], mw.Report]:
    """A whole run, in epochs of seven records; with ``twice``, behind a computation that keeps the key."""
    sink = mw.sinks.Collect()
    p = mw.Pipeline("combining")
    p.inject("numbers", mw.injectors.Records(records, watermarks, per_epoch=7))
    inputs = "numbers"
    if twice:
        pass_on = Hooks(lambda c, record: c.produce("passed", record.value))
        p.add(pass_on, name="Pass", inputs={"numbers": mw.by_key}, outputs=["passed"])
        inputs = "passed"
    p.add(Windows(), inputs={inputs: mw.by_key}, outputs=["sums"], late=late, combine=combine)
    p.sink("sums", sink)
    graph, store = build(p), MemoryStore(2)
    driver = Driver(graph, store, Options(slots=slots), clock=lambda: 0, owner="a test")
    executor = LocalExecutor(Worker(graph, driver.numbers, store, random.Random(1)))
    while (plan := driver.next_plan_to_the_end()) is not None:
        driver.run(plan, executor)
    report = driver.report()
    found = sorted((record.key, record.timestamp, record.value) for record in sink.records)
    driver.close()
    return found, report


def by_hand(key: str, records: Sequence[mw.Record]) -> list[tuple[int, int]]:
    """As `mw.combiners.Sum`, by hand."""
    found: dict[int, list[mw.Record]] = {}
    for record in records:
        assert record.key == key
        found.setdefault(record.timestamp // _WINDOW, []).append(record)
    return [(sum(r.value for r in part), min(r.timestamp for r in part)) for part in found.values()]


_records = st.lists(
    st.builds(
        lambda key, value, time: mw.Record(key=key, value=value, timestamp=time),
        st.sampled_from(["hot", "hot", "hot", "cold", "other"]),
        st.integers(-5, 5),
        st.integers(0, 500),
    ),
    max_size=60,
)


@settings(max_examples=50, deadline=None)
@given(_records, st.booleans(), st.sampled_from([mw.combiners.Sum(_WINDOW), by_hand]))
def test_the_result_is_the_one_without(records: list[mw.Record], twice: bool, combine: Combine) -> None:
    plain, _ = _run(records, None, twice=twice)
    combined, _ = _run(records, combine, twice=twice)
    assert combined == plain


@settings(max_examples=50, deadline=None)
@given(_records, st.sampled_from(["deliver", "drop", "divert"]), st.data())
def test_late_records_are_late_and_counted_as_they_would_be_without(
    records: list[mw.Record], late: str, data: st.DataObject
) -> None:
    """The watermark jumps ahead of records that are still to come."""
    marks = [data.draw(st.integers(0, 400)) for _ in records]
    marks = [max(marks[: i + 1]) for i in range(len(marks))]
    plain, before = _run(records, None, late=late, watermarks=marks)
    combined, after = _run(records, mw.combiners.Sum(_WINDOW), late=late, watermarks=marks)
    assert combined == plain
    assert (after.late, after.dropped, after.diverted) == (before.late, before.dropped, before.diverted)
    assert after.user.get("late arrivals") == before.user.get("late arrivals")


def test_the_hook_is_called_for_few_and_all_records_are_counted() -> None:
    records = [mw.Record(key="hot", value=1, timestamp=i) for i in range(70)]
    _, report = _run(records, mw.combiners.Count(_WINDOW))
    assert report.user["arrivals"] == 10  # one for each epoch
    assert report.records["Windows"] == report.streams["numbers"] == 70


def _harness(combine: Any, *, errors: Any = "stop", **options: Any) -> mw.testing.Harness:
    p = mw.Pipeline("combining")
    p.inject("numbers", mw.injectors.Records([]))
    hooks = Hooks(lambda c, record: c.produce("seen", [record.key, record.value, record.timestamp]))
    p.add(
        hooks,
        name="Sees",
        inputs={"numbers": mw.by("key")},
        outputs=["seen"],
        combine=combine,
        errors=errors,
        **options,
    )
    return mw.testing.Harness(p)


def _send(h: mw.testing.Harness, *sent: tuple[str, Any, int]) -> None:
    with h.epoch():
        for key, value, time in sent:
            h.send("numbers", {"key": key, "n": value}, timestamp=time)


def test_a_field_is_summed_and_windows_stay_apart() -> None:
    h = _harness(mw.combiners.Sum(10, field="n"))
    _send(h, ("a", 1, 3), ("b", 5, 4), ("a", 2, 7), ("a", 4, 12))
    assert sorted(values(h.output("seen"))) == [["a", 3, 7], ["a", 4, 12], ["b", 5, 4]]


def test_a_reduction_takes_any_function() -> None:
    h = _harness(mw.combiners.Reduce(max, None, field="n"))
    _send(h, ("a", 1, 3), ("a", 9, 4), ("a", 2, 700))
    assert values(h.output("seen")) == [["a", 9, 700]]


def test_a_combiner_may_give_nothing_for_a_key() -> None:
    h = _harness(lambda key, records: [] if key == "a" else [(len(records), records[0].timestamp)])
    _send(h, ("a", 1, 3), ("b", 9, 4))
    assert values(h.output("seen")) == [["b", 1, 4]]


def test_what_a_combiner_does_to_values_nobody_else_sees() -> None:
    def spoil(key: str, records: Sequence[mw.Record]) -> list[tuple[Any, int]]:
        for record in records:
            record.value["n"] = "spoilt"
        return [(len(records), records[0].timestamp)]

    p = mw.Pipeline("combining")
    p.inject("numbers", mw.injectors.Records([]))
    p.add(Hooks(lambda c, r: None), name="One", inputs={"numbers": mw.by("key")}, combine=spoil)
    see = Hooks(lambda c, record: c.produce("seen", record.value["n"]))
    p.add(see, name="Two", inputs={"numbers": mw.by("key")}, outputs=["seen"])
    h = mw.testing.Harness(p)
    _send(h, ("a", 1, 3), ("a", 2, 4))
    assert values(h.output("seen")) == [1, 2]


def _picky(key: str, records: Sequence[mw.Record]) -> list[tuple[Any, int]]:
    return [(sum(10 // record.value["n"] for record in records), records[-1].timestamp)]


def test_a_combiner_that_raises_stops_the_pipeline_and_names_the_computation() -> None:
    h = _harness(_picky)
    with pytest.raises(
        mw.UserCodeError, match=r"'Sees', stream 'numbers': the combiner .*_picky.* raised"
    ) as e:
        _send(h, ("a", 1, 3), ("a", 0, 4))
    assert e.value.computation == "Sees"
    assert isinstance(e.value.cause, ZeroDivisionError)


def test_with_divert_the_bad_record_goes_alone() -> None:
    h = _harness(_picky, errors="divert")
    _send(h, ("a", 1, 3), ("a", 0, 4), ("a", 5, 5), ("b", 10, 6))
    assert sorted(values(h.output("seen"))) == [["a", 2, 5], ["a", 10, 3], ["b", 1, 6]]
    (bad,) = h.output("Sees.errors")
    assert (bad.key, bad.timestamp, bad.value["value"]) == ("a", 4, {"key": "a", "n": 0})
    assert "ZeroDivisionError" in bad.value["traceback"]
    assert h.status().failed["Sees"] == 1


@pytest.mark.parametrize(
    ("combine", "message"),
    [
        (lambda key, records: [(1, 2)], "gave the timestamp 2, and its records are of 3 to 4"),
        (lambda key, records: [(1, 5)], "gave the timestamp 5"),
        (lambda key, records: [7], "gave 7, which is no"),
        (lambda key, records: [(1, 3.0)], "which is no"),
        (lambda key, records: [(object(), 3)], "raised"),
    ],
)
def test_what_a_combiner_gives_is_checked(combine: Any, message: str) -> None:
    with pytest.raises(mw.UserCodeError, match=message):
        _send(_harness(combine), ("a", 1, 3), ("a", 0, 4))


def test_ids_are_deduplicated_before_values_are_combined() -> None:
    for exactly_once, expected in ((True, [["a", 2, 2]]), (False, [["a", 3, 2]])):
        h = _harness(mw.combiners.Count(10), exactly_once=exactly_once)
        with h.epoch():
            for id, time in (("x", 1), ("x", 1), ("y", 2)):
                h.send("numbers", {"key": "a"}, timestamp=time, id=id)
        assert values(h.output("seen")) == expected
        h.send("numbers", {"key": "a"}, timestamp=1, id="y")
        assert h.status().duplicates["Sees"] == (2 if exactly_once else 0)


def test_what_is_no_combiner_is_refused() -> None:
    for wrong in ("sum", mw.combiners.Count, 7):
        with pytest.raises(mw.PipelineError, match="combine is a function of a key and its records"):
            _harness(wrong)
    for window in (0, -1, 1.5, True):
        with pytest.raises(mw.PipelineError, match="the window is a width"):
            mw.combiners.Count(window)  # type: ignore[arg-type]
