"""Names of any length work on every store: no limit of a store reaches a user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import millwheel as mw
from millwheel.store.base import Store
from millwheel.store.tools.check import check
from millwheel.watch.explain import explain
from millwheel.watch.key_view import inspect
from millwheel.watch.view import look
from tests.store.driving import run_to_the_end, take

_LONG = "a name that is longer than any key of a store may be, " * 80


class Partitions(mw.Injector):
    """Two partitions whose long names differ at their ends only."""

    def poll(self) -> Mapping[str, int]:
        return {_LONG + "1": 3, _LONG + "2": 3}

    def read(self, partition: str, start: int | None, end: int) -> Iterable[mw.Record]:
        for number in range(start or 0, end):
            yield mw.Record(value=number, timestamp=number, key="k" + partition, id=f"{partition}{number}")

    def low_watermark(self, partition: str, offset: int | None) -> int:
        return mw.MAX_TIME if offset == 3 else mw.MIN_TIME


class Count(mw.Computation):
    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.set_timer(_LONG, record.timestamp + 10)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("out" + _LONG, self.state["n"])


def _pipeline(sink: mw.sinks.Collect, name: str = _LONG) -> mw.Pipeline:
    pipeline = mw.Pipeline(_LONG)
    pipeline.inject("in" + _LONG, Partitions())
    pipeline.add(Count(), name=name, inputs={"in" + _LONG: mw.by_key}, outputs=["out" + _LONG])
    pipeline.sink("out" + _LONG, sink)
    return pipeline


def test_names_keys_tags_and_partitions_of_any_length_work(make_store: Callable[..., Store]) -> None:
    store, sink = make_store(), mw.sinks.Collect()
    driver, executor = take(_pipeline(sink), store)
    run_to_the_end(driver, executor)
    assert sorted(record.value for record in sink.records) == [3, 3]
    assert check(store).problems == []
    assert [found.name for found in look(store, 0).computations] == [_LONG]
    explain(store, _LONG)
    assert inspect(store, _LONG, "k" + _LONG + "1").state == {"n": 3}
    driver.let_go()


def test_what_was_read_of_a_partition_with_a_long_name_is_not_read_again(
    make_store: Callable[..., Store],
) -> None:
    store = make_store()
    driver, executor = take(_pipeline(mw.sinks.Collect()), store)
    run_to_the_end(driver, executor)
    driver.let_go()
    again = mw.sinks.Collect()
    driver, executor = take(_pipeline(again), store, owner="another", takeover=True)
    report = run_to_the_end(driver, executor)
    assert report.records_in == 0
    assert again.records == []
