"""Records in the driver's memory."""

from __future__ import annotations

import pickle

import pytest

import millwheel as mw
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.store.driving import run


def _record(value: int) -> mw.Record:
    return mw.Record(value=value, timestamp=value)


def test_records_come_epoch_by_epoch_and_shard_by_shard() -> None:
    sink = mw.sinks.Collect()
    sink.write(2, 0, [_record(4)])
    sink.write(1, 1, [_record(2), _record(3)])
    sink.write(1, 0, [_record(1)])
    assert [record.value for record in sink.records] == [1, 2, 3, 4]


def test_a_retry_replaces_what_the_first_attempt_wrote() -> None:
    sink = mw.sinks.Collect()
    sink.write(1, 0, [_record(1), _record(2)])
    sink.write(1, 0, [_record(1), _record(2)])
    assert [record.value for record in sink.records] == [1, 2]


def test_it_keeps_a_list_of_its_own() -> None:
    sink = mw.sinks.Collect()
    records = [_record(1)]
    sink.write(1, 0, records)
    records.clear()
    sink.records.clear()
    assert [record.value for record in sink.records] == [1]


def test_a_copy_that_is_shipped_is_empty() -> None:
    sink = mw.sinks.Collect()
    sink.write(1, 0, [_record(1)])
    assert pickle.loads(pickle.dumps(sink)).records == []


@pytest.mark.parametrize("slots", [1, 4])
def test_a_record_has_its_key_timestamp_stream_and_id(slots: int) -> None:
    p = mw.Pipeline("p")
    p.inject(
        "in", mw.injectors.Records([mw.Record(value=i, timestamp=i, key=f"k{i}", id=i) for i in range(9)])
    )
    p.add(Echo(), inputs={"in": mw.by_key}, outputs=["out"])
    injected, produced = mw.sinks.Collect(), mw.sinks.Collect()
    p.sink("in", injected)
    p.sink("out", produced)
    run(p, MemoryStore(slots), slots=slots)
    assert injected.records == [
        mw.Record(value=i, timestamp=i, key=f"k{i}", stream="in", id=i) for i in range(9)
    ]
    assert sorted(produced.records) == [
        mw.Record(value=i, timestamp=i, key=f"k{i}", stream="out") for i in range(9)
    ]


def test_two_sinks_on_one_stream_both_get_everything() -> None:
    p = mw.Pipeline("p")
    p.inject("in", mw.injectors.Records([_record(i) for i in range(9)]))
    sinks = [mw.sinks.Collect(), mw.sinks.Collect()]
    for sink in sinks:
        p.sink("in", sink)
    run(p, MemoryStore())
    assert [[record.value for record in sink.records] for sink in sinks] == [list(range(9))] * 2


def test_one_sink_on_two_streams_gets_both() -> None:
    p = mw.Pipeline("p")
    p.inject("a", mw.injectors.Records([_record(1)]))
    p.inject("b", mw.injectors.Records([_record(2)]))
    sink = mw.sinks.Collect()
    p.sink("a", sink)
    p.sink("b", sink)
    run(p, MemoryStore())
    assert sorted(record.value for record in sink.records) == [1, 2]


def test_the_base_class_says_that_a_sink_has_no_write() -> None:
    class Forgot(mw.Sink):
        pass

    with pytest.raises(NotImplementedError, match=r"Forgot has no write\(\)"):
        Forgot().write(1, 0, [])
