"""Watermarks of one interval in one epoch: the formula as a step applies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millwheel.model.graph import Graph
from millwheel.model.names import Sender, WatermarkName
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.watermark.formula import Work, input_watermarks, low_watermark, percentile_watermark
from millwheel.watermark.percentile import EXACT, Pending, passed, variant


@dataclass(frozen=True)
class Before:
    """The watermarks at the start of an epoch, as planned."""

    inputs: Mapping[str, int]
    """By computation: the input watermark."""
    lows: Mapping[WatermarkName, int]
    """By computation: the low watermark, and its percentiles."""
    holds: Mapping[str, Mapping[int, int]]
    """By computation and interval (its first tablet): the oldest hold."""
    drain: bool = False
    """Whether holds are ignored (semantics 9)."""


class IntervalWatermarks:
    """The watermarks of one interval of a level in an epoch.

    Invariant: its report is never ahead of the minimum of all intervals, and never goes back.
    """

    def __init__(self, graph: Graph, level: int, first: int, before: Before, *, alone: bool) -> None:
        self._graph = graph
        self._level = level
        self._first = first
        self._before = before
        self._alone = alone
        """Whether this is the level's only interval: then its values are final."""

    def reached(self, name: str, watermarks: Mapping[WatermarkName, int]) -> dict[float, int]:
        """The input watermark of a computation, exact and for each percentile.

        For the percentiles of a chained producer an interval that is not the only one has two bounds: the
        value published before the epoch, and the exact low watermark.
        """
        senders, held = self._graph.senders(name), self._held(name)
        known = watermarks
        if self._graph.percentiles and not self._alone:
            known = dict(watermarks)
            for sender in senders:
                if self._is_chained(sender):
                    for p in self._graph.percentiles:
                        fast = variant(sender, p)
                        published = self._before.lows.get(fast, MIN_TIME)
                        known[fast] = low_watermark(watermarks[sender], held, published)
        found = input_watermarks(senders, self._graph.percentiles, known)
        found[EXACT] = min(found[EXACT], held)
        return found

    def input(self, name: str, reached: Mapping[float, int], *, waits: bool) -> int:
        """The input watermark after the records; ``waits``: a sender has a backlog."""
        before = self._before.inputs.get(name, MIN_TIME)
        return before if waits else max(reached[self._graph.nodes[name].watermark], before)

    def low(
        self, name: str, reached: Mapping[float, int], input: int, work: Work, *, unfinished: bool
    ) -> int:
        """The low watermark after the step.

        An unfinished step keeps the previous value: its backlog may still produce records with any timestamp
        that was not late before the epoch.
        """
        before = self._before.lows.get(name, MIN_TIME)
        if unfinished:
            return before
        exact = self._graph.nodes[name].watermark == EXACT
        return low_watermark(
            input if exact else reached[EXACT], work.oldest(drain=self._before.drain), before
        )

    def percentile_inputs(
        self, name: str, reached: Mapping[float, int], *, unfinished: bool
    ) -> dict[WatermarkName, int]:
        """The percentiles of the input watermark, for the report."""
        return {variant(name, p): MIN_TIME if unfinished else reached[p] for p in self._graph.percentiles}

    def percentile_lows(
        self, name: str, low: int, inputs: Mapping[WatermarkName, int], pending: Pending
    ) -> dict[WatermarkName, int]:
        """The percentile low watermarks for chained consumers in this epoch."""
        lows: dict[WatermarkName, int] = {}
        for p in self._graph.percentiles:
            fast = variant(name, p)
            position = passed([pending], p)[0] if self._alone else MIN_TIME
            before = self._before.lows.get(fast, MIN_TIME)
            lows[fast] = percentile_watermark(inputs[fast], position, low, before)
        return lows

    def horizon(self, watermarks: Mapping[WatermarkName, int]) -> int:
        """The newest injector watermark: later pending timestamps do not matter now."""
        graph = self._graph
        return max(watermarks[variant(s.name, p)] for s in graph.sources for p in graph.percentiles)

    def _is_chained(self, sender: Sender) -> bool:
        return isinstance(sender, str) and self._graph.level_of[sender] == self._level

    def _held(self, name: str) -> int:
        """The oldest hold that chained producers had before this epoch, in any interval.

        An interval has no low watermarks of this epoch from the others. At the end of an epoch only a hold
        can keep a producer behind its input, as timers that were due have fired. A hold that is released here
        in this epoch still counts, since the other intervals have not seen it and none may be ahead of them.
        For an only interval it does not count.
        """
        oldest = MAX_TIME
        for sender in self._graph.senders(name):
            if isinstance(sender, str) and self._is_chained(sender) and not self._before.drain:
                for first, hold in self._before.holds.get(sender, {}).items():
                    if not self._alone or first != self._first:
                        oldest = min(oldest, hold)
        return oldest
