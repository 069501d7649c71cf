"""The page of the found episodes: one HTML file with their plots inside, which needs nothing else."""

from __future__ import annotations

import datetime
import html
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millwheel.model.time import SECOND
from millwheel.sinks import JsonLines

_MOST = 200  # episodes with a plot: the clearest
_AROUND = 150  # buckets before and behind an episode
_WIDTH, _HEIGHT = 720, 110
_COLOURS = {"spike": "#b35806", "dip": "#2166ac"}  # told apart by a colour-blind person, too
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 760px; margin: 2em auto; color: #222; padding: 0 1em }
h1 { font-size: 1.6em } h2 { font-size: 1em; margin: 1.8em 0 .2em } p { margin: .1em 0 }
svg { width: 100%; height: auto; background: #fafafa; border: 1px solid #e5e5e5 } .note { color: #666 }
"""

Point = tuple[int, float]


def write_page(folder: Path) -> Path:
    """Writes ``FOLDER/index.html`` from what the run's sinks got in the folder."""
    told = {_name(record.value): record.value for record in JsonLines(folder / "anomalies").records()}
    told |= {_name(record.value): record.value for record in JsonLines(folder / "episodes").records()}
    clearest = sorted(told.values(), key=lambda episode: -episode["confidence"])[:_MOST]
    series = _series(folder, {episode["key"] for episode in clearest})
    width = _bucket_width(series.values())
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>zeitgeist</title>",
        f"<style>{_STYLE}</style><h1>Zeitgeist</h1>",
        f"<p>{len(told):,} episodes"
        + (f"; the {_MOST} clearest are shown" if len(told) > _MOST else "")
        + ", the clearest first. Shaded: the episode. The line: when it was told.</p>",
    ]
    for episode in clearest:
        parts += [
            f"<h2>{html.escape(episode['key'])}: {episode['kind']}, {_moment(episode['start'])}</h2>",
            f"<p>{html.escape(episode['why'])} "
            f"<span class=note>(confidence {episode['confidence']})</span></p>",
            _plot(episode, series.get(episode["key"], []), width),
        ]
    path = folder / "index.html"
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return path


def _name(episode: dict[str, Any]) -> tuple[str, int]:
    return episode["key"], episode["start"]


def _series(folder: Path, keys: set[str]) -> dict[str, list[Point]]:
    """The buckets of the keys that are shown, in order: (end, what was in it)."""
    series: dict[str, list[Point]] = {}
    for record in JsonLines(folder / "windows").records():
        if record.key in keys:
            series.setdefault(record.key, []).append((record.timestamp + 1, record.value[1]))
    for points in series.values():
        points.sort()
    return series


def _bucket_width(every: Any) -> int:
    steps = [later - time for points in every for (time, _), (later, _) in itertools.pairwise(points)]
    return min(steps, default=SECOND)


def _plot(episode: dict[str, Any], points: Sequence[Point], width: int) -> str:
    begin: int = episode["start"]
    end: int = episode.get("end", episode["found"])
    first, last = begin - _AROUND * width, end + _AROUND * width
    shown = [(time, value) for time, value in points if first <= time <= last]
    if not shown:
        return "<p class=note>No bucket of it is there.</p>"
    first, last = shown[0][0] - width, max(shown[-1][0], end)
    low, high = min(0.0, *(value for _, value in shown)), max(value for _, value in shown)
    across, up = _WIDTH / max(last - first, 1), (_HEIGHT - 12) / ((high - low) or 1.0)

    def x(time: int) -> float:
        return (time - first) * across

    line = " ".join(f"{x(time):.1f},{_HEIGHT - 4 - (value - low) * up:.1f}" for time, value in shown)
    told, length = x(episode["found"]), max((end - begin) * across, 2)
    colour = _COLOURS[episode["kind"]]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<rect x="{x(begin):.1f}" width="{length:.1f}" height="{_HEIGHT}" fill="#ddd"/>'
        f'<line x1="{told:.1f}" x2="{told:.1f}" y2="{_HEIGHT}" stroke="{colour}" '
        f'stroke-width="1.5"/><polyline points="{line}" fill="none" stroke="#444"/>'
        f'<text x="4" y="12" font-size="10" fill="#888">{high:,.4g}</text></svg>'
    )


def _moment(time: int) -> str:
    return f"{datetime.datetime.fromtimestamp(time / SECOND, datetime.UTC):%Y-%m-%d %H:%M:%S}"
