"""Parquet by stream and day: whole files of whole epochs, few of them, each record in one of them."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import millwheel as mw
from millwheel.sinks import parquet_publisher
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.servers.disk import full_disk
from tests.spark.waiting import eventually
from tests.store.driving import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Parquet = mw.sinks.Parquet
DAY = mw.DAY


def _record(value: Any, *, time: int = 5, key: str = "k", stream: str = "out") -> mw.Record:
    return mw.Record(value=value, timestamp=time, key=key, stream=stream)


def _begun(path: Path, *, origin: str = "a store", epoch: int = 0, **options: Any) -> mw.sinks.Parquet:
    """A sink as a driver has opened it, whose store has committed an epoch."""
    parquet_publisher.publishers.pop(path, None)  # as in a new process
    sink = Parquet(path, **{"every": 3_600, **options})
    sink.open()
    sink.begin(origin, epoch)
    return sink


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(folder, partitioning="hive").to_table().to_pylist()
    return rows


def _values(folder: Path) -> list[str]:
    return sorted(row["value"] for row in _rows(folder)) if _files(folder) else []


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("stream=*/**/*.parquet"))


def test_a_row_has_the_key_the_timestamp_and_the_value_as_json(tmp_path: Path) -> None:
    sink = _begun(tmp_path)
    sink.write(1, 0, [_record({"a": [1, None]}, key="é", time=DAY + 7), _record(b"\xff", key="\ud800")])
    sink.commit(1)
    sink.close()
    rows = sorted(_rows(tmp_path), key=lambda row: row["timestamp"])
    assert rows[1] == {
        "key": "é",
        "timestamp": datetime.datetime(1970, 1, 2, 0, 0, 0, 7, datetime.timezone.utc),
        "value": '{"a": [1, null]}',
        "stream": "out",
        "date": "1970-01-02",
    }
    assert rows[0]["value"] == '"\\\\xff"'


def test_a_schema_makes_columns_of_fields(tmp_path: Path) -> None:
    sink = _begun(tmp_path, schema={"count": "int32", "name": pa.string(), "at": pa.timestamp("us")})
    sink.write(1, 0, [_record({"count": 1, "name": "a", "other": 2}), _record({"count": 2})])
    sink.commit(1)
    sink.close()
    assert [(row["count"], row["name"]) for row in _rows(tmp_path)] == [(1, "a"), (2, None)]
    table = ds.dataset(tmp_path, partitioning="hive").to_table()
    assert table.schema.field("count").type == pa.int32()


def test_a_lone_surrogate_in_a_column_is_replaced_as_in_a_key(tmp_path: Path) -> None:
    sink = _begun(tmp_path, schema={"name": "string", "of": pa.struct([("tags", pa.list_(pa.string()))])})
    sink.write(1, 0, [_record({"name": "a\ud800", "of": {"tags": ["\udfff", "é"]}})])
    sink.commit(1)
    sink.close()
    assert [(row["name"], row["of"]) for row in _rows(tmp_path)] == [("a?", {"tags": ["?", "é"]})]


@pytest.mark.parametrize("value", [{"count": "many"}, "no dict", {"count": 2**40}, {"count": 2**63}], ids=str)
def test_a_value_that_does_not_fit_the_schema_says_so(tmp_path: Path, value: Any) -> None:
    sink = _begun(tmp_path, schema={"count": "int32"})
    with pytest.raises(mw.MillWheelError, match="no field 'count' that is int32"):
        sink.write(1, 0, [_record(value)])


@pytest.mark.parametrize("schema", [{"key": "string"}, {"n": "no type"}], ids=str)
def test_a_schema_that_cannot_be_is_refused(tmp_path: Path, schema: Any) -> None:
    with pytest.raises(mw.MillWheelError, match="Parquet: "):
        Parquet(tmp_path, schema=schema)


def test_files_are_by_stream_and_day(tmp_path: Path) -> None:
    sink = _begun(tmp_path)
    times = [0, DAY - 1, DAY, -1, 1_700_000_000 * mw.SECOND, mw.MAX_TIME]
    sink.write(1, 0, [_record(i, time=time) for i, time in enumerate(times)])
    sink.write(1, 1, [_record("x", stream="other/stream")])
    sink.commit(1)
    sink.close()
    assert [name.rpartition("/")[0] for name in _files(tmp_path)] == [
        "stream=other%2Fstream/date=1970-01-01",
        "stream=out/date=1969-12-31",
        "stream=out/date=1970-01-01",
        "stream=out/date=1970-01-02",
        "stream=out/date=2023-11-14",
        "stream=out/date=__HIVE_DEFAULT_PARTITION__",
    ]


def test_many_epochs_make_one_file_and_are_seen_when_they_are_committed(tmp_path: Path) -> None:
    sink = _begun(tmp_path)
    for epoch in range(1, 101):
        for _ in range(2):  # the second time is a retry
            sink.write(epoch, 0, [_record(epoch)])
        sink.commit(epoch)
    sink.write(101, 0, [_record("not committed")])
    sink.close()
    assert len(_files(tmp_path)) == 1
    assert len(_values(tmp_path)) == 100
    assert [row["value"] for row in _rows(tmp_path)] == [str(epoch) for epoch in range(1, 101)]


def test_so_many_rows_are_published_without_waiting(tmp_path: Path) -> None:
    sink = _begun(tmp_path, rows=1_000)
    sink.write(1, 0, [_record("x" * 100) for _ in range(1_000)])
    sink.commit(1)
    assert len(_values(tmp_path)) == 1_000


def test_time_publishes_though_no_epoch_follows(tmp_path: Path) -> None:
    sink = _begun(tmp_path, every=0.01)
    sink.write(1, 0, [_record("a")])
    sink.commit(1)
    eventually(lambda: bool(_files(tmp_path)))
    assert _values(tmp_path) == ['"a"']


class Crash(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize(
    "point", ["before the state", "after the state", "between two moves", "before the drop"]
)
def test_a_driver_that_is_gone_while_it_publishes_leaves_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    sink = _begun(tmp_path)
    for epoch in (1, 2):
        sink.write(epoch, 0, [_record(f"{epoch}-{day}", time=day * DAY) for day in range(3)])
        sink.commit(epoch)
    calls = Counter[str]()

    def crash_at(name: str, number: int, real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls[name] += 1
            if calls[name] == number:
                raise Crash
            return real(*arguments)

        return call

    publisher = parquet_publisher.publishers[tmp_path]
    staging = publisher._staging
    with monkeypatch.context() as patch:
        if point == "before the state":
            patch.setattr(staging, "save", crash_at("save", 1, staging.save))
        elif point == "after the state":
            patch.setattr(publisher, "_move", crash_at("move", 1, publisher._move))
        elif point == "between two moves":
            patch.setattr(os, "replace", crash_at("replace", 3, os.replace))
        else:
            patch.setattr(staging, "drop", crash_at("drop", 1, staging.drop))
        with pytest.raises(Crash):
            sink.close()
    again = _begun(tmp_path, epoch=2)
    again.write(3, 0, [_record("3-0")])
    again.commit(3)
    again.close()
    expected = [f'"{epoch}-{day}"' for epoch in (1, 2) for day in range(3)] + ['"3-0"']
    assert _values(tmp_path) == sorted(expected)
    assert [path.name for path in (tmp_path / ".staged").iterdir()] == ["state"]


def test_an_epoch_that_was_committed_and_not_published_is_published_by_the_next_driver(
    tmp_path: Path,
) -> None:
    sink = _begun(tmp_path)
    sink.write(1, 0, [_record("a")])
    sink.commit(1)
    sink.write(2, 0, [_record("b")])
    again = _begun(tmp_path, epoch=1)
    assert _values(tmp_path) == ['"a"']
    again.write(2, 0, [_record("b")])
    again.commit(2)
    again.close()
    assert _values(tmp_path) == ['"a"', '"b"']


def test_a_new_store_adds_to_what_another_one_left(tmp_path: Path) -> None:
    sink = _begun(tmp_path)
    sink.write(1, 0, [_record("first")])
    sink.commit(1)
    sink.close()
    other = _begun(tmp_path, origin="b store")
    other.write(1, 0, [_record("second")])
    other.commit(1)
    other.close()
    assert _values(tmp_path) == ['"first"', '"second"']


def test_two_streams_share_a_folder_and_a_run_publishes_at_its_end(tmp_path: Path) -> None:
    p = mw.Pipeline("parquet")
    p.inject("in", mw.injectors.Records([_record(i, time=i) for i in range(50)], per_epoch=7))
    p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
    p.sink("in", Parquet(tmp_path / "out"))
    p.sink("out", Parquet(tmp_path / "out"))
    run(p, MemoryStore())
    found = Counter((row["stream"], row["value"]) for row in _rows(tmp_path / "out"))
    assert found == {(stream, str(i)): 1 for stream in ("in", "out") for i in range(50)}


@pytest.mark.spark
def test_spark_reads_it_while_it_is_written(tmp_path: Path, spark: SparkSession) -> None:
    sink = _begun(tmp_path)
    for epoch in range(1, 4):
        sink.write(epoch, 0, [_record(epoch, time=epoch * DAY)])
        sink.commit(epoch)
        parquet_publisher.publishers[tmp_path].schedule.publish_now()
        sink.write(epoch + 1, 1, [_record("under way")])
        found = spark.read.parquet(str(tmp_path)).collect()
        assert sorted(row["value"] for row in found) == [str(n) for n in range(1, epoch + 1)]
        assert {row["stream"] for row in found} == {"out"}
        assert {str(row["date"]) for row in found} == {f"1970-01-0{n + 1}" for n in range(1, epoch + 1)}
        (tmp_path / ".staged" / f"{epoch + 1:010d}-00000001").unlink()


def _full(path: Path, change: Callable[[], None]) -> None:
    with pytest.raises(mw.MillWheelError) as caught:
        change()
    assert str(caught.value).startswith(f"Parquet('{path}'): the sink's folder {path} cannot be written (")
    assert str(caught.value).endswith("free some space on its disk, and run again; nothing is lost")


def test_a_full_disk_while_files_are_written_leaves_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "out"
    sink = _begun(path, rows=1)
    sink.write(1, 0, [_record("a"), _record("b" * 300 + str(os.urandom(300)), time=DAY)])
    with full_disk(1_000):
        _full(path, lambda: sink.commit(1))
    assert not list((path / ".staged").glob("*.parquet"))
    assert _files(path) == []
    sink.close()
    assert len(_values(path)) == 2


def test_a_full_disk_while_files_are_moved_publishes_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    sink = _begun(path)
    sink.write(1, 0, [_record("a"), _record("b", time=DAY), _record("c", time=2 * DAY)])
    sink.commit(1)
    moved: list[Path] = []
    make = Path.mkdir

    def full(self: Path, *arguments: Any, **options: Any) -> None:
        if self.name.startswith("date="):
            if moved and self not in moved:
                raise OSError(28, "No space left on device")
            moved.append(self)
        make(self, *arguments, **options)

    publisher = parquet_publisher.publisher(path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", full)
        _full(path, publisher.schedule.publish_now)
    assert len(_values(path)) == 1
    sink.write(2, 0, [_record("d")])  # the pipeline went on meanwhile
    sink.commit(2)
    publisher.schedule.publish_now()
    assert _values(path) == sorted(f'"{value}"' for value in "abcd")
    sink.close()
