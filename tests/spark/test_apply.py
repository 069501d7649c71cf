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


class Windows(mw.Computation):
    """Counts a key's records per hundred units of time."""

    def process_record(self, record: mw.Record) -> None:
        window = record.timestamp // 100
        self.state[window] = self.state.get(window, 0) + 1
        self.set_timer(str(window), (window + 1) * 100)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("windows", [int(timer.tag), self.state.pop(int(timer.tag))], timer.timestamp - 1)


def _windowed(feed: Feed, out: Path, name: str, **options: object) -> mw.Pipeline:
    p = mw.Pipeline(name)
    p.inject("in", mw.injectors.Files(feed.folder / "*.jsonl", timestamp="t", slack=0))
    p.add(Windows(), inputs={"in": mw.by("k")}, outputs=["windows"], **options)  # type: ignore[arg-type]
    p.sink("windows", mw.sinks.JsonLines(out))
    return p


def _windows(out: Path) -> Counter[tuple[str, int, int]]:
    return Counter((record.key, *record.value) for record in mw.sinks.JsonLines(out).records())


def _expected(until: int, sent: int) -> Counter[tuple[str, int, int]]:
    """The windows that end at ``until`` or before it, of so many records."""
    counts = Counter((f"k{i % 7}", i // 100) for i in range(sent))
    return Counter((key, window, n) for (key, window), n in counts.items() if (window + 1) * 100 <= until)


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


def _with_windows(feed: Feed, out: Path) -> mw.Pipeline:
    p = _pipeline(feed, out, sums=False)
    p.add(Windows(), inputs={"in": mw.by("k")}, outputs=["windows"], replay="earliest")
    p.sink("windows", mw.sinks.JsonLines(out / "windows"))
    return p


def test_what_is_added_with_replay_has_everything_from_the_beginning(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    options = {"store": tmp_path / "store", "spark": spark, "compact_below": 200, "target": 0.05}
    with mw.start(_pipeline(feed, out, sums=False), **options) as job:  # type: ignore[arg-type]
        for _ in range(4):
            feed.send(1_000)
        eventually(lambda: job.status().records_in >= 4_000)
        assert job.apply(_with_windows(feed, out)).added == ("Windows",)
        feed.send(500)
        eventually(lambda: job.status().records.get("Windows", 0) >= 4_500)
        feed.send(500)
        eventually(lambda: job.status().records["Counts"] >= 5_000)
        eventually(lambda: job.status().records["Windows"] >= 5_000)
        assert "in replayed to Windows" not in job.status().lag, "it has joined the others"
    assert _counted(out) == Counter(range(5_000)), "the others saw nothing twice"
    mw.run(_with_windows(feed, out), store=tmp_path / "store", spark=spark)
    assert _windows(out / "windows") == _expected(mw.MAX_TIME, 5_000)


def test_a_job_that_is_drained_closes_what_the_watermark_allows_and_no_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    feed.send(950)
    job = mw.start(_windowed(feed, out, "drained"), store=tmp_path / "store", spark=spark, step_budget=0.001)
    eventually(lambda: job.status().records_in >= 950)
    report = job.stop(drain=True)
    assert report.records["Windows"] == 950, "what waited was finished"
    assert _windows(out) == _expected(949, 950)
    feed.send(50)
    report = mw.run(_windowed(feed, out, "drained"), store=tmp_path / "store", spark=spark)
    assert report.records["Windows"] == 50
    assert _windows(out) == _expected(mw.MAX_TIME, 1_000)


def test_two_pipelines_on_one_session_do_not_disturb_one_another(spark: SparkSession, tmp_path: Path) -> None:
    feeds = [Feed(tmp_path / f"in{number}") for number in range(2)]
    outs = [tmp_path / f"out{number}" for number in range(2)]
    jobs = [
        mw.start(
            _windowed(feeds[number], outs[number], f"number {number}"),
            store=tmp_path / f"store{number}",
            spark=spark,
            compact_below=(0, 4_000)[number],
        )
        for number in range(2)
    ]
    for _ in range(5):
        for number in range(2):
            feeds[number].send(200 * (number + 1))
    eventually(lambda: jobs[0].status().records_in >= 1_000 and jobs[1].status().records_in >= 2_000)
    jobs[1].apply(_windowed(feeds[1], outs[1], "number 1", late="drop"))
    jobs[0].stop(drain=True)
    feeds[1].send(100)
    eventually(lambda: jobs[1].status().records["Windows"] >= 2_100)
    jobs[1].stop(drain=True)
    assert _windows(outs[0]) == _expected(999, 1_000)
    assert _windows(outs[1]) == _expected(2_099, 2_100)


def test_a_computation_that_is_dropped_stops_at_once_and_one_that_is_drained_finishes(
    spark: SparkSession, tmp_path: Path
) -> None:
    for removed in ("drain", "drop"):
        feed, out = Feed(tmp_path / f"in {removed}"), tmp_path / f"out {removed}"
        with mw.start(
            _pipeline(feed, out, sums=True), store=tmp_path / f"store {removed}", spark=spark
        ) as job:
            feed.send(100)
            eventually(lambda job=job: job.status().records_in >= 100)  # type: ignore[misc]
            found = job.apply(_pipeline(feed, out, sums=False), removed=removed)  # type: ignore[arg-type]
            assert found.removed == ("Sums",)
            with pytest.raises(mw.PipelineError, match='removed is "drain" or "drop"'):
                job.apply(_pipeline(feed, out, sums=False), removed="keep")  # type: ignore[arg-type]
        if removed == "drain":
            assert _sums(out) == list(range(1, 101))


class Broken(mw.Injector):
    """Cannot be opened; remembers whether it was closed."""

    opened = closed = 0

    def open(self, *, follow: bool) -> None:
        type(self).opened += 1
        raise OSError("no such device")

    def close(self) -> None:
        type(self).closed += 1


def test_an_injector_that_cannot_be_opened_leaves_the_pipeline_as_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed, out = Feed(tmp_path / "in"), tmp_path / "out"
    with mw.start(_pipeline(feed, out, sums=False), store=tmp_path / "store", spark=spark) as job:
        broken = _pipeline(feed, out, sums=False)
        broken.inject("more", Broken())
        with pytest.raises(OSError, match="no such device"):
            job.apply(broken)
        assert (Broken.opened, Broken.closed) == (1, 1)
        feed.send(10)
        eventually(lambda: job.status().records["Counts"] >= 10)
    assert _counted(out) == Counter(range(10))


def test_the_status_knows_a_new_computation_as_soon_as_it_is_applied(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "in")
    feed.send(10)
    pipeline = _pipeline(feed, tmp_path, sums=False)
    with mw.start(pipeline, store=tmp_path / "store", spark=spark, slots=1) as job:
        eventually(lambda: job.status().records_in == 10)
        job.apply(_pipeline(feed, tmp_path, sums=True))
        status = job.status()
        assert status.records["Sums"] == 0
        assert "Sums" in status.low_watermarks
        job.stop()
