"""The watermarks of a computation in one interval, in one epoch: the formula as a step applies it (4.5)."""

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
    """The watermarks that an epoch begins with, as its plan has them."""

    inputs: Mapping[str, int]
    """By computation: the input watermark."""
    lows: Mapping[WatermarkName, int]
    """By computation: the low watermark; percentile ones beside it."""
    holds: Mapping[str, Mapping[int, int]]
    """By computation and interval (its first tablet): the oldest hold."""
    drain: bool = False
    """Whether holds are over (semantics 9)."""


class IntervalWatermarks:
    """What one interval of a level can know of the watermarks in an epoch.

    Invariant: what it reports is never ahead of the minimum over all intervals, and never goes back.
    """

    def __init__(self, graph: Graph, level: int, first: int, before: Before, *, alone: bool) -> None:
        self._graph = graph
        self._level = level
        self._first = first
        self._before = before
        self._alone = alone
        """Whether this level has one interval, which then knows all there is to know."""

    def reached(self, name: str, watermarks: Mapping[WatermarkName, int]) -> dict[float, int]:
        """The input watermark of a computation, exact and for each percentile.

        Of a chained producer's percentiles an interval knows, where it is not the only one, what was
        published before the epoch, and that they are not behind the exact one.
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
        """Where the computation's clock stands after its records; ``waits``: behind an unfinished sender."""
        before = self._before.inputs.get(name, MIN_TIME)
        return before if waits else max(reached[self._graph.nodes[name].watermark], before)

    def low(
        self, name: str, reached: Mapping[float, int], input: int, work: Work, *, unfinished: bool
    ) -> int:
        """The low watermark after the step.

        What an unfinished step left may yet produce, and stamp it with anything that was not late before the
        epoch: then it stays.
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
        """What is reported of the input's percentile watermarks."""
        return {variant(name, p): MIN_TIME if unfinished else reached[p] for p in self._graph.percentiles}

    def percentile_lows(
        self, name: str, low: int, inputs: Mapping[WatermarkName, int], pending: Pending
    ) -> dict[WatermarkName, int]:
        """What chained consumers know of the percentile low watermarks in this epoch."""
        lows: dict[WatermarkName, int] = {}
        for p in self._graph.percentiles:
            fast = variant(name, p)
            position = passed([pending], p)[0] if self._alone else MIN_TIME
            before = self._before.lows.get(fast, MIN_TIME)
            lows[fast] = percentile_watermark(inputs[fast], position, low, before)
        return lows

    def horizon(self, watermarks: Mapping[WatermarkName, int]) -> int:
        """The newest watermark of an injector: no pending timestamp behind it can matter in this epoch."""
        graph = self._graph
        return max(watermarks[variant(s.name, p)] for s in graph.sources for p in graph.percentiles)

    def _is_chained(self, sender: Sender) -> bool:
        return isinstance(sender, str) and self._graph.level_of[sender] == self._level

    def _held(self, name: str) -> int:
        """The oldest hold that chained producers had before this epoch, in whatever interval.

        Their low watermarks for this epoch are not known here but for this interval's, and at the end of an
        epoch a hold is all that can keep one behind its input: timers that were due have fired. A hold that
        is released meanwhile, here, still counts: others do not know of it, and no interval is to be ahead.
        Where there are no others, it does not count.
        """
        oldest = MAX_TIME
        for sender in self._graph.senders(name):
            if isinstance(sender, str) and self._is_chained(sender) and not self._before.drain:
                for first, hold in self._before.holds.get(sender, {}).items():
                    if not self._alone or first != self._first:
                        oldest = min(oldest, hold)
        return oldest
