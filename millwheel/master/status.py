"""The totals of a run, and its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millwheel.errors import shorten
from millwheel.master.table_versions import LookupStatus
from millwheel.model.derived import is_public
from millwheel.model.graph import Graph
from millwheel.model.time import SECOND, format_time
from millwheel.worker import counters
from millwheel.worker.activity import Note
from millwheel.worker.counters import Counters
from millwheel.worker.report import IntervalReport

_CHANGES = ("moved", "split", "merged")


@dataclass
class Report(Counters[dict[str, int]]):
    """What a run, or a running job, has done so far; counts name every computation."""

    pipeline: str = ""
    epochs: int = 0
    records_in: int = 0
    """Records read by the injectors, bad ones included."""
    low_watermarks: dict[str, int] = field(default_factory=dict)
    input_watermarks: dict[str, int] = field(default_factory=dict)
    """What fires each computation's timers: its input watermark, or its percentile."""
    filter_bytes: dict[str, int] = field(default_factory=dict, compare=False)
    """The size of the ID filters in the last epoch with IDs."""
    filter_error: dict[str, float] = field(default_factory=dict, compare=False)
    """The percentage of new IDs that are looked up in the store for nothing."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Buffered records of computations that are in order."""
    streams: dict[str, int] = field(default_factory=dict)
    input_errors: int = 0
    """Input that was not a record, diverted by its injector."""
    user: dict[str, int] = field(default_factory=dict)
    pending_wall_timers: int = 0
    idle_partitions: dict[str, list[str]] = field(default_factory=dict)
    """By injector: partitions that have been idle too long to hold the watermark."""
    lag: dict[str, int] = field(default_factory=dict)
    """By injector: the estimated number of records that are not read yet."""
    intervals: dict[str, int] = field(default_factory=dict, compare=False)
    """The number of key intervals moved, split and merged."""
    changes: list[dict[str, Any]] = field(default_factory=list, compare=False)
    """The last changes of key intervals: time, level, reason, before and after."""
    changes_at_start: list[str] = field(default_factory=list, compare=False)
    """How the pipeline differed from the one in its store at the start, by line."""
    hot_keys: dict[str, tuple[str, float]] = field(default_factory=dict, compare=False)
    """By computation: its hottest key in this run, and at least which share it had."""
    hot_windows: dict[str, tuple[int, int]] = field(default_factory=dict, compare=False)
    """By computation: the wall time of the first and last epoch with its hot key."""
    warnings: list[str] = field(default_factory=list, compare=False)
    """Likely mistakes: a field that none of a stream's first 1,000 records has."""
    lookups: dict[str, LookupStatus] = field(default_factory=dict, compare=False)
    """By side table of a lookup: version, rows, time of the last read, error since."""
    unreleased_holds: int = 0
    """Holds that ended with the run (semantics 9)."""
    slow: list[Note] = field(default_factory=list, compare=False)
    """The hooks that have been running for longer than ``slow_after``."""

    def __post_init__(self) -> None:
        for name in counters.NAMES:
            if not getattr(self, name):
                setattr(self, name, {})

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        from millwheel.master.html import report_html

        return report_html(self)

    def __str__(self) -> str:
        lines = [f"{self.pipeline}: {self.epochs:,} epochs, {self.records_in:,} records in"]
        for name, low in self.low_watermarks.items():
            parts = [f"{self.records[name]:,} records", f"{self.produced[name]:,} produced"]
            parts += [
                f"{counts[name]:,} {label}"
                for label, counts in (
                    *((each.name, getattr(self, each.name)) for each in counters.TROUBLE),
                    ("waiting", self.waiting),
                )
                if counts.get(name)
            ]
            wanted = self.rows_cached.get(name, 0) + self.rows_read.get(name, 0)
            if wanted:
                parts.append(f"{self.rows_cached[name] / wanted:.0%} of {wanted:,} rows from the cache")
            steps = self.steps_stayed.get(name, 0) + self.steps_moved.get(name, 0)
            if steps:
                parts.append(f"{self.steps_stayed[name] / steps:.0%} of {steps:,} steps where the state was")
            lines.append(f"  {name}: {', '.join(parts)}; low watermark {format_time(low)}")
        if self.input_errors:
            lines.append(f"  bad input diverted: {self.input_errors:,}")
        if self.pending_wall_timers:
            lines.append(f"  wall timers still pending: {self.pending_wall_timers:,}")
        for source, partitions in self.idle_partitions.items():
            lines.append(f"  idle partitions of {source}: {', '.join(partitions)}")
        for name, (key, share) in self.hot_keys.items():
            first, last = map(format_time, self.hot_windows[name])
            when = f"at {first}" if first == last else f"from {first} to {last}"
            lines.append(
                f"  {name}: the key {shorten(key, 60)} has {share:.0%} of the run's records, hot {when}"
            )
        changed = ", ".join(f"{count:,} {what}" for what, count in self.intervals.items() if count)
        if changed:
            lines.append(f"  key intervals: {changed}; last: {self.changes[-1]['why']}")
        lines += [f"  warning: {text}" for text in self.warnings]
        for name, table in self.lookups.items():
            trouble = f"; it cannot be refreshed: {table.error}" if table.error else ""
            lines.append(
                f"  {name}: version {table.version}, {table.rows:,} rows, read at "
                f"{format_time(table.read_at)}{trouble}"
            )
        if self.unreleased_holds:
            lines.append(f"  holds that ended with the run: {self.unreleased_holds:,}")
        lines += [
            f"  slow: {note.place}, since {format_time(int(note.since * SECOND))}" for note in self.slow
        ]
        return "\n".join(lines)


