"""Every NEXMark query gives the answer of a batch computation, whatever the order, and after crashes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from examples.nexmark import reference, source
from examples.nexmark.events import KINDS, House, Kind
from examples.nexmark.operators import OPERATORS
from examples.nexmark.pipeline import MAX_SKEW, found, pipeline
from examples.nexmark.queries import QUERIES
from millwheel.testing import Simulated, simulate
from tests.conftest import MakeHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
HOUSE = House(count=4_000, rate=100)  # 40 seconds: four windows, and sessions that end
LATENESS = 5 * mw.SECOND  # how far out of order the tests send events
TICK = 2 * mw.SECOND

Arrival = tuple[int, Kind, dict[str, Any]]


WRITTEN = [(query, False) for query in QUERIES] + [(query, True) for query in OPERATORS]
"""By hand, and in operators."""
written = pytest.mark.parametrize(
    ("query", "operators"), WRITTEN, ids=[f"{query} in operators" if is_ else query for query, is_ in WRITTEN]
)


def in_order() -> House:
    return House(count=HOUSE.count, rate=HOUSE.rate, disorder=1)


def arrivals(streams: Sequence[Kind], seed: int) -> list[Arrival]:
    """The events that a query reads, each up to `LATENESS` behind its time, in the order of their coming."""
    rng = random.Random(seed)
    events: list[Arrival] = []
    for kind in streams:
        times, values = in_order().read(kind, 0, HOUSE.count)
        events += [(t + rng.randrange(LATENESS), kind, v) for t, v in zip(times, values, strict=True)]
    return sorted(events, key=lambda arrival: arrival[0])


def bag(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


@pytest.mark.parametrize("query", QUERIES)
def test_the_answer_is_that_of_a_batch_in_any_order_and_after_a_crash(
    query: str, harness: MakeHarness
) -> None:
    h = harness(pipeline(query, source.made(HOUSE), mw.sinks.Collect()))
    _compare(query, h, operators=False)


@pytest.mark.parametrize("query", OPERATORS)
def test_the_answer_in_operators_is_that_of_a_batch_in_any_order_and_after_a_crash(query: str) -> None:
    p = pipeline(query, source.made(HOUSE), mw.sinks.Collect(), operators=True)
    _compare(query, mw.testing.Harness(p, seed=2, slots=3), operators=True)


def _compare(query: str, h: mw.testing.Harness, *, operators: bool) -> None:
    """Feeds a query, with crashes on the way, and compares what comes with the batch answer."""
    begin = HOUSE.time(0)
    streams = found(query, operators=operators).STREAMS
    pending = arrivals(streams, seed=7)
    processed = []
    ticks = pending[-1][0] // TICK - begin // TICK + 2
    for tick in range(1, ticks):
        now = (begin // TICK + tick) * TICK
        with h.epoch():
            h.advance_wall(now)
            while pending and pending[0][0] < now:
                _, kind, value = pending.pop(0)
                h.send(kind, value, value["dateTime"])
                processed.append((now, value))
            for kind in streams:
                h.advance(kind, now - LATENESS)
        if tick in (ticks // 3, ticks // 2):
            h.crash()
    h.drain()
    rows = [record.value for record in h.output("results")]
    events = HOUSE.all()
    expected = reference.q12(processed) if query == "q12" else reference.ANSWERS[query](events)
    assert expected, "a query without an answer tests nothing"
    assert bag(rows) == bag(expected)
    assert reference.same(query, rows, events)
    status = h.status()
    assert sum(status.late.values()) == sum(status.produced_late.values()) == 0


KEPT = {"LocalItems", "CategoryAverage", "SellerAverage"}
"""What is kept for good: persons, and averages."""


@written
def test_nothing_is_kept_of_what_is_over(query: str, operators: bool) -> None:
    house = House(count=1_000, rate=50, disorder=100)

    def check(outcome: Simulated) -> None:
        assert sum(map(len, outcome.outputs.values())) > 0
        for name, states in outcome.states.items():
            assert name in KEPT or not any(states.values()), name
        for name in KEPT & outcome.states.keys():
            assert not any(
                state.get("waiting") or state.get("closed") for state in outcome.states[name].values()
            )

    def make() -> mw.Pipeline:
        return pipeline(query, source.made(house), mw.sinks.Collect(), operators=operators)

    simulate(make, seeds=[], check=check)


def test_an_auction_whose_seller_never_comes_is_given_up() -> None:
    h = mw.testing.Harness(pipeline("q3", source.made(HOUSE), mw.sinks.Collect()))
    auction = {"id": 1, "seller": 7, "category": 10}
    person = {"id": 7, "name": "Ada", "city": "Bend", "state": "OR"}
    h.send("auctions", auction, mw.MINUTE)
    for stream in ("auctions", "persons"):
        h.advance(stream, 11 * mw.MINUTE)
    assert h.state("LocalItems", "7") is not None
    h.send("persons", person, 11 * mw.MINUTE)
    assert [record.value["id"] for record in h.output("results")] == [1]
    h.send("auctions", {**auction, "seller": 8}, 12 * mw.MINUTE)
    h.drain()
    assert h.state("LocalItems", "8") is None


@written
def test_no_schedule_of_failures_changes_the_answer(query: str, operators: bool) -> None:
    if query == "q12":
        pytest.skip("it depends on when a bid is processed")
    house = House(count=600, rate=20, disorder=100)

    def make() -> mw.Pipeline:
        return pipeline(query, source.made(house), mw.sinks.Collect(), operators=operators)

    simulate(make, seeds=range(2 if operators else 4))


def test_any_range_of_the_events_is_the_same_whoever_reads_it() -> None:
    for house in (House(2_500), House(2_500, disorder=1)):
        for kind in KINDS:
            times, values = house.read(kind, 0, 2_500)
            assert times == [value["dateTime"] for value in values]
            pieces = [house.read(kind, start, start + 7)[1] for start in range(0, 2_500, 7)]
            assert [value for piece in pieces for value in piece] == values
    assert sorted(House(2_500).numbers(0, 2_500).tolist()) == list(range(2_500))
    assert House(100, seed=2).all() != House(100).all()
    counts = {kind: len(values) for kind, values in House(5_000).all().items()}
    assert counts == {"persons": 100, "auctions": 300, "bids": 4_600}


def test_the_watermark_of_the_events_is_never_passed_by_one_that_comes_later() -> None:
    house = House(2_500)
    injectors = source.made(house)
    for kind, injector in injectors.items():
        for position in range(0, 2_500, 130):
            times, _ = house.read(kind, position, 2_500)
            assert min(times, default=mw.MAX_TIME) >= injector.low_watermark("house", position)
            end = injector.bound("house", position, 2_500, 20)
            assert 0 < injector.size("house", position, end) <= 20 or kind == "persons"
        assert injector.low_watermark("house", 2_500) == mw.MAX_TIME
    assert injectors["bids"].low_watermark("house", 2_000) == house.time(2_000)


@pytest.mark.parametrize("wrong", [{"count": -1}, {"count": 1, "rate": 0}, {"count": 1, "disorder": 953}])
def test_a_house_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"house|disorder"):
        House(**wrong)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("query", "operators"),
    [
        *((query, False) for query in ("q1", "q3", "q4", "q5", "q7", "q11", "q12")),
        *((query, True) for query in ("q4", "q5", "q8", "q13", "q19", "q20")),
    ],
)
def test_the_answer_is_the_same_on_spark(
    query: str, operators: bool, spark: SparkSession, tmp_path: Path
) -> None:
    sink = mw.sinks.Collect()
    streams = found(query, operators=operators).STREAMS
    report = mw.run(
        pipeline(query, source.made(HOUSE), sink, operators=operators),
        store=tmp_path / "store",
        spark=spark,
        max_skew=MAX_SKEW,
        compact_below=0,
        progress=False,
    )
    assert reference.same(query, [record.value for record in sink.records], HOUSE.all())
    assert report.records_in == sum(len(HOUSE.all()[kind]) for kind in streams)
    assert sum(report.late.values()) == 0


@pytest.mark.spark
def test_the_answer_is_the_same_from_files(spark: SparkSession, tmp_path: Path) -> None:
    source.write(tmp_path / "events", HOUSE, parts=3)
    sink = mw.sinks.Collect()
    p = pipeline("q8", source.files(tmp_path / "events", HOUSE), sink)
    mw.run(p, store=tmp_path / "store", spark=spark, progress=False)
    assert reference.same("q8", [record.value for record in sink.records], HOUSE.all())


@pytest.mark.spark
def test_the_command_shows_a_query_and_checks_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.nexmark", "q7", "--events", "3000", "--rate", "100"]
    command += ["--files", str(tmp_path), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "Query 7, highest bid" in done.stdout
    assert "00:00:30.000" in done.stdout
    assert "the same as the batch answer" in done.stdout
    assert len(list(tmp_path.glob("*.jsonl"))) == 6
