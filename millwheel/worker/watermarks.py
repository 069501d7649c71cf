"""The watermarks of a computation in an interval: what its input reached, what consumers hear (4.5)."""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.model.graph import Graph
from millwheel.model.names import Sender, WatermarkName
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.store.base import Snapshot
from millwheel.watermark.percentile import EXACT, Pending, passed, variant
from millwheel.worker.pending import pending_of
from millwheel.worker.plan import Plan
from millwheel.worker.reorder_buffer import Waiting
from millwheel.worker.report import NodeReport
from millwheel.worker.timer_index import Tablets


class IntervalMarks:
    """What one interval of a level can know of the watermarks in an epoch."""

    def __init__(self, graph: Graph, plan: Plan, level: int, index: int) -> None:
        self._graph = graph
        self._plan = plan
        self._level = level
        self._interval = plan.intervals[level - 1][index]
        self._alone = len(plan.intervals[level - 1]) == 1
        """Whether this level has one interval, which then knows all there is to know."""

    def reached(self, name: str, watermarks: Mapping[WatermarkName, int]) -> dict[float, int]:
        """The input watermark of a computation, exact and for each percentile.

        Of a chained producer's percentiles an interval knows, where it is not the only one, what was
        published before the epoch, and that they are not behind the exact one.
        """
        held = self._held(name)
        found = dict.fromkeys((EXACT, *self._graph.percentiles), MAX_TIME)
        for sender in self._graph.senders(name):
            chained = not self._alone and self._is_chained(sender)
            for p in found:
                mark = watermarks[variant(sender, p)]
                if chained and p != EXACT:
                    published = self._plan.lows.get(variant(sender, p), MIN_TIME)
                    mark = max(published, min(watermarks[sender], held))
                found[p] = min(found[p], mark)
        found[EXACT] = min(found[EXACT], held)
        return found

    def pending(
        self,
        tablets: Tablets,
        snapshot: Snapshot,
        number: int,
        name: str,
        watermarks: Mapping[WatermarkName, int],
        written: Mapping[bytes, bytes],
        waiting: Waiting | None,
    ) -> Pending:
        """The oldest timestamps that are pending after the step, whose changes are given."""
        graph, plan = self._graph, self._plan
        return pending_of(
            tablets,
            snapshot,
            number,
            written,
            waiting,
            bound=max(watermarks[variant(s.name, p)] for s in graph.sources for p in graph.percentiles),
            before=plan.pending.get(name, 0),
            lowest=min(graph.percentiles),
            holds=not plan.drain,
        )

    def percentiles(
        self, report: NodeReport, name: str, reached: dict[float, int], pending: Pending, *, unfinished: bool
    ) -> dict[WatermarkName, int]:
        """Reports what decides the percentiles; gives what chained consumers know of them in this epoch."""
        report.pending = list(pending)
        lows: dict[WatermarkName, int] = {}
        for p in self._graph.percentiles:
            fast = variant(name, p)
            report.percentiles[fast] = MIN_TIME if unfinished else reached[p]
            lows[fast] = max(report.low, self._plan.lows.get(fast, MIN_TIME))
            if self._alone:
                lows[fast] = max(lows[fast], min(report.percentiles[fast], passed([pending], p)[0]))
        return lows

    def _is_chained(self, sender: Sender) -> bool:
        return isinstance(sender, str) and self._graph.level_of[sender] == self._level

    def _held(self, name: str) -> int:
        """The oldest hold that chained producers had before this epoch, in whatever interval.

        Their low watermarks for this epoch are not known here but for this interval's, and at the end of an
        epoch a hold is all that can keep one behind its input: timers that were due have fired. A hold that
        is released meanwhile, here, still counts: others do not know of it, and no interval is to be ahead.
        Where there are no others, it does not count.
        """
        graph, plan = self._graph, self._plan
        oldest = MAX_TIME
        for sender in graph.senders(name):
            if isinstance(sender, str) and self._is_chained(sender) and not plan.drain:
                for first, hold in plan.holds.get(sender, {}).items():
                    if not self._alone or first != self._interval.first:
                        oldest = min(oldest, hold)
        return oldest
