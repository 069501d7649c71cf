"""The benchmark of input from S3 beside the disk: what passes, and what its table says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import data, s3_input, tables

SLOW = {"disk": [100.0, 200.0, 100.0], "S3": [70.0, 150.0, 90.0]}
FAST = {"disk": [100.0, 100.0, 100.0], "S3": [70.0, 90.0, 95.0]}


def _result(same: bool = True, **rates: dict[str, list[float]]) -> dict[str, Any]:
    cases = {name: s3_input.case(found, same) for name, found in rates.items()}
    return s3_input.judged(cases, records=4_000_000, size=1_010_000_000)


def test_the_ratio_is_the_median_of_those_of_the_turns() -> None:
    assert s3_input.case(SLOW, True)["of_disk"] == 0.75
    assert s3_input.case(FAST, True)["of_disk"] == 0.9


def test_it_passes_if_every_way_is_at_the_goal_and_has_the_right_windows() -> None:
    assert _result(a=FAST, b=FAST)["passed"]
    assert not _result(a=FAST, b=SLOW)["passed"]
    assert not _result(same=False, a=FAST, b=FAST)["passed"]


def test_the_table_has_both_rates_and_the_goal() -> None:
    text = tables.table("s3_input", _result(alone=FAST, count=SLOW))
    assert "| alone | 100 | 90 | 0.90 |" in text
    assert "1.0 GB in 4,000,000 records, the right windows in all" in text
    assert "0.75 times the rate at the least (goal: at least 0.8, missed)" in text


def test_records_have_as_much_text_as_was_asked_for(tmp_path: Path) -> None:
    plain = data.generate(tmp_path / "plain", keys=5, records=100, files=1)
    wide = data.generate(tmp_path / "wide", keys=5, records=100, files=1, text=40)
    sizes = [(found.folder / "log-0000.jsonl").stat().st_size for found in (plain, wide)]
    assert sizes[1] - sizes[0] >= 100 * 40


def test_the_table_of_injectors_has_rates_and_starts() -> None:
    start = {"files": 10_000, "MB": 10, "first": 0.51, "again": 0.1, "memory": 17, "reading": 18}
    rates = {"jsonl": {"millwheel": 500_000.4, "plain": 1_000_000.0}}
    text = tables.table("io", {"rates": rates, "http": 43_596.2, "starts": {"many files": start}})
    assert "| JSON lines | 500,000 | 1,000,000 | 2.0 |" in text
    assert "| HTTP, POSTs of 100 by four callers, synced | 43,596 |  |  |" in text
    assert "| many files | 10,000 | 0.5 s | 0.1 s | 17 MB | 18 MB |" in text
