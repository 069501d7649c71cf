"""The balancer: moves, splits and merges key intervals as the load changes (7.1).

Interval reports in, decisions out. It writes nothing and reads no clock: times are arguments.
`millwheel.master.assignment` applies a decision.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from millwheel.master.intervals import Cuts, cuts_of, even_intervals
from millwheel.model.keys import TABLETS
from millwheel.worker.plan import Interval, Plan
from millwheel.worker.report import IntervalReport

_WEIGH_EVERY = 0.5  # seconds: rare enough to cost nothing measurable, often enough to follow a change
_NEW_SHARE = 0.5  # weight of the last measurement in the average: one alone does not decide
_WEIGHINGS = 2  # measurements of a layout before it is changed again: one may be an outlier
_CHANGE_EVERY = 3.0  # seconds: a change costs two writes and an epoch with less exact holds
_LEAST_GAIN = 0.1  # of the epoch's time: less is noise
_LEAST_SECONDS = 0.02  # the least saving for an epoch, whatever its percentage
_INTERVAL = 0.005  # seconds: the cost of an interval's transaction (4 to 7 ms on LMDB)
_REST_AFTER = 60.0  # seconds without a wide epoch, after which intervals are merged
_FEW = 2  # intervals for each slot or shard that are not worth merging
_MOVES = 64  # of pieces in one change: each takes a pass over all tablets, and the next change continues
_ALIKE = 0.02  # estimates that differ by less count as equal; the size of the state decides


@dataclass(frozen=True)
class Decision:
    """Another layout for one level, and the reason."""

    level: int
    why: str
    cuts: Cuts


@dataclass
class _Level:
    """The measured load of a level, by tablet."""

    seconds: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    weighings: int = 0


class Balancer:
    """Decides, at most once in a few seconds, on a change that shortens epochs.

    A change saves at least the minimum below, and the same load never leads to a second one.
    """

    def __init__(self, slots: int, shards: int, cores: int | None = None, tablets: int = TABLETS) -> None:
        self._slots = slots
        self._tablets = tablets
        self._shards = shards
        self._cores = cores or slots
        self._levels: dict[int, _Level] = {}
        self._epoch = 0.0
        self._weighed: float | None = None
        self._changed: float | None = None
        self._wide: float | None = None
        self._news = False

    def weighs(self, now: float) -> bool:
        """Whether the next epoch, if it is wide, is to measure its tablets."""
        return self._slots > 1 and (self._weighed is None or now - self._weighed >= _WEIGH_EVERY)

    def observe(self, plan: Plan, reports: Sequence[IntervalReport], seconds: float, now: float) -> None:
        """Records a committed epoch."""
        if self._wide is None or not plan.compact:
            self._wide = now
        if plan.compact or not plan.weigh:
            return
        self._weighed = now - seconds
        self._news = True
        self._epoch = _mix(self._epoch or seconds, seconds)
        ends = {(level, i.first): i.last for level, part in enumerate(plan.intervals, 1) for i in part}
        by_level: dict[int, list[IntervalReport]] = {}
        for report in reports:
            by_level.setdefault(report.level, []).append(report)
        for level in range(1, len(plan.intervals) + 1):
            found = by_level.get(level, [])
            seen = self._levels.setdefault(level, _Level())
            fresh = _by_tablet(found, ends, self._tablets)
            old = seen.seconds if seen.weighings else fresh
            seen.seconds = [_mix(was, new) for was, new in zip(old, fresh, strict=True)]
            seen.bytes = [0] * self._tablets
            for report in found:
                for node in report.nodes.values():
                    for tablet, (_, size) in node.weights.items():
                        seen.bytes[tablet] += size
            seen.weighings += 1

    def changed(self, now: float, slots: int | None = None) -> None:
        """Records a change of layout: the load stays known, its effect is to be measured."""
        self._changed = now
        self._slots = slots or self._slots
        for level in self._levels.values():
            level.weighings = min(level.weighings, 1)

    def decide(self, intervals: Sequence[Sequence[Interval]], now: float) -> Decision | None:
        """The change that saves most, if it is worth its cost."""
        if self._slots < 2 or (self._changed is not None and now - self._changed < _CHANGE_EVERY):
            return None
        if self._wide is not None and now - self._wide >= _REST_AFTER:
            return self._rest(intervals)
        if not self._news:  # a search passes over all tablets: not in every epoch
            return None
        self._news = False
        best: tuple[float, Decision] | None = None
        for level, seen in self._levels.items():
            if seen.weighings < _WEIGHINGS:
                continue
            before = Estimate(intervals[level - 1], seen.seconds, self._slots, self._shards, self._cores)
            after = improve(before, seen.bytes)
            gain = before.seconds - after.seconds
            if gain < max(_LEAST_GAIN * self._epoch, _LEAST_SECONDS) or (best and gain <= best[0]):
                continue
            why = (
                f"slot {before.busiest} had {before.loads[before.busiest]:.2f} s of an epoch's "
                f"{sum(before.loads):.2f} s of work; now its busiest slot is to have {max(after.loads):.2f} s"
            )
            best = gain, Decision(level, why, after.cuts())
        return best[1] if best is not None else None

    def _rest(self, intervals: Sequence[Sequence[Interval]]) -> Decision | None:
        even = even_intervals(self._slots, self._shards, 0, self._tablets)
        for level, part in enumerate(intervals, 1):
            if len(part) > len(even):
                why = f"no large epoch for {_REST_AFTER:.0f} s: fewer intervals are fewer transactions"
                return Decision(level, why, cuts_of(even))
        return None


def _mix(old: float, new: float) -> float:
    return (1 - _NEW_SHARE) * old + _NEW_SHARE * new


def _by_tablet(
    reports: Sequence[IntervalReport], ends: dict[tuple[int, int], int], tablets: int
) -> list[float]:
    """The seconds of intervals, divided among their tablets by number of records."""
    seconds = [0.0] * tablets
    for report in reports:
        mine = range(report.first, ends[report.level, report.first])
        records = dict.fromkeys(mine, 0)
        for node in report.nodes.values():
            for tablet, (count, _) in node.weights.items():
                records[tablet] += count
        total = sum(records.values())
        for tablet, count in records.items():
            share = count / total if total else 1 / len(mine)  # timers only: divided evenly
            seconds[tablet] += report.seconds * share
    return seconds


class Estimate:
    """The time of a level in an epoch under an assignment of its tablets to slots."""

    def __init__(
        self,
        intervals: Sequence[Interval] | Sequence[int],
        seconds: Sequence[float],
        slots: int,
        shards: int,
        cores: int,
    ) -> None:
        self.slot_of: list[int] = []
        for part in intervals:
            own = [part] if isinstance(part, int) else [part.slot] * (part.last - part.first)
            self.slot_of += own
        self.costs, self.slots, self.shards, self.cores = list(seconds), slots, shards, cores
        self.loads = [0.0] * slots
        for slot, cost in zip(self.slot_of, self.costs, strict=True):
            self.loads[slot] += cost
        for first, _ in self.runs():
            self.loads[self.slot_of[first]] += _INTERVAL

    @property
    def seconds(self) -> float:
        """The level's time: that of the busiest slot, or of all if they share few cores."""
        return max(max(self.loads), sum(self.loads) / self.cores)

    @property
    def busiest(self) -> int:
        """The slot with the most work."""
        return max(range(self.slots), key=self.loads.__getitem__)

    def runs(self) -> list[tuple[int, int]]:
        """The intervals: runs of tablets of one slot in one shard."""
        tablets = len(self.slot_of)
        per_shard = tablets // self.shards
        firsts = [
            tablet
            for tablet in range(tablets)
            if tablet % per_shard == 0 or self.slot_of[tablet] != self.slot_of[tablet - 1]
        ]
        return list(zip(firsts, [*firsts[1:], tablets], strict=True))

    def cuts(self) -> Cuts:
        """The layout in its short form."""
        return [[first, self.slot_of[first]] for first, _ in self.runs()]

    def with_slot(self, first: int, last: int, slot: int) -> Estimate:
        """A copy with a run of tablets assigned to a slot."""
        slot_of = [*self.slot_of[:first], *[slot] * (last - first), *self.slot_of[last:]]
        return Estimate(slot_of, self.costs, self.slots, self.shards, self.cores)


