"""With a combiner and without: the same states, outputs, late and diverted records, counts (semantics 16)."""

from __future__ import annotations

import copy
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.memory import MemoryStore
from millwheel.testing import simulate
from millwheel.worker.step import Worker

_WINDOW = 20
_BAD = 13


class Sums(mw.Computation):
    """Sums lists of numbers by window, and refuses a list with a bad one; changes what it is given."""

    def process_record(self, record: mw.Record) -> None:
        window = record.timestamp // _WINDOW
        found = self.state.setdefault(window, [0, 0, []])
        found[0] += sum(record.value)
        found[1] += record.late
        found[2] = sorted({*found[2], record.stream})
        self.set_timer(str(window), (window + 1) * _WINDOW)
        if _BAD in record.value:
            record.value.clear()
            raise ValueError("bad")

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("sums", self.state.pop(int(timer.tag)), timestamp=timer.timestamp - 1)


class Echo(mw.Computation):
    """Passes errors on, by their key."""

    def process_record(self, record: mw.Record) -> None:
        self.produce("errors seen", record.value["value"])


def _in_place(left: list[int], right: list[int]) -> list[int]:
    left += right
    return left


_COMBINE = mw.combiners.Reduce(_in_place, _WINDOW)

_records = st.lists(
    st.builds(
        lambda key, value, time, id: mw.Record(key=key, value=[value], timestamp=time, id=id),
        st.sampled_from(["hot", "hot", "cold"]),
        st.sampled_from([1, 2, 3, 5, 8, _BAD]),
        st.integers(0, 100),
        st.sampled_from([None, None, 1, 2, 3]),
    ),
    max_size=40,
)


def _pipeline(
    streams: list[list[mw.Record]],
    marks: list[list[int] | None],
    per_epoch: int,
    combine: Any,
    **options: Any,
) -> tuple[mw.Pipeline, mw.sinks.Collect, mw.sinks.Collect]:
    p = mw.Pipeline("combining")
    for number, (records, watermarks) in enumerate(zip(streams, marks, strict=True)):
        p.inject(f"in {number}", mw.injectors.Records(records, watermarks, per_epoch=per_epoch))
    p.add(
        Sums(),
        inputs={f"in {number}": mw.by_key for number in range(len(streams))},
        outputs=["sums"],
        combine=combine,
        **options,
    )
    sums, others = mw.sinks.Collect(), mw.sinks.Collect()
    p.sink("sums", sums)
    if options.get("errors") == "divert":
        p.add(Echo(), inputs={"Sums.errors": mw.by_key}, outputs=["errors seen"])
        p.sink("Sums.errors", others)
        p.sink("errors seen", others)
    if options.get("late") == "divert":
        p.sink("Sums.late", others)
    return p, sums, others


def _end(p: mw.Pipeline, *, slots: int, step_budget: float, crash: int | None) -> tuple[Any, ...]:
    """The counts and the rows at the end of a run; every so many epochs the driver and the worker die."""
    graph, store = build(p), MemoryStore(2)

    def start() -> tuple[Driver, LocalExecutor]:
        driver = Driver(
            graph, store, Options(slots=slots, step_budget=step_budget), clock=lambda: 0, owner="a test"
        )
        return driver, LocalExecutor(Worker(graph, driver.numbers, store, random.Random(1)))

    driver, executor = start()
    before = driver.tally.totals.copy()
    while (plan := driver.next_plan_to_the_end()) is not None:
        driver.run(plan, executor)
        if crash is not None and plan.epoch % crash == 0:
            driver.store.close()
            driver, executor = start()
    driver.tally.baseline = before
    report = driver.report()
    rows = []
    for shard in store.shards:
        with shard.snapshot() as snapshot:
            rows += list(snapshot.scan(b"R", b"U"))
    counts = (report.records, report.late, report.dropped, report.diverted, report.duplicates, report.failed)
    return counts, report.streams, rows


def _found(sink: mw.sinks.Collect) -> list[Any]:
    """Records as they can be compared: tracebacks have other lines."""
    found = []
    for record in sink.records:
        value = record.value
        if isinstance(value, dict):
            value = {name: part for name, part in value.items() if name != "traceback"}
        found.append((record.stream, record.key, record.timestamp, repr(value), record.id))
    return sorted(found, key=repr)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_nothing_but_the_calls_of_the_hook_is_different(data: st.DataObject) -> None:
    streams = [data.draw(_records) for _ in range(data.draw(st.integers(1, 2)))]
    marks: list[list[int] | None] = []
    for records in streams:
        if data.draw(st.booleans()):
            marks.append(None)
        else:
            drawn = [data.draw(st.integers(0, 90)) for _ in records]
            marks.append([max(drawn[: i + 1]) for i in range(len(drawn))])
    options = {
        "late": data.draw(st.sampled_from(["deliver", "drop", "divert"])),
        "exactly_once": data.draw(st.booleans()),
        "errors": "divert",
    }
    per_epoch = data.draw(st.sampled_from([1, 3, 7, 40]))
    how = {
        "slots": data.draw(st.integers(1, 2)),
        "step_budget": data.draw(st.sampled_from([0.0, 1e9])),
        "crash": data.draw(st.sampled_from([None, 1, 2])),
    }
    as_given = copy.deepcopy(streams)
    plain, sums, others = _pipeline(copy.deepcopy(streams), marks, per_epoch, None, **options)
    combined, sums_combined, others_combined = _pipeline(streams, marks, per_epoch, _COMBINE, **options)
    assert _end(combined, **how) == _end(plain, **how)
    assert _found(sums_combined) == _found(sums)
    assert _found(others_combined) == _found(others)
    assert streams == as_given


