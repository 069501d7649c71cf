"""The example of Zeitgeist finds what its logs hold, behind the watermark, also after crashes."""

from __future__ import annotations

import millwheel as mw
from examples.zeitgeist.logs import SECONDS, queries
from examples.zeitgeist.pipeline import pipeline
from tests.conftest import MakeHarness


def test_the_example_finds_the_spike_and_the_dip(harness: MakeHarness) -> None:
    h = harness(pipeline())
    rows = sorted(queries(), key=lambda row: row["time"] + row["id"] * 7_919 % 1_500_000)
    told_at = {}
    for second in range(SECONDS):
        with h.epoch():
            for row in rows:
                if second <= (row["time"] + row["id"] * 7_919 % 1_500_000) // mw.SECOND < second + 1:
                    h.send("queries", row, row["time"], id=row["id"])
            h.advance("queries", (second - 1) * mw.SECOND)
        if second % 25 == 0:
            h.crash()
        for record in h.output("anomalies"):
            told_at.setdefault((record.value["kind"], record.key, record.value["since"]), second)
    assert set(told_at) == {("spike", "weather", 60), ("dip", "cat videos", 90)}
    assert told_at["spike", "weather", 60] == 62  # the second is over, and the watermark two seconds behind
    assert 92 <= told_at["dip", "cat videos", 90] <= 94
    assert h.status().dropped["WindowCounter"] == 0


def test_the_example_ends_with_its_logs(harness: MakeHarness) -> None:
    h = harness(pipeline())
    with h.epoch():
        for row in queries():
            h.send("queries", row, row["time"], id=row["id"])
    h.drain()
    told = {(record.value["kind"], record.key) for record in h.output("anomalies")}
    assert told == {("spike", "weather"), ("dip", "cat videos")}
