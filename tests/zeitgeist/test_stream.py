"""The generated stream: the same for the same seed, and everything that is in it is found, and no more."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

import millwheel as mw
from millwheel.apps.zeitgeist.findings import compare
from millwheel.apps.zeitgeist.pipeline import count_anomalies
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.synthetic import REGIONS, START, Queries, Traffic, region_key
from millwheel.model.time import DAY, MAX_TIME, MINUTE

RECORDS = 100_000
WIDTH = 15 * MINUTE
STEP = 8  # buckets that the injector hands over in one epoch


@functools.cache
def ran(seed: int, outage: str = "offline") -> mw.testing.Harness:
    """The pipeline over the whole stream, an epoch for some buckets of all regions."""
    traffic = Traffic(seed=seed, records=RECORDS, width=WIDTH, outage=outage)  # type: ignore[arg-type]
    queries = Queries(traffic)
    keys = {"WindowCounter": mw.by("query"), "Regions": region_key}
    h = mw.testing.Harness(count_anomalies(queries, keys, Settings(width=WIDTH, begin=START)))
    h.advance_wall(START + 30 * DAY)
    (end,) = set(queries.poll().values())
    for first in range(0, end, STEP):
        last = min(first + STEP, end)
        with h.epoch():
            for region in REGIONS:
                for record in queries.read(region, first, last):
                    h.send("records", record.value, record.timestamp)
            h.advance("records", min(queries.low_watermark(region, last) for region in REGIONS))
    return h


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_planted_anomaly_is_found_soon_and_hardly_anything_else(seed: int) -> None:
    h = ran(seed)
    traffic = Traffic(seed=seed, records=RECORDS, width=WIDTH)
    findings = compare(traffic, [record.value for record in h.output("anomalies")])
    assert findings.missed == []
    late = {
        finding.planted.key: finding.delay
        for finding in findings.found
        if finding.delay is not None and finding.delay > (3 if finding.planted.kind == "spike" else 1 + 3)
    }
    assert late == {}  # a dip's bucket must be over before the watermark can pass it
    key_buckets = len(h.output("windows"))
    assert len(findings.false) * 100_000 <= key_buckets
    assert h.status().dropped["WindowCounter"] == 0


@pytest.mark.parametrize("seed", [1])
def test_a_region_that_is_delayed_and_not_offline_is_no_dip(seed: int) -> None:
    def dips(h: mw.testing.Harness) -> list[str]:
        return [r.key for r in h.output("anomalies") if r.key.startswith("region ")]

    assert dips(ran(seed)) == ["region eg"]
    delayed = ran(seed, "delayed")
    assert dips(delayed) == []
    assert delayed.status().dropped["Regions"] == 0


def test_a_region_offline_is_told_behind_the_watermark() -> None:
    h = ran(1)
    (told,) = [r for r in h.output("anomalies") if r.key == "region eg"]
    outage = next(
        anomaly
        for anomaly in Traffic(seed=1, records=RECORDS, width=WIDTH).planted
        if anomaly.key == told.key
    )
    assert told.value["start"] == START + outage.first * WIDTH
    assert told.value["found"] >= told.value["start"] + WIDTH
    (over,) = [r for r in h.output("episodes") if r.key == "region eg"]
    assert over.value["end"] == START + outage.last * WIDTH


def test_the_stream_depends_on_its_seed_alone_however_it_is_cut() -> None:
    def read(seed: int, step: int) -> Counter[tuple[int, str]]:
        queries = Queries(Traffic(seed=seed, records=20_000, width=WIDTH))
        cut = range(0, 300, step)
        return Counter(
            (record.timestamp, record.value["query"])
            for region in REGIONS
            for first in cut
            for record in queries.read(region, first, min(first + step, 289))
        )

    assert read(1, 300) == read(1, 7)
    assert read(1, 300) != read(2, 300)


@pytest.mark.parametrize("outage", ["offline", "delayed"])
def test_no_record_is_older_than_the_watermark_before_it(outage: str) -> None:
    queries = Queries(Traffic(seed=4, records=20_000, width=WIDTH, outage=outage))  # type: ignore[arg-type]
    out_of_order = 0
    for region in REGIONS:
        newest = 0
        for bucket in range(289):
            low = queries.low_watermark(region, bucket)
            for record in queries.read(region, bucket, bucket + 1):
                assert record.timestamp >= low
                out_of_order += record.timestamp < newest
                newest = max(newest, record.timestamp)
        assert queries.low_watermark(region, 289) == MAX_TIME
    assert out_of_order > 1_000


def test_queries_follow_zipf_and_the_day() -> None:
    queries = Queries(Traffic(seed=5, records=50_000, width=WIDTH))
    counts: Counter[str] = Counter()
    hours: Counter[int] = Counter()
    for record in queries.read("eu", 0, 96):
        counts[record.value["query"]] += 1
        hours[(record.timestamp - START) // (60 * MINUTE)] += 1
    assert counts["cat videos"] > 3 * counts["news"] > 0
    assert len(counts) > 1_000
    assert hours[13] > 2 * hours[2]
