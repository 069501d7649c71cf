"""A running pipeline becomes another one, between two epochs."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millwheel as mw
from tests.spark.waiting import eventually

pytestmark = pytest.mark.spark


class Counts(mw.Computation):
    """Numbers a key's records, so that one that is lost or doubled shows."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("counted", [record.value["i"], self.state["n"]])


class Sums(mw.Computation):
    """Adds up what it is sent."""

    def process_record(self, record: mw.Record) -> None:
        self.state["sum"] = self.state.get("sum", 0) + 1
        self.produce("sums", self.state["sum"])


def _all(record: mw.Record) -> str:
    return "all"


class Feed:
    """A folder to which records are added while the pipeline runs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.sent = 0

    def send(self, count: int) -> None:
        lines = []
        for _ in range(count):
            lines.append(json.dumps({"t": self.sent, "i": self.sent, "k": f"k{self.sent % 7}"}) + "\n")
            self.sent += 1
        hidden = self.folder / ".new"
        hidden.write_text("".join(lines))
        hidden.rename(self.folder / f"{self.sent:08d}.jsonl")


def _pipeline(
    feed: Feed, out: Path, *, sums: bool, key: Callable[[mw.Record], str] | None = None
) -> mw.Pipeline:
    p = mw.Pipeline("changes")
    p.inject("in", mw.injectors.Files(feed.folder / "*.jsonl", timestamp="t"))
    p.add(Counts(), inputs={"in": key or mw.by("k")}, outputs=["counted"])
    p.sink("counted", mw.sinks.JsonLines(out / "counted"))
    if sums:
        p.add(Sums(), inputs={"counted": _all}, outputs=["sums"])
        p.sink("sums", mw.sinks.JsonLines(out / "sums"))
    return p


def _counted(out: Path) -> Counter[int]:
    return Counter(record.value[0] for record in mw.sinks.JsonLines(out / "counted").records())


def _sums(out: Path) -> list[int]:
    return sorted(record.value for record in mw.sinks.JsonLines(out / "sums").records())


def test_what_is_added_sees_what_comes_then_and_the_others_feel_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    feed.send(50)
    with mw.start(_pipeline(feed, out, sums=False), store=tmp_path / "store", spark=spark) as job:
        eventually(lambda: job.status().records_in >= 50)
        found = job.apply(_pipeline(feed, out, sums=True))
        assert found.added == ("Sums",)
        assert found.kept == ("Counts",)
        assert "adds Sums" in str(found)
        feed.send(30)
        eventually(lambda: job.status().records.get("Sums", 0) >= 30)
        assert job.status().records["Counts"] == 80, "the count goes on"
        found = job.apply(_pipeline(feed, out, sums=False))
        assert found.removed == ("Sums",)
        feed.send(20)
        eventually(lambda: job.status().records["Counts"] >= 100)
        job.apply(_pipeline(feed, out, sums=True))
        feed.send(5)
        eventually(lambda: job.status().records.get("Sums", 0) >= 35)
    assert _counted(out) == Counter(range(105))
    assert _sums(out) == list(range(1, 36)), "its state was kept while it was away"


def test_many_changes_under_load_lose_nothing(spark: SparkSession, tmp_path: Path) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    with mw.start(_pipeline(feed, out, sums=False), store=tmp_path / "store", spark=spark) as job:
        for number in range(16):
            feed.send(40)
            job.apply(_pipeline(feed, out, sums=number % 2 == 0))
        eventually(lambda: job.status().records["Counts"] >= feed.sent)
    assert _counted(out) == Counter(range(feed.sent))
    numbers = [record.value for record in mw.sinks.JsonLines(out / "counted").records()]
    assert sorted(n for i, n in numbers if i % 7 == 0) == list(range(1, len(range(0, feed.sent, 7)) + 1))


def test_a_change_that_state_cannot_survive_is_refused_and_the_pipeline_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    feed.send(10)
    with mw.start(_pipeline(feed, out, sums=False), store=tmp_path / "store", spark=spark) as job:
        eventually(lambda: job.status().records_in >= 10)
        with pytest.raises(mw.PipelineError, match="the key extractor was by"):
            job.apply(_pipeline(feed, out, sums=False, key=_all))
        other = _pipeline(feed, out, sums=False)
        other.name = "another"
        with pytest.raises(mw.PipelineError, match="cannot become 'another'"):
            job.apply(other)
        raw = _pipeline(feed, out, sums=False)
        raw.nodes["Counts"].computation.codec = mw.codecs.json
        with pytest.raises(mw.PipelineError, match="cannot read the state"):
            job.apply(raw)
        with pytest.raises(mw.PipelineError):
            job.apply(_broken(feed))
        feed.send(10)
        eventually(lambda: job.status().records["Counts"] >= 20)
    assert _counted(out) == Counter(range(20))


def _broken(feed: Feed) -> mw.Pipeline:
    p = mw.Pipeline("changes")
    p.inject("in", mw.injectors.Files(feed.folder / "*.jsonl", timestamp="t"))
    p.add(Counts(), inputs={"nobody writes this": mw.by_key}, outputs=["counted"])
    return p


def test_a_pipeline_that_has_ended_cannot_be_changed(spark: SparkSession, tmp_path: Path) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    job = mw.start(_pipeline(feed, out, sums=False), store=tmp_path / "store", spark=spark)
    job.stop()
    began = time.monotonic()
    with pytest.raises(mw.PipelineError, match="has ended"):
        job.apply(_pipeline(feed, out, sums=True))
    assert time.monotonic() - began < 30
