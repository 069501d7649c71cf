"""A record is what a hook sees, whether it was decoded already or not."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.store.memory import MemoryStore
from tests.store.driving import run


def _undecoded(json: bytes) -> mw.Record:
    """As a worker makes it from a line."""
    record = mw.Record.__new__(mw.Record)
    record._json = json
    record.key, record.stream, record.timestamp = "k", "s", 5
    return record


def test_a_record_that_is_not_decoded_yet_is_equal_to_one_that_is() -> None:
    assert _undecoded(b'{"a": 1}') == mw.Record(value={"a": 1}, timestamp=5, key="k", stream="s")
    assert _undecoded(b'{"a": 1}') != mw.Record(value={"a": 2}, timestamp=5, key="k", stream="s")
    assert _undecoded(b"[1, 2]").value == [1, 2]


def test_its_value_is_one_object_however_often_it_is_asked_for() -> None:
    record = _undecoded(b'{"a": []}')
    record.value["a"].append(1)
    assert record.value == {"a": [1]}


def test_what_a_worker_leaves_out_has_its_default() -> None:
    record = _undecoded(b"1")
    assert record.id is None
    assert record.late is False
    with pytest.raises(AttributeError, match="nothing"):
        record.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_it_pickles_and_prints_as_any_other() -> None:
    record = _undecoded(b'"text"')
    assert pickle.loads(pickle.dumps(record)) == record
    assert repr(record) == "Record(value='text', timestamp=5, key='k', stream='s', id=None, late=False)"
    assert hash(record) == hash(mw.Record(value="text", timestamp=5, key="k", stream="s"))


class Keeps(mw.Computation):
    """Hands on what it got."""

    def process_record(self, record: mw.Record) -> None:
        self.produce("out", [record.value, record.key, record.timestamp, record.stream, record.id])


def test_lines_of_a_file_arrive_whole(tmp_path: Path) -> None:
    values = ['{"t": 1, "k": "a", "x": 1.5e300}', ' {"t":2,"k":"b","x":{"y":[null,true,"\\u00e9\\n"]}}\r']
    (tmp_path / "in.jsonl").write_text("\n".join(values) + "\n")
    p = mw.Pipeline("p")
    p.inject("in", mw.injectors.Files(tmp_path / "in.jsonl", timestamp="t"))
    p.add(Keeps(), inputs={"in": mw.by("k")}, outputs=["out"])
    sink = mw.sinks.Collect()
    p.sink("out", sink)
    run(p, MemoryStore(4), slots=4)
    assert {record.key: record.value for record in sink.records} == {
        "a": [{"t": 1, "k": "a", "x": 1.5e300}, "a", 1, "in", None],
        "b": [{"t": 2, "k": "b", "x": {"y": [None, True, "é\n"]}}, "b", 2, "in", None],
    }
