"""The driver's counters: the totals of the store, and the rest of a report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from millwheel.master.field_warnings import FieldWarnings
from millwheel.master.hot_keys import HotKeys
from millwheel.master.status import Report, Totals
from millwheel.model.graph import Graph
from millwheel.worker.report import IntervalReport

Filter = tuple[int, float]
"""The bytes and the error rate of a filter of IDs."""


class Tally:
    """Counts committed epochs. A report is the difference to a baseline."""

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        """Since the store was made; journaled with each epoch."""
        self.baseline = totals.copy()
        """Counted before, so not reported."""
        self.hot = HotKeys()
        self.fields = FieldWarnings()
        self.changes_at_start: list[str] = []
        """The differences to the pipeline in the store."""
        self.epochs = 0
        """The number of epochs counted here."""
        self.fired = 0
        """Timers that fired in the last epoch."""
        self.holds_ended = 0
        """Holds that were not released when the run ended."""
        self._filters: dict[tuple[str, int], Filter] = {}

    def follow(self, before: Tally) -> None:
        """Continues the tally of another graph."""
        self.baseline, self.hot, self.fields = before.baseline, before.hot, before.fields
        self.changes_at_start, self.holds_ended = before.changes_at_start, before.holds_ended

    def add(self, now: int, reports: Sequence[IntervalReport]) -> None:
        """Adds an epoch and its wall time."""
        self.fired = 0
        for report in reports:
            self.totals.add(report)
            self.fields.add(report.unseen_fields)
            for name, node in report.nodes.items():
                self.fired += node.timers
                self.holds_ended += node.holds_ended
                self.hot.add(now, name, node.records, node.hot)
                if node.filter_bytes:
                    self._filters[name, report.first] = (node.filter_bytes, node.filter_error)
        self.totals.value["warnings"] = list(self.fields.texts.values())
        self.epochs += 1
        self.totals.value["epochs"] += 1

    def filter(self, computation: str, first: int) -> Filter:
        """The filter of IDs of an interval, as of the last epoch with IDs."""
        return self._filters.get((computation, first), (0, 0.0))

    def keep(self, layout: Mapping[str, Collection[int]]) -> None:
        """Removes the filters of intervals that no longer exist."""
        self._filters = {place: it for place, it in self._filters.items() if place[1] in layout[place[0]]}

    def report(self, graph: Graph) -> Report:
        """The counts since the baseline; the driver adds the current state."""
        report = self.totals.since(self.baseline, graph)
        report.changes_at_start = list(self.changes_at_start)
        report.warnings = list(self.fields.texts.values())
        for (name, _), (size, error) in self._filters.items():
            report.filter_bytes[name] = report.filter_bytes.get(name, 0) + size
            report.filter_error[name] = max(report.filter_error.get(name, 0.0), error)
        for name, (key, share, first, last) in self.hot.found().items():
            report.hot_keys[name], report.hot_windows[name] = (key, share), (first, last)
        return report
