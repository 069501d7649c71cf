"""A sink that fails is tried again; where it goes on failing the run ends, and the next one delivers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class SinkDown(Exception):
    """What the sinks of these tests raise; its name does not end in Error."""


class Flaky(mw.Sink):
    """Fails so many times as a file says, then writes; a file for each attempt, as tasks are processes."""

    def __init__(self, folder: Path, error: type[Exception] = OSError) -> None:
        self._folder = folder
        self._error = error

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        values = [record.value for record in records]
        failures = int((self._folder / "failures").read_text())
        attempts = len(list(self._folder.glob("attempt-*")))
        (self._folder / f"attempt-{attempts}").write_text(json.dumps([epoch, shard, values]))
        if attempts < failures:
            raise self._error("the disk is on fire")
        (self._folder / f"written-{epoch}-{shard}").write_text(json.dumps(values))


class Dice(mw.Computation):
    """Never produces the same twice."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("out", [record.value, self.state["n"], random.random()])


def _pipeline(sink: mw.Sink) -> mw.Pipeline:
    p = mw.Pipeline("flaky")
    p.inject("in", mw.injectors.Records([mw.Record(value=i, timestamp=i, key="k") for i in range(10)]))
    p.add(Dice(), inputs={"in": mw.by_key}, outputs=["out"])
    p.sink("out", sink)
    return p


def _folder(path: Path, failures: int) -> Path:
    path.mkdir()
    (path / "failures").write_text(str(failures))
    return path


def _attempts(folder: Path) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("attempt-*"))]


def _written(folder: Path) -> list[Any]:
    return [value for path in sorted(folder.glob("written-*")) for value in json.loads(path.read_text())]


def _check(values: list[Any]) -> None:
    assert [value[0] for value in values] == list(range(10))
    assert [value[1] for value in values] == list(range(1, 11)), "a record was processed twice"


def test_a_sink_that_fails_twice_is_tried_again_with_the_same_records(
    tmp_path: Path, spark: SparkSession
) -> None:
    folder = _folder(tmp_path / "sink", failures=2)
    report = mw.run(_pipeline(Flaky(folder)), store=tmp_path / "store", spark=spark)
    attempts = _attempts(folder)
    assert len(attempts) == 3
    assert attempts[0] == attempts[1] == attempts[2]
    _check(_written(folder))
    assert report.records["Dice"] == 10


@pytest.mark.parametrize("error", [OSError, SinkDown])
def test_a_sink_that_goes_on_failing_ends_the_run_with_its_message_and_the_next_run_delivers(
    tmp_path: Path, spark: SparkSession, error: type[Exception]
) -> None:
    folder = _folder(tmp_path / "sink", failures=1_000)
    with pytest.raises(mw.EngineError) as caught:
        mw.run(_pipeline(Flaky(folder, error)), store=tmp_path / "store", spark=spark)
    message = str(caught.value)
    assert "the disk is on fire" in message
    assert "stream 'out'" in message
    assert "Nothing is lost" in message
    assert "run again to continue it" in message
    failed = _attempts(folder)
    assert len(failed) > 1
    assert _written(folder) == []

    (folder / "failures").write_text("0")
    report = mw.run(_pipeline(Flaky(folder, error)), store=tmp_path / "store", spark=spark)
    _check(_written(folder))
    assert _attempts(folder)[-1] == failed[0], "what was delivered is not what was produced"
    assert report.records["Dice"] == 10
    again = mw.run(_pipeline(Flaky(folder, error)), store=tmp_path / "store", spark=spark)
    assert again.records["Dice"] == 0


class Picky(mw.sinks.Collect):
    """A sink in the driver's memory that fails at first."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 1_000

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise OSError("no memory for this")
        super().write(epoch, shard, records)


def test_a_sink_in_the_driver_that_fails_ends_the_run_with_an_error_of_ours_and_the_next_run_delivers(
    tmp_path: Path, spark: SparkSession
) -> None:
    sink = Picky()
    with pytest.raises(mw.MillWheelError, match="no memory for this"):
        mw.run(_pipeline(sink), store=tmp_path / "store", spark=spark)
    assert sink.records == []
    sink.failures = 0
    mw.run(_pipeline(sink), store=tmp_path / "store", spark=spark)
    _check([record.value for record in sink.records])


def test_json_lines_deliver_once_though_an_epoch_was_tried_again(tmp_path: Path, spark: SparkSession) -> None:
    folder = _folder(tmp_path / "sink", failures=3)
    p = _pipeline(mw.sinks.JsonLines(tmp_path / "out"))
    p.sink("out", Flaky(folder))
    mw.run(p, store=tmp_path / "store", spark=spark)
    _check([record.value for record in mw.sinks.JsonLines(tmp_path / "out").records()])
    assert len(_attempts(folder)) == 4


def test_json_lines_are_written_by_the_tasks_and_read_by_anybody(tmp_path: Path, spark: SparkSession) -> None:
    p = mw.Pipeline("lines")
    p.inject("in", mw.injectors.Records([mw.Record(value=b"\xff", timestamp=i, key="k") for i in range(3)]))
    p.sink("in", mw.sinks.JsonLines(tmp_path / "out"))
    mw.run(p, store=tmp_path / "store", spark=spark)
    lines = [
        json.loads(line)
        for path in (tmp_path / "out").glob("part-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert lines == [{"key": "k", "timestamp": i, "value": "\\xff"} for i in range(3)]
