"""Reports and jobs as HTML, for notebooks: a table and a small chart."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from html import escape
from typing import Any

from millwheel.master.status import Report
from millwheel.model.time import format_time
from millwheel.worker.counters import TROUBLE

_COLUMNS = ("records", "produced", *(each.name for each in TROUBLE))
_ALWAYS = 2  # of the columns are always shown; the others if not zero
_WIDTH, _HEIGHT = 240, 36


def notebook_display() -> Any:
    """IPython's display module, which a notebook has; not a dependency."""
    return importlib.import_module("IPython.display")


def table(report: Report) -> str:
    """The counts and the low watermark of each computation."""
    shown = [
        name
        for number, name in enumerate(_COLUMNS)
        if number < _ALWAYS or any(getattr(report, name).values())
    ]
    head = "".join(f"<th>{name}</th>" for name in ("computation", *shown, "low watermark"))
    rows = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f"<td>{getattr(report, column).get(name, 0):,}</td>" for column in shown)
        + f"<td>{escape(format_time(low))}</td></tr>"
        for name, low in report.low_watermarks.items()
    )
    title = f"<b>{escape(report.pipeline)}</b>: {report.epochs:,} epochs, {report.records_in:,} records in"
    slow = "".join(f"<p>slow: {escape(note.place)}</p>" for note in report.slow)
    slow += "".join(f"<p>warning: {escape(text)}</p>" for text in report.warnings)
    return f"<p>{title}</p>{slow}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def bars(values: Sequence[float], label: str) -> str:
    """A small bar chart as SVG; empty without values."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return ""
    step = _WIDTH / len(values)
    drawn = "".join(
        f'<rect x="{number * step:.1f}" y="{_HEIGHT * (1 - value / highest):.1f}" '
        f'width="{max(step - 1, 0.5):.1f}" height="{_HEIGHT * value / highest:.1f}"/>'
        for number, value in enumerate(values)
    )
    return (
        f'<p><svg role="img" aria-label="{escape(label)}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" fill="#0c6e6d">{drawn}</svg> <small>{escape(label)}</small></p>'
    )


def report_html(report: Report) -> str:
    """A report: its table, and the records of each computation as a chart."""
    records = [float(count) for count in report.records.values()]
    chart = bars(records, "records by computation") if len(records) > 1 else ""
    return f"<div>{table(report)}{chart}</div>"


def job_html(report: Report, state: str, recent: Sequence[dict[str, Any]], ui: str | None) -> str:
    """A job: its state, its table, and the speed of its last epochs."""
    speed = [epoch["records"] / max(epoch["seconds"], 1e-3) for epoch in recent]
    page = f' <a href="{escape(ui)}" target="_blank">page</a>' if ui else ""
    chart = bars(speed, f"records/s of the last {len(speed)} epochs, at most {max(speed, default=0):,.0f}")
    return f"<div><p>{escape(state)}{page}</p>{table(report)}{chart}</div>"
