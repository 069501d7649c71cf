"""When an anomaly is told: spikes at once, dips behind the watermark, silence by its timer, each one once."""

from __future__ import annotations

from typing import Any

import millwheel as mw
from millwheel.apps.zeitgeist.pipeline import count_anomalies
from millwheel.apps.zeitgeist.settings import Settings
from tests.conftest import MakeHarness

LEARNING = 40
RATE = 12


def pipeline(**options: Any) -> mw.Pipeline:
    settings = Settings(**options)
    return count_anomalies(mw.injectors.Records([]), {"WindowCounter": mw.by("query")}, settings)


def send(h: mw.testing.Harness, bucket: int, count: int, query: str = "cat videos") -> None:
    """Some records of one bucket, in one epoch; the watermark stays."""
    with h.epoch():
        for n in range(count):
            time = bucket * mw.SECOND + n * mw.SECOND // max(count, 1)
            h.send("records", {"query": query}, timestamp=time)


def fill(h: mw.testing.Harness, first: int, last: int, count: int = RATE) -> None:
    """Complete buckets with a steady count that varies a little."""
    for bucket in range(first, last):
        send(h, bucket, count + bucket % 3 - 1)
        h.advance("records", (bucket + 1) * mw.SECOND)


def told(h: mw.testing.Harness, stream: str = "anomalies") -> list[tuple[str, str, int]]:
    found = [record.value for record in h.output(stream)]
    return [(value["kind"], value["key"], value["start"] // mw.SECOND) for value in found]


def test_steady_traffic_has_no_anomaly(harness: MakeHarness) -> None:
    h = harness(pipeline())
    fill(h, 0, 200)
    assert told(h) == []


def test_a_spike_is_told_before_its_bucket_is_complete(harness: MakeHarness) -> None:
    h = harness(pipeline())
    fill(h, 0, LEARNING)
    before = h.low_watermark("Detector")
    send(h, LEARNING, 100)
    assert h.low_watermark("Detector") == before
    assert told(h) == [("spike", "cat videos", LEARNING)]


def test_a_slight_spike_needs_several_buckets(harness: MakeHarness) -> None:
    h = harness(pipeline())
    fill(h, 0, LEARNING)
    fill(h, LEARNING, LEARNING + 1, count=5 * RATE // 2)
    assert told(h) == []
    fill(h, LEARNING + 1, LEARNING + 6, count=5 * RATE // 2)
    assert told(h) == [("spike", "cat videos", LEARNING)]


def test_an_anomaly_is_told_once_and_again_when_it_is_over(harness: MakeHarness) -> None:
    h = harness(pipeline())
    fill(h, 0, LEARNING)
    fill(h, LEARNING, LEARNING + 10, count=8 * RATE)
    fill(h, LEARNING + 10, LEARNING + 30)
    assert told(h) == told(h, "episodes") == [("spike", "cat videos", LEARNING)]
    (episode,) = h.output("episodes")
    assert episode.value["end"] == (LEARNING + 10) * mw.SECOND
    assert h.status().user == {"spikes": 1}


def test_a_dip_is_told_only_once_the_watermark_has_passed_it(harness: MakeHarness) -> None:
    h = harness(pipeline())
    fill(h, 0, LEARNING)
    for bucket in range(LEARNING, LEARNING + 4):
        send(h, bucket, 1)
    assert told(h) == []
    h.advance("records", (LEARNING + 4) * mw.SECOND)
    assert told(h) == [("dip", "cat videos", LEARNING)]


def test_data_that_is_late_on_the_wire_is_no_dip(harness: MakeHarness) -> None:
    h = harness(pipeline())
    fill(h, 0, LEARNING)
    h.advance_wall(3_600 * mw.SECOND)
    for bucket in range(LEARNING, LEARNING + 5):
        send(h, bucket, RATE)
    h.advance("records", (LEARNING + 5) * mw.SECOND)
    fill(h, LEARNING + 5, LEARNING + 10)
    assert told(h) == []


def test_a_key_that_falls_silent_is_found_by_its_timer(harness: MakeHarness) -> None:
    h = harness(pipeline())
    fill(h, 0, LEARNING)
    h.crash()
    for bucket in range(LEARNING, LEARNING + 10):
        send(h, bucket, RATE, query="weather")
        h.advance("records", (bucket + 1) * mw.SECOND)
        if told(h):
            break
    assert told(h) == [("dip", "cat videos", LEARNING)]
    assert bucket < LEARNING + 3
    fill(h, LEARNING + 10, LEARNING + 20)
    (episode,) = h.output("episodes")
    assert (episode.value["start"], episode.value["end"]) == (
        LEARNING * mw.SECOND,
        (LEARNING + 10) * mw.SECOND,
    )


def test_the_silence_of_a_rare_key_is_no_anomaly(harness: MakeHarness) -> None:
    h = harness(pipeline())
    for bucket in range(0, 200, 10):
        send(h, bucket, 1)
        h.advance("records", (bucket + 1) * mw.SECOND)
    h.advance("records", 260 * mw.SECOND)
    assert told(h) == []


def test_late_records_are_dropped_and_counted(harness: MakeHarness) -> None:
    h = harness(pipeline())
    fill(h, 0, 5)
    send(h, 3, 50)
    assert h.status().dropped["WindowCounter"] == 50
    assert [record.value[1] for record in h.output("windows")] == [11, 12, 13, 11, 12]


def test_a_new_key_may_spike_once_the_stream_is_known(harness: MakeHarness) -> None:
    h = harness(pipeline(begin=0))
    send(h, 0, 80, query="news")
    fill(h, 0, LEARNING)
    assert told(h) == []
    send(h, LEARNING, 30, query="earthquake")
    assert told(h) == [("spike", "earthquake", LEARNING)]


def test_a_change_that_stays_becomes_normal(harness: MakeHarness) -> None:
    h = harness(pipeline())
    fill(h, 0, LEARNING)
    fill(h, LEARNING, LEARNING + 150, count=4 * RATE)
    assert told(h) == told(h, "episodes") == [("spike", "cat videos", LEARNING)]