def improve(estimate: Estimate, sizes: Sequence[int]) -> Estimate:
    """A layout with less work for the busiest slot, in the fewest changes."""
    for _ in range(_MOVES):
        found = _relieve(estimate, sizes)
        if found is None:
            break
        estimate = found
    return _tidy(estimate)


def _relieve(estimate: Estimate, sizes: Sequence[int]) -> Estimate | None:
    """Moves a part of the busiest slot's tablets to the idlest one, if both gain."""
    hot = estimate.busiest
    cold = min(range(estimate.slots), key=estimate.loads.__getitem__)
    top = estimate.loads[hot]
    pieces: list[tuple[float, int, int]] = []
    for first, last in estimate.runs():
        if estimate.slot_of[first] != hot:
            continue
        costs = estimate.costs[first:last]
        before = list(itertools.accumulate(costs))
        behind = list(itertools.accumulate(reversed(costs)))[::-1]
        for cut in range(first, last):
            pieces.append((before[cut - first], first, cut + 1))
            if cut > first:
                pieces.append((behind[cut - first], cut, last))
    # The best piece evens out the two slots. The cost of another interval is in the estimate.
    gap = (top - estimate.loads[cold]) / 2
    near = sorted(pieces, key=lambda piece: abs(piece[0] - gap))[:8]
    choices = [estimate.with_slot(first, last, cold) for _, first, last in near]
    after = [(max(choice.loads[hot], choice.loads[cold]), choice) for choice in choices]
    best = min((time for time, _ in after), default=top)
    if best >= top - _INTERVAL:
        return None
    alike = [choice for time, choice in after if time <= best + _ALIKE * top]
    return min(alike, key=lambda choice: (max(_bytes(choice, sizes)), len(choice.runs())))


def _bytes(estimate: Estimate, sizes: Sequence[int]) -> list[int]:
    """The bytes of state of each slot."""
    found = [0] * estimate.slots
    for slot, size in zip(estimate.slot_of, sizes, strict=True):
        found[slot] += size
    return found


def _tidy(estimate: Estimate) -> Estimate:
    """Merges idle intervals with a neighbour, if there are many and no slot suffers."""
    tablets = len(estimate.slot_of)
    per_shard = tablets // estimate.shards
    limit = max(estimate.loads)
    enough = _FEW * max(estimate.slots, estimate.shards)
    for first, last in sorted(estimate.runs(), key=lambda run: sum(estimate.costs[run[0] : run[1]])):
        if len(estimate.runs()) <= enough:
            break
        beside = [t for t in (first - 1, last) if 0 <= t < tablets and t // per_shard == first // per_shard]
        for tablet in beside:
            joined = estimate.with_slot(first, last, estimate.slot_of[tablet])
            if max(joined.loads) <= limit and len(joined.runs()) < len(estimate.runs()):
                estimate = joined
                break
    return estimate
