"""The planner: the situation between two epochs in, the next `Plan` out.

An epoch is run if there is input, if the last one left work, if a timer or a record becomes
due, if the intervals were changed, or if its `Mode` asks for it. Otherwise there is no epoch.

An epoch that left work is continued before anything else happens (semantics 15): nothing new is read,
and neither the injectors' watermarks nor the wall time move; it drains if that one did.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from millwheel.model.names import WatermarkName
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.watermark.source import SourceMark
from millwheel.worker.plan import Interval, Plan, Range

_ELSEWHERE = -1  # the first tablet of no interval


class Mode(Enum):
    """What an epoch is for."""

    NORMAL = "normal"
    """Read input and run what is due; no epoch without work."""
    FORCED = "forced"
    """The same, and run without work too."""
    OVER_SKEW = "over skew"
    """The same as `NORMAL`, and read on if the limit of skew blocks all input."""
    FINISH = "finish"
    """Read nothing, and finish the work in flight with the watermarks as they are."""
    DRAIN = "drain"
    """Run, and ignore holds (semantics 9)."""
    END_HOLDS = "end holds"
    """The last epoch of a run that closes: no hook runs, and the remaining holds end."""

    @property
    def reads(self) -> bool:
        """Whether new input is read, and wall timers fire."""
        return self is not Mode.FINISH

    @property
    def runs(self) -> bool:
        """Whether there is an epoch without work."""
        return self in (Mode.FORCED, Mode.DRAIN, Mode.END_HOLDS)

    @property
    def drains(self) -> bool:
        """Whether holds are ignored."""
        return self in (Mode.DRAIN, Mode.END_HOLDS)


@dataclass(frozen=True)
class Limits:
    """The limits of an epoch."""

    compact_below: int
    """Records and timers up to which one task runs the whole graph; 0 or less: never."""
    due_limit: int
    budget: float
    """Seconds."""


@dataclass(frozen=True)
class Situation:
    """The input of a plan: the state between two epochs."""

    epoch: int
    """The last committed epoch."""
    now: int
    slots: int
    intervals: tuple[tuple[Interval, ...], ...]
    settled: bool
    """Whether the last epoch had these intervals, so that its reports apply to them."""
    ranges: tuple[Range, ...]
    """The input to read."""
    size: int
    """Its estimated number of records."""
    sources: dict[WatermarkName, SourceMark]
    ignored: dict[WatermarkName, list[str]]
    inputs: dict[str, int]
    """By computation: its input watermark."""
    lows: dict[WatermarkName, int]
    """By computation: its low watermark, and its percentiles."""
    holds: dict[str, dict[int, int]]
    """By computation and interval: the oldest hold."""
    pending: dict[str, int]
    continued: bool
    """Whether the last epoch left work: records, or due timers."""
    more_due: bool
    """Whether it left due timers."""
    left: int
    """The number of records it left."""
    draining: bool
    """Whether it ignored holds."""
    fired: int
    """The number of timers that fired in it."""
    due: bool
    """Whether injector watermarks make a timer or record due; not set with input."""
    timers: int
    """Timers and records that wait for a watermark, if any is due."""
    next_wall: int
    """When the next wall timer is due."""
    relogs: bool
    weighs: bool
    """Whether a wide epoch is to measure its tablets."""
    lookups: dict[str, int] = field(default_factory=dict)
    """By side table: its present version."""
    sinks: tuple[str, ...] = ()
    """The streams with sinks."""


def make_plan(situation: Situation, limits: Limits, mode: Mode) -> Plan | None:
    """The next epoch, or None without work."""
    if is_idle(situation, mode):
        return None
    compact = is_compact(situation, limits)
    return Plan(
        epoch=situation.epoch + 1,
        now=situation.now,
        slots=situation.slots,
        intervals=situation.intervals,
        ranges=situation.ranges,
        tasks=max((item.task for item in situation.ranges), default=-1) + 1,
        sources=situation.sources,
        ignored=situation.ignored,
        before=situation.inputs,
        lows=situation.lows,
        holds=_holds(situation),
        compact=compact,
        drain=mode.drains or (situation.continued and situation.draining),
        budget=limits.budget,
        due_limit=limits.due_limit,
        pending=situation.pending,
        relogs=situation.relogs,
        ends_holds=mode is Mode.END_HOLDS,
        weigh=situation.weighs and not compact,
        lookups=situation.lookups,
        sinks=situation.sinks,
    )


def is_idle(situation: Situation, mode: Mode) -> bool:
    """Whether there is no work. Changed intervals must report, though nothing is due."""
    wall = mode.reads and situation.next_wall <= situation.now
    work = situation.ranges or situation.continued or situation.due or wall
    return not work and not mode.runs and situation.settled


def is_compact(situation: Situation, limits: Limits) -> bool:
    """Whether one task runs the whole graph: cheaper than a shuffle if it is small.

    The previous epoch's timers are the estimate for this one; at the end of time all of them fire. If due
    timers were left, there are more than the limit.
    """
    if situation.more_due or limits.compact_below <= 0:
        return False
    ended = situation.due and all(mark.final for mark in situation.sources.values())
    expected = max(situation.size + situation.left + situation.fired, situation.timers if ended else 0)
    return expected <= limits.compact_below


def ceiling(lows: Mapping[str, int], max_skew: int | None, besides: Collection[str] = ()) -> int:
    """The newest timestamp that may be read: ``max_skew`` past the slowest one (8.4).

    ``besides``: computations that catch up, which do not count.

    >>> ceiling({"A": 50, "B": 20}, 10), ceiling({"A": 50, "B": 20}, None) == MAX_TIME
    (30, True)
    """
    slowest = min((low for name, low in lows.items() if name not in besides), default=MAX_TIME)
    if max_skew is None or slowest in (MIN_TIME, MAX_TIME):
        return MAX_TIME
    return min(slowest + max_skew, MAX_TIME)


def _holds(situation: Situation) -> dict[str, dict[int, int]]:
    """The holds by interval; after a change of layout, of none of the new ones."""
    if situation.settled:
        return situation.holds
    return {name: {_ELSEWHERE: min(found.values())} for name, found in situation.holds.items()}
