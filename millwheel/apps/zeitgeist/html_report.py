"""The demo's report: one HTML file with its plots inside."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millwheel.apps.zeitgeist.feed import Counts
from millwheel.apps.zeitgeist.findings import Findings
from millwheel.apps.zeitgeist.synthetic import REGIONS, START, Planted, Traffic
from millwheel.apps.zeitgeist.terminal import moment

_WIDTH, _HEIGHT = 720, 110
_COLOURS = {"spike": "#c0392b", "dip": "#2471a3"}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 760px; margin: 2em auto; color: #222; padding: 0 1em }
h1 { font-size: 1.6em } h2 { font-size: 1.15em; margin-top: 2em } h3 { font-size: 1em; margin: 1.6em 0 .2em }
table { border-collapse: collapse } td, th { padding: .15em .8em .15em 0; text-align: left }
svg { width: 100%; height: auto; background: #fafafa; border: 1px solid #e5e5e5 }
.note { color: #666 }
"""


def write_report(
    path: Path, traffic: Traffic, counts: Counts, findings: Findings, summary: dict[str, Any]
) -> None:
    """Writes the report; what it shows is what the run's sinks got."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>zeitgeist</title>",
        f"<style>{_STYLE}</style><h1>Zeitgeist</h1>",
        f"<p>{summary['records']:,} queries, {summary['key_buckets']:,} counts of a query in a bucket, in "
        f"{summary['seconds']} s: {summary['records_per_second']:,} queries a second.</p>"
        f"<p>Of {len(findings.found)} planted anomalies {len(findings.found) - len(findings.missed)} were "
        f"found; {len(findings.false)} false alarms.</p>",
        _table(traffic, findings),
        "<h2>All queries, by region</h2>",
        *(_region(traffic, counts, region) for region in REGIONS),
        "<h2>The planted anomalies</h2>"
        "<p class=note>Grey: where it was planted. The line: when it was reported.</p>",
    ]
    for finding in findings.found:
        told = finding.message["found"] if finding.message else None
        parts.append(f"<h3>{_title(traffic, finding.planted)}</h3>")
        parts.append(_plot(traffic, counts.series(finding.planted.key), finding.planted, told))
    if findings.false:
        parts.append("<h2>False alarms</h2>")
    for message in findings.false:
        parts.append(f"<h3>{html.escape(message['key'])}: {message['kind']}</h3>")
        parts.append(_plot(traffic, counts.series(message["key"]), None, message["found"], message["kind"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


def _table(traffic: Traffic, findings: Findings) -> str:
    rows = ["<tr><th>query<th>anomaly<th>began<th>reported after"]
    for finding in findings.found:
        delay = "not found" if finding.delay is None else f"{finding.delay:.1f} buckets"
        planted = finding.planted
        began = moment(START + planted.first * traffic.width)
        rows.append(f"<tr><td>{html.escape(planted.key)}<td>{planted.kind}<td>{began}<td>{delay}")
    return f"<table>{''.join(rows)}</table>"


def _title(traffic: Traffic, planted: Planted) -> str:
    return f"{html.escape(planted.key)}: {planted.kind}, {moment(START + planted.first * traffic.width)}"


def _region(traffic: Traffic, counts: Counts, region: str) -> str:
    key = f"region {region}"
    planted = next((anomaly for anomaly in traffic.planted if anomaly.key == key), None)
    return f"<h3>{key}</h3>" + _plot(traffic, counts.series(key), planted, None)


def _plot(
    traffic: Traffic, series: Sequence[int], planted: Planted | None, told: int | None, kind: str = ""
) -> str:
    """The counts of a key over the whole stream as a line."""
    top, step = max([*series, 1]), _WIDTH / max(len(series) - 1, 1)
    points = " ".join(
        f"{bucket * step:.1f},{_HEIGHT - 4 - count * (_HEIGHT - 12) / top:.1f}"
        for bucket, count in enumerate(series)
    )
    marks = ""
    if planted is not None:
        kind = planted.kind
        length = (planted.last - planted.first) * step
        marks += f'<rect x="{planted.first * step:.1f}" width="{length:.1f}" height="{_HEIGHT}" fill="#ddd"/>'
    if told is not None:
        x = (told - START) / traffic.width * step
        marks += (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y2="{_HEIGHT}" stroke="{_COLOURS[kind]}" stroke-width="1.5"/>'
        )
    line = f'<polyline points="{points}" fill="none" stroke="#444" stroke-width="1"/>'
    label = f'<text x="4" y="12" font-size="10" fill="#888">{top:,} in a bucket</text>'
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">{marks}{line}{label}</svg>'
