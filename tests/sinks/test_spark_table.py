"""Any data source of Spark as a sink: batches with numbers, the same rows for the same number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from millwheel.sinks import spark_table
from millwheel.sinks.staging import Staging
from millwheel.store.memory import MemoryStore
from tests.store.driving import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Batches:
    """A function of batches that keeps what it was given, and fails when it is told to."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[Any]]] = []
        self.failing = False

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.seen.append((batch, sorted(json.loads(row["value"]) for row in frame.collect())))
        if self.failing:
            raise ValueError("not now")


def _record(value: Any, key: str = "k", time: int = 5) -> mw.Record:
    return mw.Record(value=value, timestamp=time, key=key, stream="out")


def _begun(spark: SparkSession, to: Any, folder: Path, before: int | None = None) -> mw.Sink:
    sink = mw.sinks.SparkTable(spark, to, every=3_600, staging=folder)
    sink.open()
    epoch = before or 0
    if before is not None:
        spark_table._begun.clear()  # as in a new process
    sink.begin("a", epoch)
    return sink


def test_a_batch_that_fails_comes_again_with_the_same_number_and_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = Batches()
    sink = _begun(spark, batches, tmp_path)
    for epoch in (1, 2):
        for shard in (0, 1, 0):  # the second time is a retry
            sink.write(epoch, shard, [_record(10 * epoch + shard)])
        sink.commit(epoch)
    sink.write(3, 0, [_record("not committed")])
    batches.failing = True
    with pytest.raises(mw.MillWheelError, match=r"batch 1 could not be written \(ValueError: not now\)"):
        sink.close()
    batches.failing = False
    with monkeypatch.context() as patch:  # a crash once the batch is written, before it is known to be
        patch.setattr(Staging, "save", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            _begun(spark, batches, tmp_path, 2)
    again = _begun(spark, batches, tmp_path, 2)
    again.write(3, 0, [_record(30)])
    again.commit(3)
    again.close()
    assert batches.seen == [(1, [10, 11, 20, 21])] * 3 + [(2, [30])]
    assert [path.name for path in tmp_path.rglob(".staged/*")] == ["state"]


def test_a_failure_is_an_error_of_that_commit_and_the_next_one_tries_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = Batches()
    sink = mw.sinks.SparkTable(spark, batches, every=0, staging=tmp_path)
    spark_table._begun.clear()
    sink.begin("a", 0)
    batches.failing = True
    sink.write(1, 0, [_record(10)])
    with pytest.raises(mw.MillWheelError, match=r"batch 1 could not be written \(ValueError: not now\)"):
        sink.commit(1)
    batches.failing = False
    sink.write(2, 0, [_record(20)])
    sink.commit(2)
    sink.close()
    assert batches.seen == [(1, [10]), (1, [10]), (2, [20])]


def test_rows_are_appended_to_a_path_in_a_format_and_partitioned(spark: SparkSession, tmp_path: Path) -> None:
    p = mw.Pipeline("spark table")
    values = [{"n": n, "part": "ab"[n % 2]} for n in range(20)]
    records = [mw.Record(value=value, timestamp=n * mw.HOUR) for n, value in enumerate(values)]
    p.inject("in", mw.injectors.Records(records, per_epoch=7))
    options = {"schema": {"n": "int64", "part": "string"}, "partition_by": ["part", "date"]}
    out = tmp_path / "out"
    sink = mw.sinks.SparkTable(
        spark, out, format="json", staging=tmp_path / "staged", options={"compression": "none"}, **options
    )
    p.sink("in", sink)
    run(p, MemoryStore())
    found = spark.read.json(str(out)).collect()
    assert sorted((row["n"], row["part"], str(row["date"])) for row in found) == [
        (n, "ab"[n % 2], "1970-01-01") for n in range(20)
    ]
    assert all(path.suffix == ".json" for path in out.rglob("part-*"))


def test_what_is_no_session_and_a_column_that_is_none_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(mw.MillWheelError, match="SparkTable takes a SparkSession, not 'here'"):
        mw.sinks.SparkTable("here", "table")
    with pytest.raises(mw.MillWheelError, match="partition_by names country"):
        mw.sinks.SparkTable(spark, "table", partition_by="country")


def test_two_sinks_that_would_share_their_staging_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    first = _begun(spark, Batches(), tmp_path)
    with pytest.raises(
        mw.MillWheelError, match=r"there are two sinks SparkTable\('Batches'\): give each one a name="
    ):
        _begun(spark, Batches(), tmp_path)
    first.close()


def test_a_folder_that_cannot_be_written_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sink = mw.sinks.SparkTable(spark, "table", staging=tmp_path / "file" / "staged")
    with pytest.raises(
        mw.MillWheelError, match=r"SparkTable\('table'\): the sink's folder .* cannot be written"
    ):
        sink.open()
