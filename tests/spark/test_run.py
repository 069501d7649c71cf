"""`run` on a real Spark: what it gives, what it reports, and that a second run goes on."""

from __future__ import annotations

from collections import Counter as Multiset
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from tests.computations import Counter, Echo, Hooks, Log, Windower, values
from tests.spark.counting import counting, in_order, records
from tests.spark.sources import Feed, Folder
from tests.spark.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Pairs(mw.Computation):
    """Joins two streams by key: counts what came from each."""

    def process_record(self, record: mw.Record) -> None:
        self.state[record.stream] = self.state.get(record.stream, 0) + 1
        self.set_timer("end", mw.MAX_TIME)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("pairs", sorted(self.state.items()), timestamp=0)
        del self.state


def big_graph(injector: mw.Injector) -> tuple[mw.Pipeline, dict[str, mw.sinks.Collect]]:
    """A diamond, two re-keyed levels, a chain, a skip-level edge, and a filter."""
    p = mw.Pipeline("big")
    p.inject("in", injector)
    p.add(Echo("top"), name="Top", inputs={"in": mw.by("user")}, outputs=["top"])
    p.add(Windower("left", stamp=-1), name="Left", inputs={"top": mw.by_key}, outputs=["left"])
    p.add(
        Echo("right"),
        name="Right",
        inputs={"top": lambda r: f"m{r.value['n'] % 3}" if r.value["n"] % 2 else mw.SKIP},
        outputs=["right"],
    )
    p.add(Pairs(), inputs={"left": lambda r: r.key, "right": mw.by("user")}, outputs=["pairs"])
    p.add(
        Windower("deep", size=5 * mw.SECOND), name="Deep", inputs={"left": lambda r: "all"}, outputs=["deep"]
    )
    p.add(Log(), inputs={"deep": mw.by_key}, outputs=["log"])
    p.add(Windower("seen"), name="Seen", inputs={"in": mw.by("user"), "left": mw.by("key")}, outputs=["seen"])
    sinks = {
        stream: mw.sinks.Collect() for stream in ("top", "left", "right", "pairs", "deep", "log", "seen")
    }
    for stream, sink in sinks.items():
        p.sink(stream, sink)
    return p, sinks


@pytest.mark.parametrize(
    "options",
    [{"compact_below": 0}, {}, {"compact_below": 0, "slots": 3}],
    ids=["wide", "compact", "wide over three slots"],
)
def test_a_graph_of_many_levels_gives_what_the_harness_gives(
    options: dict[str, Any], spark: SparkSession, where: str
) -> None:
    p, expected = big_graph(mw.injectors.Records([]))
    h = mw.testing.Harness(p)
    for part in range(0, 200, 50):
        with h.epoch():
            for record in records(50, first=part):
                h.send("in", record.value, record.timestamp, id=record.id)
    h.drain()

    p, found = big_graph(mw.injectors.Records(records(200), per_epoch=90))
    report = mw.run(p, store=where, spark=spark, **options)

    for stream, sink in found.items():
        assert in_order(sink.records) == in_order(expected[stream].records), stream
        assert len(sink.records) > 0
    status = h.status()
    assert report.records == status.records
    assert (
        report.duplicates == status.duplicates == {**dict.fromkeys(status.records, 0), "Top": 20, "Seen": 20}
    )
    assert report.streams == status.streams
    assert report.late == dict.fromkeys(status.records, 0)
    assert report.low_watermarks == status.low_watermarks


