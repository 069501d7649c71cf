"""DataFrames of Spark as injectors: a table, and real streaming sources, each row once across restarts."""

from __future__ import annotations

import datetime
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import millwheel as mw
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.spark.counted import counted, set_count
from tests.spark.waiting import eventually
from tests.store.driving import run, run_to_the_end, take

pytestmark = pytest.mark.spark

SparkStream = mw.injectors.SparkStream
SparkTable = mw.injectors.SparkTable


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where spools are by default."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def _pipeline(injector: mw.Injector) -> tuple[mw.Pipeline, mw.sinks.Collect]:
    p = mw.Pipeline("frames")
    p.inject("in", injector)
    p.add(Echo(), name="C", inputs={"in": mw.by("k")}, outputs=["out"])
    sink = mw.sinks.Collect()
    p.sink("out", sink)
    return p, sink


def _table(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(rows).selectExpr("id as n", "concat('k', id % 7) as k", "id * 1000 as t")


def _numbers(sink: mw.sinks.Collect) -> list[int]:
    return sorted(record.value["n"] for record in sink.records)


class TestTable:
    def test_every_row_is_injected_with_its_columns(self, spark: SparkSession, tmp_path: Path) -> None:
        p, sink = _pipeline(SparkTable(_table(spark, 5_000), timestamp="t", id="n", unit="ms"))
        report = mw.run(p, store=tmp_path / "store", spark=spark)
        assert _numbers(sink) == list(range(5_000))
        assert sink.records[0].value.keys() == {"n", "k", "t"}
        assert {r.timestamp - r.value["t"] * 1_000 for r in sink.records} == {0}
        assert report.low_watermarks == {"C": mw.MAX_TIME}

    def test_a_restart_goes_on_with_the_same_rows(self, spark: SparkSession) -> None:
        store = MemoryStore()
        p, sink = _pipeline(SparkTable(_table(spark, 500), timestamp="t"))
        driver, executor = take(p, store)
        driver.sizer.bound = 100
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
        driver.close()
        first = _numbers(sink)
        assert 0 < len(first) < 500
        other = spark.range(500, 900).selectExpr("id as n", "'k' as k", "id as t")
        p, rest = _pipeline(SparkTable(other, timestamp="t"))
        run(p, store)
        assert sorted(first + _numbers(rest)) == list(range(500))

    def test_a_further_run_takes_the_rows_that_are_new(self, spark: SparkSession) -> None:
        store, found = MemoryStore(), list[int]()
        for rows in (50, 50, 80):
            p, sink = _pipeline(SparkTable(_table(spark, rows), timestamp="t"))
            report = run(p, store)
            found += _numbers(sink)
            assert sorted(found) == list(range(rows))
            assert report.late == {"C": 0}
        other = spark.range(80, 90).selectExpr("id * 1000 as t", "id as n", "'k' as k")
        p, sink = _pipeline(SparkTable(other.union(other), timestamp="t"))
        assert run(p, store).records_in == 20

    def test_rows_with_a_map_are_not_compared_and_the_log_says_so(
        self, spark: SparkSession, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = MemoryStore()
        for count in (1, 0):
            p, _ = _pipeline(
                SparkTable(spark.sql("select 1 as t, 'a' as k, map('x', 1) as m"), timestamp="t")
            )
            assert run(p, store).records_in == count
        assert "map_entries" in caplog.text

    def test_a_further_run_with_other_columns_is_refused(self, spark: SparkSession) -> None:
        store = MemoryStore()
        p, _ = _pipeline(SparkTable(_table(spark, 5), timestamp="t"))
        run(p, store)
        p, _ = _pipeline(SparkTable(_table(spark, 5).selectExpr("*", "1 as m"), timestamp="t"))
        with pytest.raises(mw.InputError, match="the new rows cannot be determined"):
            run(p, store)

    def test_a_spool_that_is_gone_is_no_reason_to_read_other_rows(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        store, spool = MemoryStore(), tmp_path / "spool"
        for rows in (30, 30):
            p, sink = _pipeline(SparkTable(_table(spark, rows), timestamp="t", spool=spool))
            run(p, store)
            shutil.rmtree(spool)
        assert sink.records == []
        p, _ = _pipeline(SparkTable(_table(spark, 40), timestamp="t", spool=spool))
        with pytest.raises(mw.InputError, match=r"its spool .* was removed"):
            run(p, store)

    def test_moments_and_nested_values_travel(self, spark: SparkSession) -> None:
        frame = spark.sql(
            "select timestamp'2011-01-27 22:34:01Z' as t, 'k' as k, 1 as n, date'2011-01-27' as d, "
            "cast(1.5 as decimal(10, 2)) as m, named_struct('a', array(1, 2)) as s, map('x', 1) as p"
        )
        p, sink = _pipeline(SparkTable(frame, timestamp="t"))
        run(p, MemoryStore())
        (record,) = sink.records
        moment = datetime.datetime(2011, 1, 27, 22, 34, 1, tzinfo=datetime.timezone.utc)
        assert record.timestamp == int(moment.timestamp()) * mw.SECOND
        assert record.value["d"] == "2011-01-27"
        assert record.value["m"] == "1.50"
        assert record.value["s"] == {"a": [1, 2]}
        assert record.value["p"] == [["x", 1]]

    def test_an_empty_table_ends_the_run(self, spark: SparkSession) -> None:
        p, sink = _pipeline(SparkTable(_table(spark, 0), timestamp="t"))
        run(p, MemoryStore())
        assert sink.records == []

    def test_a_column_that_is_not_there_is_named(self, spark: SparkSession) -> None:
        with pytest.raises(mw.InputError, match="no column 'time', which is the timestamp; it has n, k, t"):
            SparkTable(_table(spark, 1), timestamp="time")

    def test_each_kind_of_frame_has_its_injector(self, spark: SparkSession) -> None:
        stream = spark.readStream.format("rate").load()
        with pytest.raises(mw.InputError, match="for SparkStream"):
            SparkTable(stream, timestamp="timestamp")
        with pytest.raises(mw.InputError, match="for SparkTable"):
            SparkStream(_table(spark, 1), timestamp="t")
        with pytest.raises(mw.InputError, match="takes a DataFrame"):
            SparkTable([1, 2], timestamp="t")


def _put(folder: Path, name: str, numbers: range) -> None:
    """A file that appears whole, as the file source wants it."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"n": n, "k": f"k{n % 7}", "t": n * 1_000}) for n in numbers]
    staged = folder.parent / f"staged-{name}"
    staged.write_text("\n".join(lines) + "\n")
    staged.rename(folder / name)


def _files(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("n long, k string, t long").option("maxFilesPerTrigger", 1)
    return reader.json(str(folder))


class Crash(Exception):
    """Stands for the end of the process."""


class TestStream:
    def test_a_run_takes_what_is_there_and_the_next_one_goes_on(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        source, found = tmp_path / "in", Counter[int]()
        for part in range(3):
            _put(source, f"{part}.json", range(part * 100, part * 100 + 100))
            p, sink = _pipeline(SparkStream(_files(spark, source), timestamp="t", id="n"))
            mw.run(p, store=tmp_path / "store", spark=spark)
            found.update(_numbers(sink))
        assert found == dict.fromkeys(range(300), 1)

    def test_rows_that_come_are_followed(self, spark: SparkSession, tmp_path: Path) -> None:
        source = tmp_path / "in"
        _put(source, "0.json", range(50))
        p, sink = _pipeline(SparkStream(_files(spark, source), timestamp="t"))
        with mw.start(p, store=tmp_path / "store", spark=spark) as job:
            eventually(lambda: job.status().records_in >= 50)
            _put(source, "1.json", range(50, 80))
            eventually(lambda: job.status().records_in >= 80)
        assert _numbers(sink) == list(range(80))

    @pytest.mark.parametrize("point", ["before it is there", "after it is there"])
    def test_a_batch_that_spark_gives_again_is_injected_once(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
    ) -> None:
        """The query dies around the second batch, which its checkpoint does not have: it comes again."""
        source, store = tmp_path / "in", LmdbStore(tmp_path / "store")
        for part in range(3):
            _put(source, f"{part}.json", range(part * 10, part * 10 + 10))
        real = SparkStream.publish

        def publish(self: Any, frame: Any, number: int) -> None:
            if number == 1 and point == "before it is there":
                raise Crash
            real(self, frame, number)
            if number == 1:
                raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(SparkStream, "publish", publish)
            p, _ = _pipeline(SparkStream(_files(spark, source), timestamp="t"))
            with pytest.raises(mw.InputError, match="the streaming query ended with"):
                take(p, store)
        store.close()
        p, sink = _pipeline(SparkStream(_files(spark, source), timestamp="t"))
        run(p, LmdbStore(tmp_path / "store"))
        assert _numbers(sink) == list(range(30))

    def test_what_was_read_is_removed_from_the_spool(
        self, spark: SparkSession, tmp_path: Path, state: Path
    ) -> None:
        source, store = tmp_path / "in", MemoryStore()
        for part in range(4):
            _put(source, f"{part}.json", range(part * 10, part * 10 + 10))
        p, sink = _pipeline(SparkStream(_files(spark, source), timestamp="t", spool=tmp_path / "spool"))
        run(p, store)
        assert len(list((tmp_path / "spool").glob("batch-*"))) == 4
        assert list((tmp_path / "spool").glob("batch-*/*.parquet")) == []
        assert not state.exists()
        assert _numbers(sink) == list(range(40))

    def test_a_query_that_fails_stops_the_pipeline_with_its_reason(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        source = tmp_path / "in"
        _put(source, "0.json", range(10))
        frame = _files(spark, source).selectExpr(
            "n", "k", "t", "raise_error('the reader is out of order') as e"
        )
        p, _ = _pipeline(SparkStream(frame, timestamp="t"))
        job = mw.start(p, store=tmp_path / "store", spark=spark)
        with pytest.raises(mw.InputError, match="the streaming query ended with"):
            job.wait(60)

    def test_it_runs_in_step_with_other_injectors(self, spark: SparkSession, tmp_path: Path) -> None:
        source = tmp_path / "in"
        _put(source, "0.json", range(100))
        p = mw.Pipeline("two")
        p.inject("in", SparkStream(_files(spark, source), timestamp="t"))
        p.inject("in", mw.injectors.Records([mw.Record({"n": n, "k": "k"}, n) for n in range(100, 130)]))
        p.add(Echo(), name="C", inputs={"in": mw.by("k")}, outputs=["out"])
        sink = mw.sinks.Collect()
        p.sink("out", sink)
        driver, executor = take(p, MemoryStore())
        report = run_to_the_end(driver, executor)
        driver.close()
        assert _numbers(sink) == list(range(130))
        assert report.low_watermarks == {"C": mw.MAX_TIME}

    def test_the_rate_source_is_injected(self, spark: SparkSession, tmp_path: Path) -> None:
        frame = spark.readStream.format("rate").option("rowsPerSecond", 500).load()
        frame = frame.selectExpr("value as n", "concat('k', value % 5) as k", "timestamp")
        p, sink = _pipeline(SparkStream(frame, timestamp="timestamp", id="n", slack=0))
        with mw.start(p, store=tmp_path / "store", spark=spark) as job:
            eventually(lambda: job.status().records_in >= 500)
        numbers = _numbers(sink)
        assert numbers == list(range(len(numbers)))

    def test_a_data_source_in_python_is_injected(self, spark: SparkSession, tmp_path: Path) -> None:
        path, found = tmp_path / "count", Counter[int]()
        for count in (70, 130):
            set_count(path, count)
            p, sink = _pipeline(SparkStream(counted(spark, path), timestamp="t"))
            mw.run(p, store=tmp_path / "store", spark=spark)
            found.update(_numbers(sink))
            assert found == dict.fromkeys(range(count), 1)
