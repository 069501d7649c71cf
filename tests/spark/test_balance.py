"""Intervals that follow the load, on a real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from millwheel.model.keys import TABLETS, tablet
from tests.spark.sources import Feed
from tests.spark.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_LONG = 300.0  # seconds: it needs processor time, which a busy machine gives late
_HOT = [key for key in map(str, range(2_000)) if tablet(key) < TABLETS // 2][:40]


class Pieces(Feed):
    """A feed that is read in epochs of a tenth of a second of one slot's work."""

    def bound(self, partition: str, start: Any, end: Any, records: int) -> Any:
        return min(end, (start or 0) + 1_000)


class Slow(mw.Computation):
    """Takes its time for each record, and counts them all."""

    def process_record(self, record: mw.Record) -> None:
        sum(range(8_000))
        self.state["n"] = self.state.get("n", 0) + 1
        self.count("seen")


def _pipeline(feed: mw.Injector, **options: Any) -> mw.Pipeline:
    p = mw.Pipeline("hot half")
    p.inject("in", feed)
    p.add(Slow(), inputs={"in": mw.by_key}, **options)
    return p


def _records(count: int) -> list[mw.Record]:
    return [mw.Record(key=_HOT[i % len(_HOT)], value=None, timestamp=i) for i in range(count)]


def test_the_hot_half_of_the_keys_is_shared_and_a_restart_goes_on_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "spark": spark,
        "store": tmp_path / "store",
        "slots": 2,
        "compact_below": 0,
        "target": 0.2,
    }
    feed = Pieces({"only": _records(15_000)}, opened=15_000)
    with mw.start(_pipeline(feed), **options) as job:
        eventually(lambda: bool(job.status().changes) or job.status().records_in == 15_000, limit=_LONG)
        (change, *_) = job.status().changes
        assert "slot 0" in change["why"]
        assert {slot for first, slot in change["after"] if first < TABLETS // 2} == {0, 1}
    with mw.start(_pipeline(feed), **options, balance=False) as job:
        assert job.view is not None
        eventually(lambda: job.view().user["seen"] == 15_000, limit=_LONG)  # type: ignore[misc]
        assert job.status().changes[0] == change
        view = job.view()
    assert view.records_in == 15_000
    assert len(view.intervals) > 2


def test_it_is_rescaled_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed({"only": _records(3_000)}, opened=1_000)
    with mw.start(
        _pipeline(feed), spark=spark, store=tmp_path / "store", slots=2, compact_below=0, balance=False
    ) as job:
        eventually(lambda: job.status().records_in == 1_000)
        job.rescale(5)
        feed.opened = 2_000
        eventually(lambda: job.status().records_in == 2_000)
        job.rescale(1)
        feed.opened = 3_000
        eventually(lambda: job.status().user["seen"] == 3_000)
        assert job.status().records_in == 3_000


def test_records_of_a_hot_key_are_combined(spark: SparkSession) -> None:
    feed = Feed({"only": _records(3_000)})
    report = mw.run(
        _pipeline(feed, combine=mw.combiners.Count(None)),
        spark=spark,
        store="memory:",
        slots=2,
        compact_below=0,
    )
    assert report.streams["in"] == 3_000
    assert report.user["seen"] < 1_000
