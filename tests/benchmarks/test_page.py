"""docs/performance.md says what the kept results say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import page, results, tables

RESULT = {
    "machine": {"cores": 2, "memory_gb": 24, "python": "3.11.7"},
    "versions": {"pyspark": "4.3.0"},
    "command": "python -m benchmarks lag",
    "date": "2026-11-15",
    "lag_milliseconds": {"First": {"mean": 93.4, "stdev": 27.0}},
}


def test_the_page_is_up_to_date_with_the_figures_that_are_kept() -> None:
    text = page.PAGE.read_text()
    assert page.rendered(text, page.FIGURES) == text


def test_a_table_has_its_command_machine_versions_date_and_data(tmp_path: Path) -> None:
    (tmp_path / "lag.json").write_text(json.dumps(RESULT))
    text = page.rendered("Before.\n<!-- figures: lag -->\nold\n<!-- end -->\nAfter.\n", tmp_path)
    assert "| First | 93 ms | 27 ms |" in text
    assert "`python -m benchmarks lag`, 2026-11-15, 2 cores, 24 GB, Python 3.11.7, pyspark 4.3.0" in text
    assert "(figures/lag.json)" in text
    assert "busy" not in text
    assert "old" not in text
    assert text.startswith("Before.\n")
    assert text.endswith("<!-- end -->\nAfter.\n")
    assert page.rendered(text, tmp_path) == text


def test_a_figure_that_was_not_measured_says_so(tmp_path: Path) -> None:
    text = page.rendered("<!-- figures: growth -->\n<!-- end -->", tmp_path)
    assert "Not measured yet: `python -m benchmarks growth`" in text


def test_a_benchmark_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no benchmark 'speed'"):
        page.rendered("<!-- figures: speed -->\n<!-- end -->", tmp_path)


def test_quick_runs_are_not_taken_over_and_full_ones_are_with_their_chart(tmp_path: Path) -> None:
    made, kept = tmp_path / "made", tmp_path / "kept"
    made.mkdir()
    (made / "lag.json").write_text(json.dumps(RESULT))
    (made / "lag.png").write_bytes(b"chart")
    (made / "growth.json").write_text(json.dumps({"quick": True}))
    (made / "latency.json").write_text(json.dumps({"quick": False, "complete": False}))  # it was cut off
    assert page.take_over(["growth", "lag", "field", "latency"], made, kept) == ["lag"]
    assert sorted(path.name for path in kept.iterdir()) == ["lag.json", "lag.png"]
    assert page.take_over(["lag"], made, kept) == []


def test_a_benchmark_without_a_table_of_its_own_gets_one_from_its_cases() -> None:
    text = tables.any_table(
        {"machine": {"cores": 2}, "cases": {"q0": {"records_per_second": 1_000, "all": [1]}}}
    )
    assert text.splitlines() == ["|  | records per second |", "|---|---|", "| q0 | 1,000 |"]


def test_every_table_renders_what_its_benchmark_writes() -> None:
    kept = [name for name in page.named(page.PAGE.read_text()) if (page.FIGURES / f"{name}.json").is_file()]
    assert kept
    for name in kept:
        result = json.loads((page.FIGURES / f"{name}.json").read_text())
        assert tables.table(name, result).strip()


def test_figures_of_other_code_are_listed_with_their_dates(tmp_path: Path) -> None:
    (tmp_path / "lag.json").write_text(json.dumps({**RESULT, "revision": "abc", "code": "1"}))
    (tmp_path / "idle.json").write_text(json.dumps({"machine": {}}))
    moments = {
        "millwheel": {"date": "2026-11-18", "revision": "def", "code": "2"},
        "Bytewax": {"date": "2026-11-17", "revision": "abc", "code": "1"},
    }
    (tmp_path / "field.json").write_text(json.dumps({"revision": "def", "code": "2", "measured": moments}))
    assert page.older(["lag", "idle", "field", "growth"], tmp_path, "2") == [
        "lag: 2026-11-15, revision abc",
        "idle: no date, revision not recorded",
        "field: Bytewax: 2026-11-17, revision abc",
        "growth: not measured",
    ]
    assert page.older(["lag"], tmp_path, "1") == []
    # Code with changes that are not committed has no hash, and nothing was measured with it.
    assert page.older(["lag"], tmp_path, "") == ["lag: 2026-11-15, revision abc"]


def test_a_result_has_the_revision_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"rev-parse --short=10 HEAD": "abc", "rev-parse HEAD:millwheel": "123"}

    def measured() -> dict[str, str]:
        results.measured_code.cache_clear()
        try:
            return results.measured_code()
        finally:
            results.measured_code.cache_clear()

    monkeypatch.setattr(results, "git", lambda *arguments: said.get(" ".join(arguments), ""))
    assert measured() == {"revision": "abc", "code": "123"}
    said["status --porcelain -- millwheel"] = " M millwheel/run.py"
    assert measured() == {"revision": "abc with changes", "code": ""}
    said.clear()
    assert measured() == {"revision": "unknown", "code": ""}


def test_a_table_says_how_busy_the_machine_was_and_what_else_is_to_be_known(tmp_path: Path) -> None:
    machine = {**RESULT["machine"], "busy_before": 3.4}  # type: ignore[dict-item]
    result = {**RESULT, "machine": machine, "note": "Taken with 20 files a second."}
    (tmp_path / "lag.json").write_text(json.dumps(result))
    text = page.rendered("<!-- figures: lag -->\n<!-- end -->", tmp_path)
    assert "2 cores, 3% of them busy with other work before the run, 24 GB" in text
    assert "\n\nTaken with 20 files a second.\n\n" in text
