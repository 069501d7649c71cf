"""The central authority on low watermarks (7.2), on the driver.

For each computation it keeps an interval map of the workers' reports. It never runs ahead of them: a
value is published after the workers reported it. It never goes back, except between two runs (`lower`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millwheel.model.graph import Graph
from millwheel.model.names import Sender, SourceName, WatermarkName
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.watermark.formula import (
    Work,
    all_work,
    input_watermarks,
    low_watermark,
    lowest,
    percentile_watermark,
)
from millwheel.watermark.marks import ComputationMarks, IntervalMark
from millwheel.watermark.percentile import EXACT, Pending, is_of, passed, variant


class WatermarkAuthority:
    """Invariant: a published value never goes back or passes an interval's."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._intervals: dict[str, dict[int, IntervalMark]] = {name: {} for name in graph.nodes}
        self._fresh: dict[str, set[int]] = {name: set() for name in graph.nodes}
        """By computation: the intervals that reported since the last complete round."""
        self._forgotten: dict[str, dict[int, int]] = {name: {} for name in graph.nodes}
        """By computation and first tablet: the sequencer that removed an interval."""
        self._layout: dict[str, set[int]] = {name: set() for name in graph.nodes}
        """By computation: the intervals of the last complete round of reports."""
        self._waiting: set[str] = set()
        """Computations with current intervals that have not reported."""
        self.inputs: dict[str, int] = dict.fromkeys(graph.nodes, MIN_TIME)
        self.lows: dict[str, int] = dict.fromkeys(graph.nodes, MIN_TIME)
        self.percentiles: dict[WatermarkName, int] = {
            variant(name, p): MIN_TIME for name in graph.nodes for p in graph.percentiles
        }
        """Percentile low watermarks, by name."""

    def report(self, name: str, first: int, mark: IntervalMark) -> bool:
        """Accepts an interval's report; refuses one from a previous owner."""
        known = self._intervals[name].get(first)
        oldest = known.sequencer if known is not None else self._forgotten[name].get(first, -1) + 1
        if mark.sequencer < oldest:
            return False
        self._intervals[name][first] = mark
        self._fresh[name].add(first)
        return True

    def publish(self, intervals: dict[str, set[int]]) -> None:
        """Raises the published values to the minimum of all intervals, once all reported.

        ``intervals`` is the layout: intervals outside it are removed, and one that has not reported keeps
        the values where they are. After a change of layout earlier reports do not count: an interval that
        begins at the same tablet is another one.
        """
        for name, marks in self._intervals.items():
            wanted = intervals[name]
            changed = wanted != self._layout[name]
            if not wanted <= (self._fresh[name] if changed else marks.keys()):
                self._waiting.add(name)
                continue
            self._waiting.discard(name)
            self._layout[name] = set(wanted)
            self._fresh[name].clear()
            newest = max((mark.sequencer for mark in marks.values()), default=0)
            for first in marks.keys() - wanted:
                self._forgotten[name][first] = newest - 1
                del marks[first]
            self.inputs[name] = max(self.inputs[name], min(mark.input for mark in marks.values()))
            self.lows[name] = max(self.lows[name], min(mark.low for mark in marks.values()))
            reached = lowest(mark.percentiles for mark in marks.values())
            for p in self._graph.percentiles:
                fast = variant(name, p)
                said = all(fast in mark.percentiles for mark in marks.values())
                self.percentiles[fast] = percentile_watermark(
                    reached[fast] if said else MIN_TIME,
                    self._passed(name, p)[0],
                    self.lows[name],
                    self.percentiles[fast],
                )

    def makes_due(self, sources: Mapping[WatermarkName, int]) -> bool:
        """Whether these injector watermarks make a timer due: the workers must run."""
        return self._passed_on(sources) is None

    def pass_on(self, sources: Mapping[WatermarkName, int]) -> None:
        """Applies injector watermarks to an idle graph, where they make no timer due."""
        passed = self._passed_on(sources)
        if passed is not None:
            self.inputs, self.lows, self.percentiles = passed

    def _passed_on(
        self, sources: Mapping[WatermarkName, int]
    ) -> tuple[dict[str, int], dict[str, int], dict[WatermarkName, int]] | None:
        if self.unfinished:  # the backlog may still produce records that are on time now
            return self.inputs, self.lows, self.percentiles
        inputs, lows, percentiles = dict(self.inputs), dict(self.lows), dict(self.percentiles)
        known: dict[WatermarkName, int] = {**sources}
        for name, node in self._graph.nodes.items():
            if name not in self._waiting:
                reached = self._reached(name, known)
                inputs[name] = max(inputs[name], reached[node.watermark])
                work = self._work(name)
                if inputs[name] > self.inputs[name] and work.due <= inputs[name]:
                    return None
                lows[name] = low_watermark(reached[EXACT], work.oldest(), lows[name])
                for p in self._graph.percentiles:
                    fast = variant(name, p)
                    at, exact = self._passed(name, p)
                    if not exact and at < reached[p]:
                        return None  # the workers have newer values
                    percentiles[fast] = percentile_watermark(reached[p], at, lows[name], percentiles[fast])
            known[name] = lows[name]
            known |= {variant(name, p): percentiles[variant(name, p)] for p in self._graph.percentiles}
        return inputs, lows, percentiles

    def _reached(
        self, name: str, known: Mapping[WatermarkName, int], nobody: int = MAX_TIME
    ) -> dict[float, int]:
        """A computation's input watermark, exact and for each percentile."""
        return input_watermarks(self._graph.senders(name), self._graph.percentiles, known, nobody)

    def lower(
        self,
        sources: Mapping[WatermarkName, int],
        lowered: Collection[SourceName],
        only: Collection[str] | None = None,
    ) -> bool:
        """Lowers watermarks after an injector's went back between runs; False: none did.

        ``lowered`` names those injectors (semantics 9). Every computation downstream of one of them, and each
        at `MAX_TIME`, is lowered to its input watermark; the others stay. With ``only``, just those of
        these computations that are at `MAX_TIME` are lowered.
        """
        before = {**self.inputs}, {**self.lows}, {**self.percentiles}
        changed, known = set[Sender](lowered), dict(sources)
        for name, node in self._graph.nodes.items():
            senders = self._graph.senders(name)
            ended = self.inputs[name] == MAX_TIME
            if name in only and ended if only is not None else ended or not changed.isdisjoint(senders):
                changed.add(name)
                reached = self._reached(name, known)
                fast = {variant(name, p): reached[p] for p in self._graph.percentiles}
                self.inputs[name] = min(self.inputs[name], reached[node.watermark])
                self.lows[name] = min(self.lows[name], reached[EXACT])
                self.percentiles |= {each: min(self.percentiles[each], at) for each, at in fast.items()}
                for mark in self._intervals[name].values():
                    mark.input = min(mark.input, reached[node.watermark])
                    mark.low = min(mark.low, reached[EXACT])
                    mark.percentiles = {
                        each: min(at, fast.get(each, at)) for each, at in mark.percentiles.items()
                    }
            known[name] = self.lows[name]
            known |= {variant(name, p): self.percentiles[variant(name, p)] for p in self._graph.percentiles}
        return before != (self.inputs, self.lows, self.percentiles)

    def holds(self) -> dict[str, dict[int, int]]:
        """By computation and interval: the oldest hold, if there is one."""
        found: dict[str, dict[int, int]] = {}
        for name, marks in self._intervals.items():
            holds = {first: m.oldest_hold for first, m in marks.items() if m.oldest_hold < MAX_TIME}
            if holds:
                found[name] = holds
        return found

    def _passed(self, name: str, percentile: float) -> tuple[int, bool]:
        """The timestamp that a percentile of pending ones passed; whether it is exact."""
        marks = self._intervals[name].values()
        if not all(mark.pending for mark in marks):
            return MIN_TIME, False
        return passed((Pending(*mark.pending) for mark in marks), percentile)

    def pending(self) -> dict[str, int]:
        """By computation with a percentile in use: the number of pending timestamps."""
        if not self._graph.percentiles:
            return {}
        return {
            name: sum(mark.pending[0] for mark in marks.values() if mark.pending)
            for name, marks in self._intervals.items()
        }

    def _work(self, name: str) -> Work:
        return all_work(mark.work for mark in self._intervals[name].values())

    def intervals(self, name: str) -> dict[int, IntervalMark]:
        """By first tablet: the last report of each interval of a computation."""
        return dict(self._intervals[name])

    @property
    def more_due(self) -> bool:
        """Whether an epoch left due timers to the next one."""
        return any(mark.more_due for marks in self._intervals.values() for mark in marks.values())

    def marks(self) -> dict[tuple[str, bool], int]:
        """By computation: the input watermark (True) and the low watermark (False)."""
        inputs = {(name, True): mark for name, mark in self.inputs.items()}
        return inputs | {(name, False): mark for name, mark in self.lows.items()}

    @property
    def unfinished(self) -> bool:
        """Whether an epoch left work to the next one, which continues it."""
        return self.more_due or self.left > 0

    @property
    def left(self) -> int:
        """The number of records that an epoch left to the next one."""
        return sum(mark.left for marks in self._intervals.values() for mark in marks.values())

    @property
    def next_wall(self) -> int:
        """When the next wall timer is due."""
        return min(
            (mark.next_wall for marks in self._intervals.values() for mark in marks.values()),
            default=MAX_TIME,
        )

    def counter(self, name: str, index: int) -> int:
        """A counter of a computation, summed over its intervals."""
        return sum(mark.counter(index) for mark in self._intervals[name].values())

    def admit(self, sources: Mapping[WatermarkName, int], known: Collection[str]) -> None:
        """Starts new computations at their input watermarks, in topological order."""
        for name, node in self._graph.nodes.items():
            if name in known:
                continue
            marks = dict(sources) | self.lows | self.percentiles
            reached = self._reached(name, marks, nobody=MIN_TIME)
            self.inputs[name], self.lows[name] = reached[node.watermark], reached[EXACT]
            for p in self._graph.percentiles:
                self.percentiles[variant(name, p)] = reached[p]

    def computations(self) -> dict[str, ComputationMarks]:
        """By computation: its watermarks and reports, for the journal."""
        return {
            name: ComputationMarks(
                self.inputs[name],
                self.lows[name],
                self._intervals[name],
                {fast: low for fast, low in self.percentiles.items() if is_of(fast, name)},
                self._layout[name],
                self._fresh[name],
                self._forgotten[name],
            )
            for name in self._graph.nodes
        }

    def restore(self, computations: Mapping[str, ComputationMarks]) -> None:
        """Restores from the journal; computations that left the graph are skipped."""
        for name, marks in computations.items():
            if name in self._intervals:
                self.inputs[name], self.lows[name] = marks.input, marks.low
                for p in self._graph.percentiles:  # a new percentile begins at the exact value
                    self.percentiles[variant(name, p)] = marks.percentiles.get(variant(name, p), marks.low)
                self._intervals[name] = marks.intervals
                self._layout[name], self._fresh[name] = marks.layout, marks.fresh
                self._forgotten[name] = marks.forgotten
