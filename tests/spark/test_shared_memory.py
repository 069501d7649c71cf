"""Large frames go past Spark's shuffle where all tasks share a machine; what is lost is made again."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkFiles

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.model.names import SourceName
from millwheel.spark import shared_memory
from millwheel.spark.job_executor import SparkExecutor
from millwheel.spark.shared_memory import Parcels, receive, send
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.worker.envelope import Frame
from tests.computations import Echo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _frames(size: int) -> list[Frame]:
    """For three slots."""
    return [Frame(2, 1, {SourceName("in"): slot}, {1: [bytes((slot,)) * size]}) for slot in range(3)]


class TestOneTask:
    def test_small_frames_go_through_spark(self, tmp_path: Path) -> None:
        sent = list(send(_frames(10), str(tmp_path)))
        assert [type(parcel) for _, parcel in sent] == [bytes] * 3
        assert not list(tmp_path.iterdir())
        assert receive(sent) == _frames(10)

    def test_large_frames_are_in_one_file(self, tmp_path: Path) -> None:
        sent = list(send(_frames(200_000), str(tmp_path)))
        assert [slot for slot, _ in sent] == [0, 1, 2]
        assert sum(len(parcel) for _, parcel in sent) == 9, "names and places, no frames"
        assert len(list(tmp_path.iterdir())) == 1
        assert receive(sent) == _frames(200_000)
        assert receive([7, sent[1]]) == _frames(200_000)[1:2], "what Spark begins with is no frame"

    def test_without_a_folder_all_go_through_spark(self) -> None:
        sent = list(send(_frames(200_000), None))
        assert receive(sent) == _frames(200_000)
        assert all(type(parcel) is bytes for _, parcel in sent)

    def test_where_nothing_can_be_written_they_go_through_spark(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "millwheel"):
            sent = list(send(_frames(200_000), str(tmp_path / "gone")))
        assert all(type(parcel) is bytes for _, parcel in sent)
        assert "cannot be written" in caplog.text

    def test_a_file_that_is_cut_short_is_no_frame(self, tmp_path: Path) -> None:
        sent = list(send(_frames(200_000), str(tmp_path)))
        (file,) = tmp_path.iterdir()
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(OSError, match="ends before a frame"):
            receive(sent)


def test_a_frame_in_parts_is_the_same_frame() -> None:
    for frame in (
        Frame(2, 1, {}),
        Frame(
            3,
            0,
            {SourceName("in"): 5},
            {1: [b"a", b""], 2: [], 3: [b"bc"]},
            [{"level": 1}],
            [b"batch"],
            b"error",
        ),
    ):
        data = b"".join(frame.to_parts())
        assert Frame.from_bytes(memoryview(data)) == frame
        assert Frame.from_bytes(memoryview(data)).to_bytes() == frame.to_bytes() == data


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://host:7077", "yarn"])
def test_tasks_on_several_machines_have_no_folder(master: str) -> None:
    context: Any = SimpleNamespace(master=master)
    assert Parcels(context).folder(1) is None


@pytest.mark.spark
@pytest.mark.parametrize("room", [0, 1 << 60], ids=["in memory", "no room in memory"])
def test_files_are_in_memory_where_there_is_room(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(shared_memory, "ROOM", room)
    made = Parcels(spark.sparkContext)
    folder = Path(made.folder(1) or "")
    assert folder.is_dir()
    assert folder.is_relative_to(shared_memory.MEMORY if not room else SparkFiles.getRootDirectory())
    made.close()
    assert not folder.parent.exists()


def test_a_place_that_is_not_there_has_no_room(tmp_path: Path) -> None:
    assert not shared_memory.has_room(str(tmp_path / "nowhere"))


_KILLED = """
import os, sys, time
from pyspark import SparkContext
from millwheel.spark.shared_memory import Parcels

