"""Partial aggregates: what the sender adds up is what the receiver would have."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.ending import Start
from millwheel.operators import foldings
from millwheel.store.open import open_store
from millwheel.worker import partials, route
from tests.store.driving import run_to_the_end, take


def lines(count: int) -> list[str]:
    rng = random.Random(5)
    return [
        json.dumps(
            {
                "at": number * 7 - rng.choice([5, 40, 300]) + 1_000,
                "user": f"u{rng.randrange(9)}",
                "big": {"unused": [number]},
                **({"price": rng.choice([1.0, 2.5, None])} if number % 4 else {}),
                "n": rng.randrange(5),
            }
        )
        for number in range(count)
    ]


def pipeline(pattern: str, **files: Any) -> tuple[mw.Pipeline, mw.sinks.Collect]:
    p = mw.Pipeline("partial")
    sink = mw.sinks.Collect()
    orders = p.inject("orders", mw.injectors.Files(pattern, timestamp="at", unit="us", slack=20, **files))
    orders.key_by("user").window(mw.windows.sliding(100, 50)).aggregate(
        "out", n=mw.agg.count(), priced=mw.agg.count("price"), total=mw.agg.sum("n"), most=mw.agg.max("price")
    ).sink(sink)
    return p, sink


@pytest.mark.parametrize("slots", [1, 3])
def test_records_of_files_are_added_up_where_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(lines(500)) + "\n")
    monkeypatch.setattr(route, "WORTH_IT", 1)
    blobs: list[int] = []
    packed = partials._packed
    monkeypatch.setattr(partials, "_packed", lambda *args: blobs.append(1) or packed(*args))
    seen = []
    for by_columns in (True, False):
        monkeypatch.setattr(foldings, "BY_COLUMNS", by_columns)
        p, sink = pipeline(str(tmp_path / "*.jsonl"))
        driver, executor = take(p, open_store("memory:"), slots=slots, start=Start.RUN)
        driver.sizer.bound = 90
        monkeypatch.setattr(driver.sizer, "learn", lambda *_: None)
        report = run_to_the_end(driver, executor)
        driver.close()
        counts = [report.records, report.late, report.dropped, report.produced, report.streams]
        seen.append((counts, sorted((r.key, r.timestamp, str(r.value)) for r in sink.records)))
    assert seen[0] == seen[1]
    assert seen[0][0][2]["out"] > 0, "some came too late for all of their windows"
    assert blobs


@pytest.mark.parametrize("odd", [None, "\ud800", 'quote " and \\', "ü\n"])
def test_a_sink_writes_the_same_lines_in_either_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str | None
) -> None:
    values: list[Any] = [1, 2.5, -0.0, None, 1e300, 2**63 - 1, 2**62, 7]
    written = []
    for by_columns in (True, False):
        monkeypatch.setattr(foldings, "BY_COLUMNS", by_columns)
        p = mw.Pipeline("written")
        records = [
            mw.Record(value={"k": odd or f"k{n}", "n": value}, timestamp=n * 10)
            for n, value in enumerate(values)
        ]
        windowed = p.inject("in", mw.injectors.Records(records)).key_by("k").window(mw.windows.tumbling(10))
        sink = mw.sinks.JsonLines(tmp_path / str(by_columns))
        windowed.aggregate("out", n=mw.agg.sum("n"), m=mw.agg.mean("n")).sink(sink)
        driver, executor = take(p, open_store("memory:"), start=Start.RUN)
        run_to_the_end(driver, executor)
        driver.close()
        files = sorted((tmp_path / str(by_columns)).glob("part-*.jsonl"))
        written.append(sorted(line for file in files for line in file.read_bytes().splitlines()))
    assert len(written[0]) == len(values)
    assert written[0] == written[1]
