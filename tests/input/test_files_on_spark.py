"""Files through a whole pipeline on Spark: read to the end, followed, and gone on with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from tests.computations import Counter, Echo, Windower
from tests.input.reading import append, csv_file, jsonl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Files = mw.injectors.Files

pytestmark = pytest.mark.spark

_PATIENCE = 30.0  # seconds that a condition may take on a busy machine


def _until(job: mw.Job, condition: Callable[[], bool]) -> None:
    """Waits for a condition while a job runs; an error of the job is raised."""
    waited = 0.0
    while not condition():
        job.status()
        assert waited < _PATIENCE, "the condition did not come true"
        job.wait(0.02)
        waited += 0.02


def _pipeline(injector: mw.Injector, sink: mw.Sink) -> mw.Pipeline:
    p = mw.Pipeline("files")
    p.inject("in", injector)
    p.add(Echo(), inputs={"in": mw.by("user")}, outputs=["out"])
    p.sink("out", sink)
    return p


def _lines(first: int, last: int) -> list[dict[str, Any]]:
    return [{"t": i, "user": f"u{i % 7}", "id": i} for i in range(first, last)]


def _numbers(sink: mw.sinks.Collect) -> list[int]:
    return sorted(int(record.value["t"]) for record in sink.records)


def test_a_folder_of_all_formats_is_read_once(tmp_path: Path, spark: SparkSession) -> None:
    jsonl(tmp_path / "a.jsonl", _lines(0, 100))
    jsonl(tmp_path / "b.jsonl.gz", _lines(100, 200))
    csv_file(tmp_path / "c.csv", [["t", "user"], *[[i, "u"] for i in range(200, 300)]])
    csv_file(tmp_path / "d.csv.gz", [["t", "user"], *[[i, "u"] for i in range(300, 400)]])
    sink = mw.sinks.Collect()
    report = mw.run(_pipeline(Files(tmp_path / "*.*", timestamp="t"), sink), store="memory:", spark=spark)
    assert _numbers(sink) == list(range(400))
    assert report.records_in == 400
    assert report.low_watermarks["Echo"] == mw.MAX_TIME


def test_a_large_file_is_read_by_many_tasks_once_and_in_order(tmp_path: Path, spark: SparkSession) -> None:
    jsonl(tmp_path / "a.jsonl", _lines(0, 30_000))
    p = mw.Pipeline("files")
    p.inject("in", Files(tmp_path / "a.jsonl", timestamp="t", id="id"))
    p.add(_InOrder(), inputs={"in": mw.by("user")})
    report = mw.run(p, store="memory:", spark=spark, compact_below=1_000)
    assert report.records["_InOrder"] == 30_000
    assert report.duplicates["_InOrder"] == 0
    assert report.user == {"in order": 30_000}


class _InOrder(mw.Computation):
    """Counts the records of a key that came in the order of the file."""

    def process_record(self, record: mw.Record) -> None:
        if record.timestamp > self.state.get("last", -1):
            self.count("in order")
        self.state["last"] = record.timestamp


def test_a_second_run_reads_what_came_since(tmp_path: Path, spark: SparkSession) -> None:
    jsonl(tmp_path / "a.jsonl", _lines(0, 10))
    found = []
    for step in range(3):
        sink = mw.sinks.Collect()
        pipeline = _pipeline(Files(tmp_path / "*.jsonl", timestamp="t"), sink)
        report = mw.run(pipeline, store=tmp_path / "store", spark=spark)
        found.append(_numbers(sink))
        if step == 0:
            append(tmp_path / "a.jsonl", '{"t": 10, "user": "u"}\n')
            jsonl(tmp_path / "b.jsonl", _lines(11, 15))
    assert found == [list(range(10)), list(range(10, 15)), []]
    assert report.records_in == 0


def test_a_followed_folder_is_read_as_it_grows(tmp_path: Path, spark: SparkSession) -> None:
    path = jsonl(tmp_path / "a.jsonl", _lines(0, 10))
    sink = mw.sinks.Collect()
    pipeline = _pipeline(Files(tmp_path / "*.jsonl", timestamp="t", slack=0), sink)
    with mw.start(pipeline, store=tmp_path / "store", spark=spark) as job:
        _until(job, lambda: _numbers(sink) == list(range(10)))
        append(path, '{"t": 10, "user": "u"}\n{"t": 11, "user"')
        _until(job, lambda: _numbers(sink) == list(range(11)))
        append(path, ': "u"}\n')
        jsonl(tmp_path / "b.jsonl", _lines(12, 20))
        _until(job, lambda: _numbers(sink) == list(range(20)))
        _until(job, lambda: job.status().low_watermarks["Echo"] == 19)
    append(path, '{"t": 20, "user": "u"}\n')
    again = mw.sinks.Collect()
    pipeline = _pipeline(Files(tmp_path / "*.jsonl", timestamp="t", slack=0), again)
    with mw.start(pipeline, store=tmp_path / "store", spark=spark) as job:
        _until(job, lambda: _numbers(again) == [20])


def test_a_window_of_a_followed_file_closes_when_a_newer_line_comes(
    tmp_path: Path, spark: SparkSession
) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"t": 0.2, "user": "u"}, {"t": 0.8, "user": "u"}])
    p = mw.Pipeline("files")
    p.inject("in", Files(path, timestamp="t", unit="s", slack=mw.SECOND))
    p.add(Windower(), inputs={"in": mw.by("user")}, outputs=["windows"])
    sink = mw.sinks.Collect()
    p.sink("windows", sink)
    with mw.start(p, store=tmp_path / "store", spark=spark) as job:
        _until(job, lambda: job.status().records["Windower"] == 2)
        assert sink.records == []
        append(path, '{"t": 5, "user": "u"}\n')
        _until(job, lambda: bool(sink.records))
        assert [record.value["count"] for record in sink.records] == [2]


def test_a_file_that_shrinks_ends_a_job_that_follows_it(tmp_path: Path, spark: SparkSession) -> None:
    path = jsonl(tmp_path / "a.jsonl", _lines(0, 10))
    sink = mw.sinks.Collect()
    job = mw.start(_pipeline(Files(path, timestamp="t"), sink), store=tmp_path / "store", spark=spark)
    _until(job, lambda: len(sink.records) == 10)
    jsonl(path, _lines(0, 1))
    with pytest.raises(mw.InputError, match="shrank"):
        job.wait(_PATIENCE)


def test_no_file_that_matches_ends_a_run_with_the_pattern(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = _pipeline(Files(tmp_path / "*.jsonl", timestamp="t"), mw.sinks.Collect())
    with pytest.raises(mw.InputError, match=r"no file matches .*\*\.jsonl"):
        mw.run(pipeline, store=tmp_path / "store", spark=spark)
    jsonl(tmp_path / "a.jsonl", _lines(0, 3))
    report = mw.run(pipeline, store=tmp_path / "store", spark=spark)
    assert report.records_in == 3


def test_ids_of_a_file_drop_what_was_written_twice(tmp_path: Path, spark: SparkSession) -> None:
    jsonl(tmp_path / "a.jsonl", _lines(0, 10) + _lines(5, 12))
    jsonl(tmp_path / "b.jsonl", _lines(8, 20))
    p = mw.Pipeline("files")
    p.inject("in", Files(tmp_path / "*.jsonl", timestamp="t", id="id"))
    p.add(Counter(), inputs={"in": mw.by("user")}, outputs=["counts"])
    report = mw.run(p, store=tmp_path / "store", spark=spark)
    assert report.records["Counter"] == 20
    assert report.duplicates["Counter"] == 9


def test_a_generator_runs_at_its_rate_until_it_is_stopped(tmp_path: Path, spark: SparkSession) -> None:
    p = mw.Pipeline("generated")
    p.inject("in", mw.injectors.Generator(_make, rate=500, partitions=2))
    p.add(Echo(), inputs={"in": mw.by_key}, outputs=["out"])
    sink = mw.sinks.Collect()
    p.sink("out", sink)
    with mw.start(p, store=tmp_path / "store", spark=spark) as job:
        _until(job, lambda: job.status().records_in >= 50)
        job.stop()
    found = sorted(record.value for record in sink.records)
    assert len(set(found)) == len(found)
    for partition in (0, 1):
        mine = [value for value in found if value % 2 == partition]
        assert mine == list(range(partition, partition + 2 * len(mine), 2))


def _make(i: int) -> mw.Record:
    return mw.Record(value=i, timestamp=i)
