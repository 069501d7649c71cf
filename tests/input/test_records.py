"""Records that are there already."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.store.memory import MemoryStore
from tests.computations import Log
from tests.store.driving import run

Records = mw.injectors.Records


def _records(*times: int) -> list[mw.Record]:
    return [mw.Record(value=i, timestamp=time, key="k") for i, time in enumerate(times)]


def _logged(injector: mw.Injector, store: MemoryStore | None = None) -> list[Any]:
    p = mw.Pipeline("records")
    p.inject("in", injector)
    p.add(Log(), inputs={"in": mw.by_key}, outputs=["log"])
    sink = mw.sinks.Collect()
    p.sink("log", sink)
    run(p, store if store is not None else MemoryStore())
    return [record.value for record in sink.records]


def test_they_are_read_in_order_with_all_that_they_have() -> None:
    records = [mw.Record(value={"v": i}, timestamp=i, key=f"k{i}", id=f"id{i}") for i in range(5)]
    injector = Records(records)
    assert injector.poll() == {"records": 5}
    assert list(injector.read("records", None, 5)) == records
    assert list(injector.read("records", 2, 4)) == records[2:4]


def test_an_iterator_is_as_good_as_a_list() -> None:
    injector = Records(mw.Record(value=i, timestamp=i) for i in range(3))
    assert injector.poll() == {"records": 3}
    assert len(list(injector.read("records", None, 3))) == 3
    assert len(list(injector.read("records", None, 3))) == 3


def test_no_records_are_exhausted_from_the_start() -> None:
    injector = Records([])
    assert injector.poll() == {"records": 0}
    assert injector.low_watermark("records", None) == mw.MAX_TIME
    assert _logged(Records([])) == []


def test_the_watermark_is_the_oldest_timestamp_unread() -> None:
    injector = Records(_records(5, 3, 9, 7))
    assert [injector.low_watermark("records", offset) for offset in (None, 0, 1, 2, 3, 4)] == [
        3,
        3,
        3,
        7,
        7,
        mw.MAX_TIME,
    ]


def test_watermarks_that_are_given_are_those_once_the_record_was_read() -> None:
    injector = Records(_records(5, 3, 9), watermarks=[4, 6, 8])
    assert [injector.low_watermark("records", offset) for offset in (None, 1, 2)] == [mw.MIN_TIME, 4, 6]


def test_behind_the_last_record_the_watermark_is_at_its_end() -> None:
    assert Records(_records(5, 3), watermarks=[4, 6]).low_watermark("records", 2) == mw.MAX_TIME


@pytest.mark.parametrize("watermarks", [[], [1], [1, 2, 3]])
def test_as_many_watermarks_as_records_are_wanted(watermarks: list[int]) -> None:
    with pytest.raises(mw.InputError, match=rf"2 records and {len(watermarks)} watermarks: entry i is"):
        Records(_records(5, 3), watermarks=watermarks)


def test_watermarks_make_records_late() -> None:
    injector = Records(_records(10, 20, 15, 30), watermarks=[10, 20, 20, 30], per_epoch=1)
    assert [entry[3] for entry in _logged(injector)] == [False, False, True, False]


def test_a_watermark_that_would_go_back_stays() -> None:
    injector = Records(_records(10, 20, 15), watermarks=[18, 5, 5], per_epoch=1)
    assert [entry[3] for entry in _logged(injector)] == [False, False, True]


def test_without_watermarks_nothing_is_late() -> None:
    injector = Records(_records(30, 10, 20, 5, 40), per_epoch=1)
    assert [entry[3] for entry in _logged(injector)] == [False] * 5


def test_per_epoch_bounds_what_an_epoch_takes() -> None:
    p = mw.Pipeline("records")
    p.inject("in", Records(_records(*range(7)), per_epoch=2))
    report = run(p, MemoryStore())
    assert report.epochs == 4
    assert report.records_in == 7


def test_a_second_run_with_more_records_reads_the_new_ones_only() -> None:
    store = MemoryStore()
    assert [entry[1] for entry in _logged(Records(_records(1, 2)), store)] == [0, 1]
    assert _logged(Records(_records(1, 2)), store) == []
    assert [entry[1] for entry in _logged(Records(_records(1, 2, 3, 4)), store)] == [2, 3]


def test_a_second_run_with_fewer_records_does_not_begin_anew() -> None:
    store = MemoryStore()
    _logged(Records(_records(1, 2, 3)), store)
    try:
        assert _logged(Records(_records(1)), store) == []
    except mw.InputError:
        store.close()  # to say that records are gone is as good
    assert [entry[1] for entry in _logged(Records(_records(1, 2, 3, 4)), store)] == [3]