class Totals:
    """Counts since the store was made; journaled with each epoch, so counted once."""

    def __init__(self, value: dict[str, Any] | None = None) -> None:
        self.value: dict[str, Any] = {
            "epochs": 0,
            "records_in": 0,
            "input_errors": 0,
            "streams": {},
            "user": {},
            "warnings": [],
            "intervals": dict.fromkeys(_CHANGES, 0),
            **{name: {} for name in counters.NAMES},
        }
        self.value.update(value or {})

    def add(self, report: IntervalReport) -> None:
        """Adds what one interval did in an epoch."""
        value = self.value
        value["records_in"] += report.records_in
        value["input_errors"] += report.input_errors
        _add(value["streams"], report.streams)
        _add(value["failed"], report.failed)
        for name, node in report.nodes.items():
            for counter in counters.NAMES:
                counts = value[counter]
                counts[name] = counts.get(name, 0) + getattr(node, counter)
            _add(value["user"], node.user)

    def count_change(self, moved: int, split: int, merged: int) -> None:
        """Counts a change of key intervals; journaled with the next epoch."""
        _add(self.value["intervals"], dict(zip(_CHANGES, (moved, split, merged), strict=True)))

    def copy(self) -> Totals:
        """A copy that later additions do not change."""
        return Totals(
            {name: dict(part) if isinstance(part, dict) else part for name, part in self.value.items()}
        )

    def since(self, earlier: Totals, graph: Graph) -> Report:
        """A report of the counts since ``earlier``."""
        value, before = self.value, earlier.value

        def difference(name: str, every: Any) -> dict[str, int]:
            keys = [*every, *(key for key in value[name] if key not in every)]
            return {key: value[name].get(key, 0) - before[name].get(key, 0) for key in keys}

        user = difference("user", ())
        by_computation: dict[str, Any] = {name: difference(name, graph.nodes) for name in counters.NAMES}
        return Report(
            pipeline=graph.name,
            epochs=value["epochs"] - before["epochs"],
            records_in=value["records_in"] - before["records_in"],
            input_errors=value["input_errors"] - before["input_errors"],
            streams={name: n for name, n in difference("streams", graph.streams).items() if is_public(name)},
            intervals=difference("intervals", _CHANGES),
            user={name: count for name, count in user.items() if count},
            **by_computation,
        )


def _add(counts: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count