def test_the_report_says_what_was_done(spark: SparkSession, where: str) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.count("seen")
        if record.value == "bad":
            raise ValueError("no good")
        if record.value == "held":
            c.hold(record.timestamp)
        c.set_timer("w", c.now + mw.DAY, clock=mw.WALL)
        c.set_timer("e", record.timestamp + 1)
        c.produce("out", record.value)

    given = [
        mw.Record(value="one", timestamp=10, id=1),
        mw.Record(value="one", timestamp=10, id=1),
        mw.Record(value="bad", timestamp=10, id=2),
        mw.Record(value="late", timestamp=2, id=3),
        mw.Record(value="held", timestamp=10, id=4),
    ]
    p = mw.Pipeline("reported")
    p.inject("in", mw.injectors.Records(given, watermarks=[5, 5, 5, 5, 5], per_epoch=1))
    p.add(Hooks(on_record), name="C", inputs={"in": mw.by_key}, outputs=["out"], errors="divert", late="drop")
    p.add(Counter(), inputs={"out": lambda record: "all"}, outputs=["counts"])
    errors = mw.sinks.Collect()
    p.sink("C.errors", errors)
    report = mw.run(p, store=where, spark=spark)
    assert report.epochs >= 5
    assert report.records_in == 5
    assert report.records == {"C": 2, "Counter": 2}
    assert report.produced == {"C": 2, "Counter": 2}
    assert report.late == {"C": 1, "Counter": 0}
    assert report.dropped == {"C": 1, "Counter": 0}
    assert report.duplicates == {"C": 1, "Counter": 0}
    assert report.failed == {"C": 1, "Counter": 0}
    assert report.streams == {"in": 5, "out": 2, "counts": 2, "C.errors": 1}
    assert report.user == {"seen": 2}
    assert report.pending_wall_timers == 1
    assert report.unreleased_holds == 1
    assert report.low_watermarks == {"C": mw.MAX_TIME, "Counter": mw.MAX_TIME}
    assert [record.timestamp for record in errors.records] == [10]
    assert "hold" in str(report)


def test_a_second_run_on_the_same_store_processes_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    p, first = counting(mw.injectors.Records(records(30)))
    assert mw.run(p, store=tmp_path / "store", spark=spark).records_in == 30
    p, second = counting(mw.injectors.Records(records(30)))
    report = mw.run(p, store=str(tmp_path / "store"), spark=spark)
    assert report.records_in == 0
    assert report.records == {"Counter": 0}
    assert report.low_watermarks == {"Counter": mw.MAX_TIME}
    assert len(first.records) == 27
    assert second.records == []


def test_a_second_run_goes_on_where_the_first_one_ended(spark: SparkSession, tmp_path: Path) -> None:
    p, first = counting(mw.injectors.Records(records(30)))
    mw.run(p, store=f"lmdb://{tmp_path}/store", spark=spark)
    p, second = counting(mw.injectors.Records(records(40)))
    report = mw.run(p, store=tmp_path / "store", spark=spark, compact_below=0)
    assert report.records_in == 10
    counts = {(r.key, r.value) for r in first.records + second.records}
    assert len(counts) == len(first.records) + len(second.records) == 36
    assert max(value for key, value in counts if key == "0") == 8


def test_a_memory_store_begins_anew_each_time(spark: SparkSession) -> None:
    for _ in range(2):
        p, sink = counting(mw.injectors.Records(records(10)))
        assert mw.run(p, store="memory:", spark=spark).records_in == 10
        assert len(sink.records) == 9


def test_without_a_session_the_active_one_is_taken(spark: SparkSession) -> None:
    p, sink = counting(mw.injectors.Records(records(10)))
    mw.run(p, store="memory:")
    assert len(sink.records) == 9


def test_collect_has_the_records_in_the_driver_key_by_key_in_order(spark: SparkSession) -> None:
    p, sink = counting(mw.injectors.Records(records(60), per_epoch=25))
    mw.run(p, store="memory:", spark=spark, compact_below=0)
    for user in "01234":
        mine = [record.value for record in sink.records if record.key == user]
        assert mine == list(range(1, len(mine) + 1))
    assert {record.stream for record in sink.records} == {"counts"}


