"""Views for people: tables of plain text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from millwheel.errors import shorten
from millwheel.model.time import MAX_TIME, MIN_TIME, SECOND, format_time
from millwheel.watch.key_view import KeyView
from millwheel.watch.view import ComputationView, View
from millwheel.worker.counters import TROUBLE

_UNITS = ("B", "kB", "MB", "GB", "TB")


def cached(part: ComputationView) -> str:
    """The percentage of its rows that were in the cache."""
    wanted = part.rows_cached + part.rows_read
    return f"{part.rows_cached / wanted:.0%}" if wanted else ""


def stayed(part: ComputationView) -> str:
    """The percentage of its steps that ran on the executor with the state."""
    steps = part.steps_stayed + part.steps_moved
    return f"{part.steps_stayed / steps:.0%}" if steps else ""


_RATIOS = {"cached": cached, "stayed": stayed}


def status(view: View) -> str:
    """A whole pipeline.

    Counts that are zero everywhere are left out.
    """
    lines = [headline(view), *slow(view), *warnings(view), ""]
    head = ["computation", "level", "low watermark", "lag", "records", "in/s", "produced", "out/s"]
    faults = [
        name
        for name in (*(each.name for each in TROUBLE), "holds", "waiting")
        if any(getattr(part, name) for part in view.computations)
    ]
    if any(part.rows_cached + part.rows_read for part in view.computations):
        faults.append("cached")
    if any(part.steps_stayed + part.steps_moved for part in view.computations):
        faults.append("stayed")
    rows = [
        [
            part.name,
            str(part.level),
            format_time(part.low_watermark),
            lag(part.low_watermark, part.lag),
            f"{part.records:,}",
            rate(part.rate_in),
            f"{part.produced:,}",
            rate(part.rate_out),
            *(_RATIOS[name](part) if name in _RATIOS else f"{getattr(part, name):,}" for name in faults),
            f"{part.watermark_timers + part.wall_timers:,}",
            f"{part.rows:,}",
            size(part.bytes),
        ]
        for part in view.computations
    ]
    lines.append(table([*head, *faults, "timers", "keys", "state"], rows, left={0, 2}))
    lines.append("")
    rows = [
        [
            part.name,
            format_time(part.low_watermark),
            lag(part.low_watermark, part.lag),
            f"{part.partition_count:,}",
            f"{part.holder} {part.why}" if part.holder is not None else "",
        ]
        for part in view.injectors
    ]
    lines.append(table(["injector", "low watermark", "lag", "partitions", "held by"], rows, left={0, 1, 4}))
    if view.user:
        lines.append("")
        rows = [[name, f"{count:,}"] for name, count in sorted(view.user.items())]
        lines.append(table(["count of its own", ""], rows, left={0}))
    hot = [part for part in view.intervals if part["hot_key"] is not None]
    if hot:
        hottest = max(hot, key=lambda part: float(part["records_per_second"] * part["hot_share"]))
        where = f"of the records of {hottest['hot_computation']} in tablets {_tablets(hottest)}"
        lines += ["", f"hot key: {hottest['hot_key']!r}, {hottest['hot_share']:.0%} {where}"]
    if view.changes:
        lines += ["", changes(view)]
    if view.recent:
        lines += ["", epochs(view)]
    return "\n".join(lines)


def _tablets(interval: dict[str, Any]) -> str:
    return f"{interval['first']}-{interval['last'] - 1}"


def changes(view: View, most: int = 3) -> str:
    """The last changes of the intervals, with the reasons."""
    counts = ", ".join(f"{count:,} {what}" for what, count in view.changed.items() if count)
    rows = [
        [
            format_time(change["time"]),
            f"level {change['level']}",
            f"{len(change['before'])} to {len(change['after'])}",
            change["why"],
        ]
        for change in view.changes[-most:]
    ]
    return (
        f"{table(['intervals changed', 'where', 'intervals', 'why'], rows, left={0, 1, 3})}\nin all: {counts}"
    )


def slow(view: View) -> list[str]:
    """The hooks that have been running for long."""
    return [
        f"slow: {note['hook']} of {note['computation']}, key {shorten(note['key'], 80)}, "
        f"for {view.time / SECOND - note['since']:.0f} s; it has {note['hand']}"
        if note["computation"] is not None
        else f"slow: {note['what']}, for {view.time / SECOND - note['since']:.0f} s"
        for note in view.slow
    ]


def warnings(view: View) -> list[str]:
    """Likely mistakes."""
    return [f"warning: {text}" for text in view.warnings]


def headline(view: View) -> str:
    """The driver and the progress of a pipeline."""
    state = {True: f"running ({view.owner})", False: "stopped", None: "running or stopped"}[view.running]
    text = f"{view.pipeline}: {state}, epoch {view.epoch:,}, {view.records_in:,} records in"
    if view.running is not False:
        text += f", {rate(view.rate)} a second"
    if view.input_errors:
        text += f", {view.input_errors:,} bad inputs"
    if view.standbys:
        text += f"; standby: {', '.join(one.owner for one in view.standbys)}"
    return text


def epochs(view: View) -> str:
    """The last epochs in one line: durations, and phases."""
    seconds = sorted(epoch["seconds"] for epoch in view.recent)
    total = sum(seconds) or 1.0
    parts: dict[str, float] = {}
    for epoch in view.recent:
        for name, part in epoch["phases"].items():
            parts[name] = parts.get(name, 0.0) + part
    shares = ", ".join(f"{name} {part / total:.0%}" for name, part in parts.items() if part / total >= 0.005)
    middle, longest = seconds[len(seconds) // 2], seconds[-1]
    took = f"median {middle * 1e3:,.0f} ms, longest {longest * 1e3:,.0f} ms"
    return f"the last {len(seconds)} epochs: {took} ({shares})"


def top(view: View, height: int = 40) -> str:
    """A screen, with the computations that are furthest behind first."""

    def behind(part: ComputationView) -> int:
        return part.low_watermark

    lines = [headline(view), *slow(view), *warnings(view), ""]
    rows = [
        [
            part.name,
            lag(part.low_watermark, part.lag),
            rate(part.rate_in),
            rate(part.rate_out),
            f"{part.late:,}",
            f"{part.dropped + part.diverted:,}",
            f"{part.duplicates:,}",
            f"{part.failed:,}",
            f"{part.watermark_timers + part.wall_timers:,}",
            f"{part.rows:,}",
            size(part.bytes),
        ]
        for part in sorted(view.computations, key=behind)
    ]
    head = [
        "computation",
        "lag",
        "in/s",
        "out/s",
        "late",
        "dropped",
        "dup",
        "failed",
        "timers",
        "keys",
        "state",
    ]
    lines.append(table(head, rows, left={0}))
    busiest = sorted(view.intervals, key=lambda part: -part["busy"])[:5]
    if busiest:
        rows = [
            [
                f"level {part['level']}, tablets {_tablets(part)}",
                f"{part['busy']:.0%}",
                rate(part["records_per_second"]),
                f"{part['rows']:,}",
                f"{part['hot_key']!r} ({part['hot_share']:.0%})" if part["hot_key"] is not None else "",
            ]
            for part in busiest
        ]
        lines += ["", table(["interval", "busy", "records/s", "keys", "hot key"], rows, left={0, 4})]
    if view.changes:
        lines += ["", changes(view, 1)]
    if view.recent:
        lines += ["", epochs(view)]
    return "\n".join("\n".join(lines).splitlines()[:height])


def key(view: KeyView) -> str:
    """One key."""
    where = f"{view.computation}, key {view.key!r} (tablet {view.tablet}, shard {view.shard})"
    if not view.found:
        none = "no row; the key has no state, no timer and no hold"
        return "\n".join([f"{where}: {none}", *_waiting(view)])
    lines = [where]
    if view.codec is None:
        lines.append("state: none")
    else:
        text = json.dumps(view.state, ensure_ascii=False, indent=2)
        lines.append(f"state ({view.codec}, {size(view.bytes)}): {text}")
    for timer in view.timers:
        lines.append(f"timer {timer['tag']!r} at {format_time(timer['time'])} ({timer['clock']})")
    for hold in view.holds:
        lines.append(f"hold {hold['tag']!r} at {format_time(hold['time'])}")
    return "\n".join(lines + _waiting(view))


def _waiting(view: KeyView) -> list[str]:
    return [
        f"waiting: record of {record['stream']!r} at {format_time(record['timestamp'])}: "
        f"{shorten(record['value'], 80)}"
        for record in view.waiting
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: set[int]) -> str:
    """Aligned columns, those of ``left`` to the left.

    >>> print(table(["name", "n"], [["a", "1"], ["bb", "12"]], left={0}))
    name   n
    a      1
    bb    12
    """
    cells = [list(head), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def lag(low: int, seconds: float | None) -> str:
    """The lag of a watermark.

    >>> lag(0, 0.25), lag(0, 75.0), lag(0, 7200.0), lag(MIN_TIME, None), lag(MAX_TIME, None)
    ('0.2 s', '1 min 15 s', '2.0 h', 'unknown', 'at its end')
    """
    if seconds is None:
        return {MIN_TIME: "unknown", MAX_TIME: "at its end"}.get(low, "")
    if abs(seconds) < 60:
        return f"{seconds:.1f} s"
    if abs(seconds) < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if abs(seconds) < 72 * 3600:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 86400:,.0f} days"


def rate(value: float) -> str:
    """A rate per second.

    >>> rate(0.0), rate(0.51), rate(1234.5)
    ('0', '0.5', '1,234')
    """
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def size(count: int) -> str:
    """A number of bytes for display.

    >>> size(12), size(34_567), size(8_900_000_000)
    ('12 B', '34.6 kB', '8.9 GB')
    """
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"
