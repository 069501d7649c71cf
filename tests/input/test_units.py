"""Timestamps in another unit than the injector was told are an error that names the right one."""

from __future__ import annotations

import http.client
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millwheel as mw
from millwheel.injectors import units
from millwheel.injectors.messages import Converter
from millwheel.store.memory import MemoryStore
from tests.input.reading import csv_file, jsonl, opened, read_all
from tests.store.driving import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Files = mw.injectors.Files
NOW = 1_611_873_241  # 2021-01-28 22:34:01 UTC, in seconds
TIMES = {"us": NOW * 1_000_000, "ms": NOW * 1_000, "s": NOW, "iso": "2021-01-28T22:34:01Z"}


def _files(tmp_path: Path, form: str, time: Any, count: int = 3) -> Path:
    values = [time + i if isinstance(time, int) else time for i in range(count)]
    path = tmp_path / f"a.{form}"
    if form == "parquet":
        pq.write_table(pa.table({"t": values}), path)
    elif form == "csv":
        csv_file(path, [["t"], *([value] for value in values)])
    else:
        jsonl(path, [{"t": value} for value in values])
    return path


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "csv", "parquet"])
@pytest.mark.parametrize("unit", ["ms", "s"])
def test_the_first_timestamps_of_files_name_the_right_unit(tmp_path: Path, form: str, unit: str) -> None:
    path = _files(tmp_path, form, TIMES[unit])
    with pytest.raises(mw.InputError) as caught:
        read_all(opened(Files(path, timestamp="t")))
    text = str(caught.value)
    assert str(path) in text
    assert f"begins with {TIMES[unit]}, which as microseconds is 1970-01-" in text
    assert "2021-01-28 22:34" in text
    assert f'give unit="{unit}"; if they are microseconds, give unit="us"' in text
    (first, *_) = read_all(opened(Files(path, timestamp="t", unit=unit)))  # type: ignore[arg-type]
    assert first.timestamp == TIMES["us"]
    (first, *_) = read_all(opened(Files(path, timestamp="t", unit="us")))
    assert first.timestamp == TIMES[unit]


def test_a_pipeline_stops_before_anything_is_processed(tmp_path: Path) -> None:
    p = mw.Pipeline("units")
    p.inject("in", Files(_files(tmp_path, "jsonl", TIMES["ms"]), timestamp="t", errors="divert"))
    with pytest.raises(mw.InputError, match='give unit="ms"'):
        run(p, MemoryStore())


def test_nanoseconds_are_recognised_too(tmp_path: Path) -> None:
    path = _files(tmp_path, "jsonl", NOW * 10**9)
    with pytest.raises(mw.InputError, match=r'as nanoseconds 2021-01-28.*unit="auto"'):
        read_all(opened(Files(path, timestamp="t")))
    assert read_all(opened(Files(path, timestamp="t", unit="auto")))[0].timestamp == TIMES["us"]


@pytest.mark.parametrize(
    "times",
    [
        [TIMES["us"]] * 3,
        [0, 1, 2],
        [5, 10 * mw.SECOND],
        [1_000_000_000],  # a round beginning, in microseconds
        [NOW, 0, NOW],  # one is enough to tell that they are none
        [-5],
        [mw.DAY * 365],
        [4_000_000_000_000_000_000],
    ],
    ids=str,
)
def test_what_may_be_microseconds_is_taken(tmp_path: Path, times: list[int]) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"t": time} for time in times])
    assert [record.timestamp for record in read_all(opened(Files(path, timestamp="t")))] == times


def test_only_the_beginning_of_a_file_is_checked(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"t": time} for time in (0, *[NOW] * 200)])
    injector = opened(Files(path, timestamp="t"))
    ((partition, end),) = injector.poll().items()
    start = len('{"t": 0}\n')
    assert len(list(injector.read(partition, start, end))) == 200


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_text_in_iso_8601_names_its_unit(tmp_path: Path, form: str) -> None:
    path = _files(tmp_path, form, TIMES["iso"])
    p = mw.Pipeline("units")
    p.inject("in", Files(path, timestamp="t"))
    with pytest.raises(
        mw.InputError, match='which is not a number, but ISO 8601: give the injector unit="iso"'
    ):
        run(p, MemoryStore())


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize("written", TIMES)
def test_auto_recognises_all_four(tmp_path: Path, form: str, written: str) -> None:
    path = _files(tmp_path, form, TIMES[written], count=1)
    (record,) = read_all(opened(Files(path, timestamp="t", unit="auto")))
    assert record.timestamp == TIMES["us"]


def test_auto_goes_by_each_value(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"t": time} for time in [*TIMES.values(), float(NOW), str(NOW)]])
    assert {r.timestamp for r in read_all(opened(Files(path, timestamp="t", unit="auto")))} == {TIMES["us"]}


def test_auto_takes_the_fast_way_where_all_are_alike() -> None:
    assert units.factor_of("auto", [TIMES["ms"], TIMES["ms"] + 5]) == 1_000  # type: ignore[list-item, operator]
    assert units.factor_of("auto", [TIMES["ms"], TIMES["s"]]) is None  # type: ignore[list-item]


def test_messages_of_kafka_are_checked_where_a_partition_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    class Message:
        def value(self) -> bytes:
            return json.dumps({"t": TIMES["ms"]}).encode()

        def key(self) -> None:
            return None

        def timestamp(self) -> tuple[int, int]:
            return 1, 5

    class Cursor:
        def __init__(self, *_: Any) -> None: ...

        def read(self, *_: Any) -> Any:
            yield [Message()]

    monkeypatch.setattr("millwheel.injectors.kafka.Cursor", Cursor)
    injector = mw.injectors.Kafka("127.0.0.1:1", "topic", timestamp="t")
    with pytest.raises(mw.InputError, match=r'partition topic/0.*give unit="ms"'):
        list(injector.read("topic/0", None, 1))
    assert len(list(injector.read("topic/0", 5, 6))) == 1
    assert isinstance(injector.converter, Converter)


def test_the_first_post_is_refused_with_the_right_unit(tmp_path: Path) -> None:
    injector = mw.injectors.Http(0, timestamp="t", log=tmp_path / "log")
    injector.begin("a store", "in")

    def post(value: Any) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", injector.port, timeout=30)
        connection.request("POST", "/", json.dumps(value))
        answer = connection.getresponse()
        found = answer.status, json.loads(answer.read())
        connection.close()
        return found

    try:
        status, answer = post([{"t": TIMES["ms"]}] * 2)
        assert status == 400
        assert 'give unit="ms"' in answer["error"]
        assert post({"t": TIMES["us"]})[0] == 200
        assert post({"t": TIMES["ms"]})[0] == 200, "later ones are as they are"
    finally:
        injector.close()


@pytest.mark.spark
def test_rows_of_spark_are_checked(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(TIMES["ms"],)], "t long")
    p = mw.Pipeline("units")
    p.inject("in", mw.injectors.SparkTable(frame, timestamp="t", spool=tmp_path / "spool"))
    with pytest.raises(mw.InputError, match='give unit="ms"'):
        mw.run(p, store=tmp_path / "store", spark=spark)


@pytest.mark.spark
def test_the_default_spool_is_the_user_s_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    injector = mw.injectors.SparkTable(spark.range(3), timestamp="id")
    old = os.umask(0o022)
    try:
        injector.begin("a store", "in")
    finally:
        os.umask(old)
    (spool,) = tmp_path.glob("millwheel/spool/*/*")
    assert stat.S_IMODE(spool.stat().st_mode) == 0o700
