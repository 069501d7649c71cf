"""The page of the found episodes: one HTML file with their plots inside."""

from __future__ import annotations

import datetime
import html
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from millwheel.apps.zeitgeist.settings import Settings
from millwheel.model.time import MINUTE, SECOND
from millwheel.sinks import JsonLines

_MOST = 200  # episodes with a plot: the clearest
_AROUND = 150  # buckets before and behind an episode
_WIDTH, _HEIGHT, _FOOT = 720, 130, 16
_COLOURS = {"spike": "#b35806", "dip": "#2166ac"}  # distinct for a colour-blind person, too
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 760px; margin: 2em auto; color: #222; padding: 0 1em }
h1 { font-size: 1.6em } h2 { font-size: 1em; margin: 2em 0 .1em } p { margin: .1em 0 }
h2 b { font-size: .8em; color: #fff; border-radius: .3em; padding: .1em .5em; margin-right: .4em }
svg { width: 100%; height: auto; margin-top: .3em } svg text { font-size: 10px; fill: #666 }
.note { color: #666 } i { display: inline-block; width: 1.6em; margin-right: .3em; vertical-align: middle }
"""
_LEGEND = (
    '<p class=note><i style="height:1em;background:#e4e4e4"></i>the episode &ensp; '
    '<i style="border-top:2px dashed #888"></i>what was expected &ensp; '
    f'<i style="border-top:3px solid {_COLOURS["spike"]}"></i>'
    f'<i style="border-top:3px solid {_COLOURS["dip"]}"></i>when it was reported. Times are UTC.</p>'
)

Point = tuple[int, float]


def write_page(folder: Path, settings: Settings) -> Path:
    """Writes ``FOLDER/index.html`` from what the run's sinks got in the folder."""
    told = {_name(record.value): record.value for record in JsonLines(folder / "anomalies").records()}
    told |= {_name(record.value): record.value for record in JsonLines(folder / "episodes").records()}
    clearest = sorted(told.values(), key=lambda episode: -episode["confidence"])[:_MOST]
    series = _series(folder, {episode["key"] for episode in clearest})
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width"><title>Zeitgeist</title>',
        f"<style>{_STYLE}</style><h1>Zeitgeist</h1>",
        f"<p>{_summary(list(told.values()))}</p>",
        _LEGEND if told else "",
    ]
    for episode in clearest:
        parts += [
            f'<h2><b style="background:{_COLOURS[episode["kind"]]}">{episode["kind"]}</b>'
            f"{html.escape(episode['key'])}</h2>",
            f"<p>{_span(episode)}: {html.escape(episode['why'])}, {episode['actual']:,.6g} instead of "
            f"{episode['expected']:,.4g} "
            f"<span class=note>(confidence {episode['confidence']:,.1f})</span></p>",
            _plot(episode, series.get(episode["key"], []), settings),
        ]
    path = folder / "index.html"
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return path


def _summary(told: Sequence[dict[str, Any]]) -> str:
    if not told:
        return "No anomaly was found."
    kinds = Counter(episode["kind"] for episode in told)
    counts = " and ".join(f"{n:,} {kind}{'s' if n > 1 else ''}" for kind, n in sorted(kinds.items()))
    keys = len({episode["key"] for episode in told})
    shown = f"; the {_MOST} clearest are shown" if len(told) > _MOST else ""
    return f"{counts} of {keys:,} key{'s' if keys > 1 else ''}{shown}, the clearest first."


def _name(episode: dict[str, Any]) -> tuple[str, int]:
    return episode["key"], episode["start"]


def _span(episode: dict[str, Any]) -> str:
    begin, end = _moment(episode["start"]), episode.get("end")
    if end is None:
        return f"since {begin}"
    to = _moment(end)
    return f"{begin} to {to[11:] if to[:10] == begin[:10] else to}"


def _series(folder: Path, keys: set[str]) -> dict[str, list[Point]]:
    """The buckets of the keys that are shown, in order: (end, what was in it)."""
    series: dict[str, list[Point]] = {}
    for record in JsonLines(folder / "windows").records():
        if record.key in keys:
            series.setdefault(record.key, []).append((record.timestamp + 1, record.value[1]))
    for points in series.values():
        points.sort()
    return series


def _lines(points: Sequence[Point], settings: Settings) -> Iterator[list[Point]]:
    """Runs of consecutive buckets; counts have no gaps: a missing bucket had none."""
    width, line = settings.width, list(points[:1])
    for time, value in points[1:]:
        if time - line[-1][0] > width:
            if settings.kind == "counts":
                line += [(line[-1][0] + width, 0.0), (time - width, 0.0)]
            else:
                yield line
                line = []
        line.append((time, value))
    yield line


def _plot(episode: dict[str, Any], points: Sequence[Point], settings: Settings) -> str:
    begin: int = episode["start"]
    end: int | None = episode.get("end")
    around = _AROUND * settings.width
    until = (end or episode["found"]) + around
    shown = [(time, value) for time, value in points if begin - around <= time <= until]
    if not shown:
        return "<p class=note>None of its buckets is in OUT/windows.</p>"
    first, last = shown[0][0] - settings.width, max(shown[-1][0], end or episode["found"])
    usual: float = episode["expected"]
    values = [usual, *(value for _, value in shown)]
    low, high = min(0.0, *values) if settings.kind == "counts" else min(values), max(values)
    across, up = _WIDTH / max(last - first, 1), (_HEIGHT - _FOOT - 14) / ((high - low) or 1.0)

    def x(time: int) -> float:
        return (time - first) * across

    def y(value: float) -> float:
        return _HEIGHT - _FOOT - 2 - (value - low) * up

    lines = "".join(
        f'<polyline points="{" ".join(f"{x(time):.1f},{y(value):.1f}" for time, value in line)}" '
        'fill="none" stroke="#444" stroke-linejoin="round"/>'
        for line in _lines(shown, settings)
    )
    left = x(begin)
    right = max(x(end if end is not None else last), left + 2)
    found, foot = x(episode["found"]), _HEIGHT - 4
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT - _FOOT}" fill="#fafafa"/>'
        f'<rect x="{left:.1f}" width="{right - left:.1f}" height="{_HEIGHT - _FOOT}" fill="#e4e4e4"/>'
        f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{y(usual):.1f}" y2="{y(usual):.1f}" stroke="#888" '
        'stroke-dasharray="4 3"/>'
        f'<line x1="{found:.1f}" x2="{found:.1f}" y2="{_HEIGHT - _FOOT}" '
        f'stroke="{_COLOURS[episode["kind"]]}" stroke-width="1.5"/>{lines}'
        f'<text x="4" y="11">{high:,.4g}</text><text x="4" y="{_HEIGHT - _FOOT - 4}">{low:,.4g}</text>'
        f'<text x="0" y="{foot}">{_moment(first)}</text>'
        f'<text x="{_WIDTH}" y="{foot}" text-anchor="end">{_moment(last)}</text></svg>'
    )


def _moment(time: int) -> str:
    """A moment to the minute, or to the second where it is within one."""
    form = "%Y-%m-%d %H:%M" if time % MINUTE == 0 else "%Y-%m-%d %H:%M:%S"
    return f"{datetime.datetime.fromtimestamp(time / SECOND, datetime.timezone.utc):{form}}"
