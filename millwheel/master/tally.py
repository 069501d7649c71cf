"""What a driver counts: the totals of the store, and what a report says beside them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from millwheel.master.hot_keys import HotKeys
from millwheel.master.status import Report, Totals
from millwheel.model.graph import Graph
from millwheel.worker.plan import Plan
from millwheel.worker.report import IntervalReport

Filter = tuple[int, float]
"""The bytes and the error of a filter of IDs."""


class Tally:
    """Counts epochs as they are committed. A report is the difference to a baseline."""

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        """Since the store was made; journaled with each epoch."""
        self.baseline = totals.copy()
        """What is not reported: it was counted before."""
        self.hot = HotKeys()
        self.changes_at_start: list[str] = []
        """What the pipeline has in other ways than the one that the store knew."""
        self.epochs = 0
        """That were counted here."""
        self.fired = 0
        """Timers that fired in the last epoch."""
        self.holds_ended = 0
        """Holds that nobody had released when the run ended."""
        self._filters: dict[tuple[str, int], Filter] = {}

    def follow(self, before: Tally) -> None:
        """Goes on where the tally of another graph ended."""
        self.baseline, self.hot = before.baseline, before.hot
        self.changes_at_start, self.holds_ended = before.changes_at_start, before.holds_ended

    def add(self, plan: Plan, reports: Sequence[IntervalReport]) -> None:
        """Adds an epoch."""
        self.fired = 0
        for report in reports:
            self.totals.add(report)
            for name, node in report.nodes.items():
                self.fired += node.timers
                self.holds_ended += node.holds_ended
                if node.filter_bytes:
                    self._filters[name, report.first] = (node.filter_bytes, node.filter_error)
        self.hot.add(plan.now, reports)
        self.epochs += 1
        self.totals.value["epochs"] += 1

    def filter(self, computation: str, first: int) -> Filter:
        """The filter of IDs of an interval, as of the last epoch that had any."""
        return self._filters.get((computation, first), (0, 0.0))

    def keep(self, layout: Mapping[str, Collection[int]]) -> None:
        """Forgets the filters of intervals that are no more."""
        self._filters = {place: it for place, it in self._filters.items() if place[1] in layout[place[0]]}

    def report(self, graph: Graph) -> Report:
        """What came since the baseline; the driver adds where everything stands."""
        report = self.totals.since(self.baseline, graph)
        report.changes_at_start = list(self.changes_at_start)
        for (name, _), (size, error) in self._filters.items():
            report.filter_bytes[name] = report.filter_bytes.get(name, 0) + size
            report.filter_error[name] = max(report.filter_error.get(name, 0.0), error)
        for name, (key, share, first, last) in self.hot.found().items():
            report.hot_keys[name], report.hot_windows[name] = (key, share), (first, last)
        return report