@pytest.mark.parametrize("compact_below", [0, 4_000], ids=["wide", "compact"])
def test_an_injector_and_a_sink_of_one_s_own(
    compact_below: int, spark: SparkSession, tmp_path: Path, where: str
) -> None:
    feed = Feed({"odd": records(39)[1::2], "even": records(40)[::2]})
    folder = Folder(tmp_path / "out")
    p = mw.Pipeline("own")
    p.inject("in", feed)
    p.add(Windower(), inputs={"in": mw.by("user")}, outputs=["windows"])
    p.sink("windows", folder)
    report = mw.run(p, store=where, spark=spark, compact_below=compact_below)
    assert report.records_in == 39
    assert feed.committed == {"odd": 19, "even": 20}
    lines = folder.lines()
    assert sum(value["count"] for _, value, _ in lines) == len({r.id for r in records(39)})
    assert len({(key, value["window"]) for key, value, _ in lines}) == len(lines) == 20
    assert report.late == {"Windower": 0}


def test_a_sink_may_take_an_injected_stream(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out")
    p = mw.Pipeline("copying")
    p.inject("in", mw.injectors.Records(records(10), per_epoch=4))
    p.sink("in", folder)
    report = mw.run(p, store="memory:", spark=spark)
    assert report.streams == {"in": 10}
    assert sorted(value["n"] for _, value, _ in folder.lines()) == sorted(r.value["n"] for r in records(10))


def test_two_injectors_may_write_one_stream(spark: SparkSession) -> None:
    p = mw.Pipeline("two")
    p.inject("in", mw.injectors.Records(records(10)))
    p.inject("in", Feed({"x": records(10, first=10)}))
    p.add(Windower(), inputs={"in": lambda record: "all"}, outputs=["windows"])
    sink = mw.sinks.Collect()
    p.sink("windows", sink)
    mw.run(p, store="memory:", spark=spark)
    assert Multiset(value["window"] for value in values(sink.records)) == {0: 1, 1: 1}
    assert [value["count"] for value in values(sink.records)] == [9, 9]


def test_wall_timers_are_reported_and_not_waited_for(spark: SparkSession) -> None:
    p = mw.Pipeline("waiting")
    p.inject("in", mw.injectors.Records(records(5)))
    p.add(
        Hooks(lambda c, record: c.set_timer("w", c.now + mw.DAY, clock=mw.WALL)),
        name="C",
        inputs={"in": mw.by("user")},
    )
    assert mw.run(p, store="memory:", spark=spark).pending_wall_timers == 5


def test_few_timers_at_a_time_give_the_same_windows(spark: SparkSession) -> None:
    """An interval that leaves due timers to the next epoch holds back its watermark, and nothing is late."""
    found = []
    for options in ({}, {"due_limit": 3, "slots": 2}):
        p, sinks = big_graph(mw.injectors.Records(records(60), per_epoch=40))
        report = mw.run(p, store="memory:", spark=spark, **options)
        assert set(report.late.values()) == {0}
        found.append({stream: in_order(sink.records) for stream, sink in sinks.items()})
    assert found[0] == found[1]


def test_a_second_run_with_other_slots_goes_on_with_every_key(spark: SparkSession, tmp_path: Path) -> None:
    whole, expected = big_graph(mw.injectors.Records(records(80)))
    mw.run(whole, store="memory:", spark=spark)
    found: dict[str, list[mw.Record]] = {}
    before = 0
    for opened, slots in ((30, 1), (60, 4), (80, 3)):
        feed = Feed({"only": records(80)}, opened=opened)
        feed.ended = opened == 80
        p, sinks = big_graph(feed)
        options = {"store": tmp_path / "store", "spark": spark, "slots": slots}
        if feed.ended:
            report = mw.run(p, **options)
        else:
            with mw.start(p, **options) as job:
                eventually(lambda job=job, more=opened - before: job.status().records_in == more)
            report = job.status()
        assert report.records_in == opened - before
        before = opened
        for stream, sink in sinks.items():
            found.setdefault(stream, []).extend(sink.records)
    for stream, sink in expected.items():
        assert in_order(found[stream]) == in_order(sink.records), stream
