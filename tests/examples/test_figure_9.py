"""The paper's Fig. 9: window counts and dips, the same program in the harness and on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from tests.conftest import MakeHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIDENCE_THRESHOLD = 1.5


class Windower(mw.Computation):
    """Counts a key's records per one-second bucket; emits a bucket once it is complete."""

    def initial_state(self) -> dict[int, int]:
        return {}

    def process_record(self, record: mw.Record) -> None:
        bucket = record.timestamp // mw.SECOND
        self.state[bucket] = self.state.get(bucket, 0) + 1
        self.set_timer(str(bucket), (bucket + 1) * mw.SECOND)

    def process_timer(self, timer: mw.Timer) -> None:
        count = self.state.pop(int(timer.tag))
        self.produce("windows", count, timestamp=timer.timestamp)


class DipDetector(mw.Computation):
    """Compares a bucket's count with the model's prediction; emits a dip with enough confidence."""

    def initial_state(self) -> dict[str, float]:
        return {"prediction": 0.0, "confidence": 0.0}

    def process_record(self, record: mw.Record) -> None:
        state, actual = self.state, record.value
        missing = state["prediction"] - actual
        state["confidence"] = max(state["confidence"] + missing / (state["prediction"] or 1.0), 0.0)
        state["prediction"] = (
            actual if not state["prediction"] else 0.75 * state["prediction"] + 0.25 * actual
        )
        if state["confidence"] > CONFIDENCE_THRESHOLD:
            self.produce("dips", {"query": self.key, "confidence": state["confidence"]})


def queries() -> list[mw.Record]:
    """Two queries, eight times a second each; one of them dips in the seconds five to eight."""
    records = []
    for second in range(12):
        for n in range(8):
            time = second * mw.SECOND + n * 100_000
            records.append(mw.Record(value={"query": "cat videos"}, timestamp=time, id=f"c{time}"))
            if second not in (5, 6, 7, 8) or n == 0:
                records.append(mw.Record(value={"query": "britney spears"}, timestamp=time, id=f"b{time}"))
    return records


def pipeline(injector: mw.Injector, dips: mw.sinks.Collect, windows: mw.sinks.Collect) -> mw.Pipeline:
    p = mw.Pipeline("zeitgeist")
    p.inject("queries", injector)
    p.add(Windower(), inputs={"queries": mw.by("query")}, outputs=["windows"])
    p.add(DipDetector(), inputs={"windows": mw.by_key}, outputs=["dips"])
    p.sink("dips", dips)
    p.sink("windows", windows)
    return p


def simplified(records: list[mw.Record]) -> list[tuple[str, int, object]]:
    return sorted((r.key, r.timestamp, repr(r.value)) for r in records)


def in_the_harness(h: mw.testing.Harness) -> None:
    for record in queries():
        h.send("queries", record.value, record.timestamp, id=record.id)
        h.advance("queries", record.timestamp)
    h.drain()


def test_windows_hold_the_counts_and_the_dip_is_found(harness: MakeHarness) -> None:
    dips, windows = mw.sinks.Collect(), mw.sinks.Collect()
    h = harness(pipeline(mw.injectors.Records([]), dips, windows))
    in_the_harness(h)
    counts = {(r.key, r.timestamp // mw.SECOND - 1): r.value for r in windows.records}
    assert counts == {
        **{("cat videos", second): 8 for second in range(12)},
        **{("britney spears", second): 1 if second in (5, 6, 7, 8) else 8 for second in range(12)},
    }
    assert {record.value["query"] for record in dips.records} == {"britney spears"}
    assert min(record.timestamp for record in dips.records) == 7 * mw.SECOND
    assert h.output("dips") == dips.records


def test_a_window_comes_out_as_soon_as_the_watermark_has_passed_it(harness: MakeHarness) -> None:
    h = harness(pipeline(mw.injectors.Records([]), mw.sinks.Collect(), mw.sinks.Collect()))
    h.send("queries", {"query": "cat videos"}, timestamp=3 * mw.SECOND)
    h.advance("queries", 4 * mw.SECOND - 1)
    assert h.output("windows") == []
    assert h.timers("Windower", "cat videos") == [mw.Timer("3", 4 * mw.SECOND)]
    h.advance("queries", 10 * mw.SECOND)
    h.crash()
    assert [(r.key, r.value, r.timestamp) for r in h.output("windows")] == [("cat videos", 1, 4 * mw.SECOND)]
    assert h.state("DipDetector", "cat videos")["prediction"] == 1
    assert h.low_watermark("DipDetector") == 10 * mw.SECOND


@pytest.mark.spark
@pytest.mark.parametrize("compact_below", [0, 4_000], ids=["wide", "compact"])
def test_the_same_program_gives_the_same_on_spark(
    compact_below: int, spark: SparkSession, tmp_path: Path
) -> None:
    expected_dips, expected_windows = mw.sinks.Collect(), mw.sinks.Collect()
    in_the_harness(mw.testing.Harness(pipeline(mw.injectors.Records([]), expected_dips, expected_windows)))
    dips, windows = mw.sinks.Collect(), mw.sinks.Collect()
    report = mw.run(
        pipeline(mw.injectors.Records(queries(), per_epoch=70), dips, windows),
        store=tmp_path / "store",
        spark=spark,
        compact_below=compact_below,
    )
    assert simplified(dips.records) == simplified(expected_dips.records)
    assert simplified(windows.records) == simplified(expected_windows.records)
    assert report.records_in == len(queries())
    assert report.low_watermarks == {"Windower": mw.MAX_TIME, "DipDetector": mw.MAX_TIME}