context = SparkContext("local[1]", conf=None)
print(Parcels(context).folder(1), flush=True)
sys.stdin.read()
"""


@pytest.mark.spark
def test_a_driver_that_is_killed_leaves_no_file() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        process.kill()
    end = time.monotonic() + 60
    while folder.parent.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not folder.parent.exists()


_COUNT = 30_000


def _pipeline(extractor: Any) -> tuple[mw.Pipeline, mw.sinks.Collect]:
    p = mw.Pipeline("parcels")
    records = [mw.Record(value={"k": f"key-{n % 50}", "n": n}, timestamp=n) for n in range(_COUNT)]
    p.inject("in", mw.injectors.Records(records))
    p.add(Echo("mid"), name="A", inputs={"in": extractor}, outputs=["mid"])
    p.add(Echo("out"), name="B", inputs={"mid": mw.by("n")}, outputs=["out"])
    sink = mw.sinks.Collect()
    p.sink("out", sink)
    return p, sink


@contextmanager
def _running(
    p: mw.Pipeline, spark: SparkSession, folder: Path
) -> Iterator[tuple[Driver, SparkExecutor, list[list[Path]]]]:
    """A driver, an executor, and by epoch the files that it had when it was over."""
    graph = build(p)
    store = LmdbStore(folder / "store", shards=2)
    driver = Driver(graph, store, Options(slots=2), clock=lambda: 0, owner="a test")
    driver.sizer.bound = _COUNT
    executor = SparkExecutor(spark.sparkContext, graph, driver.numbers, store)
    seen: list[list[Path]] = []
    clean = executor.cleaner.clean

    def look(rdd: Any, place: str | None) -> None:
        seen.append([] if place is None else list(Path(place).iterdir()))
        clean(rdd, place)

    executor.cleaner.clean = look  # type: ignore[assignment, method-assign]
    try:
        yield driver, executor, seen
    finally:
        executor.close()
        driver.close()


@pytest.mark.spark
class TestOnSpark:
    def test_an_epoch_uses_files_and_leaves_none(self, spark: SparkSession, tmp_path: Path) -> None:
        p, sink = _pipeline(mw.by("k"))
        with _running(p, spark, tmp_path) as (driver, executor, seen):
            while (plan := driver.next_plan()) is not None:
                driver.run(plan, executor)
            root = executor.parcels.root
            assert root is not None
            assert root.is_dir()
        assert sorted(record.value["n"] for record in sink.records) == list(range(_COUNT))
        assert len(seen[0]) == 4, "two tasks inject, two run the first level"
        assert not root.exists()

    def test_a_lost_file_costs_an_attempt_and_nothing_else(
        self, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        flag = tmp_path / "lost"

        def losing(record: mw.Record) -> str:
            """Sees to it, in the worker, that the first file that is written there is lost."""
            if not flag.exists():
                flag.touch()
                _lose_next()
            return str(record.value["k"])

        p, sink = _pipeline(losing)
        with (
            caplog.at_level(logging.WARNING, "millwheel"),
            _running(p, spark, tmp_path) as (driver, executor, _),
        ):
            while (plan := driver.next_plan()) is not None:
                driver.run(plan, executor)
        assert "epoch 1: attempt 1 failed" in caplog.text
        assert sorted(record.value["n"] for record in sink.records) == list(range(_COUNT))


def _lose_next() -> None:
    real = shared_memory.filed

    def lose(*given: Any) -> list[shared_memory.Parcel]:
        shared_memory.filed = real
        found = real(*given)
        Path(found[0][0]).unlink()  # type: ignore[arg-type]
        return found

    shared_memory.filed = lose


def test_a_start_removes_the_frames_of_a_run_of_which_everything_was_killed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "millwheel-frames-killed"
    (left / "1-1").mkdir(parents=True)
    (left / "owner").touch()
    monkeypatch.setattr(shared_memory, "MEMORY", str(tmp_path))
    Parcels(spark.sparkContext).close()
    assert not left.exists()