def test_late_records_keep_their_place_among_the_others() -> None:
    class Order(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            self.produce("order", [record.value, record.timestamp, record.late])

    p = mw.Pipeline("combining")
    p.inject("numbers", mw.injectors.Records([]))
    first = mw.combiners.Reduce(lambda left, right: [*left, *right], None)
    p.add(Order(), inputs={"numbers": mw.by_key}, outputs=["order"], combine=first)
    h = mw.testing.Harness(p)
    h.advance("numbers", 10)
    with h.epoch():
        for number, time in enumerate((11, 12, 5, 6, 13, 14)):
            h.send("numbers", [number], timestamp=time, key="k")
    assert [record.value for record in h.output("order")] == [
        [[0, 1], 12, False],
        [[2], 5, True],
        [[3], 6, True],
        [[4, 5], 14, False],
    ]


def test_late_records_are_diverted_as_they_came() -> None:
    p = mw.Pipeline("combining")
    p.inject("numbers", mw.injectors.Records([]))
    p.add(
        Sums(),
        inputs={"numbers": mw.by_key},
        outputs=["sums"],
        late="divert",
        combine=lambda key, records: [],
    )
    h = mw.testing.Harness(p)
    h.advance("numbers", 10)
    h.send("numbers", [4], timestamp=5, key="k", id="x")
    assert [(r.key, r.value, r.timestamp) for r in h.output("Sums.late")] == [("k", [4], 5)]


def test_a_failed_group_is_combined_again_from_the_values_as_they_came() -> None:
    p, *_ = _pipeline([[]], [None], 1, _COMBINE, errors="divert")
    h = mw.testing.Harness(p)
    with h.epoch():
        for value in (1, _BAD, 2):
            h.send("in 0", [value], timestamp=5, key="k", id=value)
    (error,) = h.output("Sums.errors")
    assert (error.key, error.timestamp, error.value["value"], error.value["id"]) == ("k", 5, [_BAD], _BAD)
    assert h.state("Sums", "k") == {0: [3, 0, ["in 0"]]}
    assert [(r.key, r.value) for r in h.output("errors seen")] == [("k", [_BAD])]
    assert (h.status().failed["Sums"], h.status().records["Sums"]) == (1, 2)


def test_a_combiner_that_fails_diverts_to_a_consumer_of_the_same_level() -> None:
    """The producer, the computation and the reader of its errors keep the key: all three are one level."""

    class Pass(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            self.produce("passed", record.value)

    def picky(key: str, records: Any) -> Any:
        if any(record.value == [_BAD] for record in records):
            raise ValueError("bad")
        return [(record.value, record.timestamp) for record in records]

    p = mw.Pipeline("combining")
    p.inject("numbers", mw.injectors.Records([]))
    p.add(Pass(), inputs={"numbers": mw.by_key}, outputs=["passed"])
    p.add(Sums(), inputs={"passed": mw.by_key}, outputs=["sums"], errors="divert", combine=picky)
    p.add(Echo(), inputs={"Sums.errors": mw.by_key}, outputs=["errors seen"])
    h = mw.testing.Harness(p)
    with h.epoch():
        for value in (1, _BAD, 2):
            h.send("numbers", [value], timestamp=5, key="k")
    assert [(r.key, r.value) for r in h.output("errors seen")] == [("k", [_BAD])]
    assert h.state("Sums", "k")[0][0] == 3


def test_a_slow_hook_is_called_for_a_whole_group_whatever_the_budget() -> None:
    calls = []

    class Slow(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            calls.append(record.value)

    p = mw.Pipeline("combining")
    records = [mw.Record(key="k", value=1, timestamp=1) for _ in range(100)]
    p.inject("numbers", mw.injectors.Records(records))
    p.add(Slow(), inputs={"numbers": mw.by_key}, combine=mw.combiners.Count(None))
    _end(p, slots=1, step_budget=0.0, crash=None)
    assert calls == [100]


def test_crashes_change_nothing() -> None:
    order = random.Random(7)
    records = [
        mw.Record(
            key=order.choice("abc"),
            value=[order.choice([1, 2, _BAD])],
            timestamp=number + order.randrange(-15, 15),
            id=order.choice([None, number % 9]),
        )
        for number in range(80)
    ]

    def make() -> mw.Pipeline:
        p, *_ = _pipeline([copy.deepcopy(records)], [None], 7, _COMBINE, errors="divert")
        return p

    assert sum(simulate(make, seeds=range(20)).values()) > 20
