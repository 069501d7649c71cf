"""The page of the episodes: what a reader sees of an anomaly, and of none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import millwheel as mw
from millwheel.apps.zeitgeist.episodes import Episode
from millwheel.apps.zeitgeist.episodes_page import write_page
from millwheel.apps.zeitgeist.settings import Settings

COUNTS = Settings(width=mw.MINUTE)
VALUES = Settings(kind="values", width=mw.MINUTE)


def page(folder: Path, settings: Settings, minutes: dict[int, float], **streams: dict[str, Any]) -> str:
    """The page of one key with these buckets."""
    windows = [
        mw.Record(key="<k>", value=[minute, value], timestamp=(minute + 1) * mw.MINUTE - 1)
        for minute, value in minutes.items()
    ]
    told = {name: [mw.Record(key="<k>", value=value, timestamp=0)] for name, value in streams.items()}
    for name, records in {"windows": windows, "anomalies": [], "episodes": [], **told}.items():
        sink = mw.sinks.JsonLines(folder / name)
        sink.open()
        sink.begin("origin", 0)
        sink.write(1, 0, records)
        sink.commit(1)
    return write_page(folder, settings).read_text()


def spike(settings: Settings, end: int | None) -> dict[str, Any]:
    episode = Episode("spike", 5, 6 * mw.MINUTE, 12.345, 3_000.0, 2.0)
    return episode.message(settings, "<k>", end)


def test_a_run_without_anomalies_says_so(tmp_path: Path) -> None:
    assert "<p>No anomaly was found.</p>" in page(tmp_path, COUNTS, {})


def test_an_episode_has_its_times_its_reason_and_one_line_without_gaps_of_counts(tmp_path: Path) -> None:
    text = page(tmp_path, COUNTS, {0: 2.0, 1: 2.0, 5: 3_000.0, 9: 2.0}, episodes=spike(COUNTS, 6))
    assert "1 spike of 1 key, the clearest first." in text
    assert ">spike</b>&lt;k&gt;</h2>" in text
    reason = "1970-01-01 00:05 to 00:06: 1,500 times the usual at 00:00, 3,000 instead of 2"
    assert f"<p>{reason} <span class=note>(confidence 12.3)</span></p>" in text
    assert text.count("<polyline") == 1


def test_values_that_were_not_measured_are_a_gap(tmp_path: Path) -> None:
    text = page(tmp_path, VALUES, {0: 2.0, 1: 2.0, 5: 3_000.0, 9: 2.0}, anomalies=spike(VALUES, None))
    assert "<p>since 1970-01-01 00:05: " in text
    assert text.count("<polyline") == 3
