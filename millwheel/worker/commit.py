"""Commits: the order of an epoch's writes, and what a crash leaves (6.1, 6.2).

**A step's write** is one transaction of one shard: rows, timers, IDs, checkpoint (report and productions),
and the interval's entry (sequencer, epoch). Its guard reads the entry again: a newer sequencer or epoch is
refused (`FencedError`); the same epoch means that another attempt was faster (`AlreadyCommitted`). So a step
is in the store whole or not at all, once, and a later attempt at it answers from the checkpoint.

When it is made, and when productions may leave the process:

1. *Strong* (6.1.2; a level of a wide epoch): the write, then productions and sinks.
   Crash before the write: nothing is stored, the step runs again. After it: the next attempt answers from the
   checkpoint, bit for bit the same, to receivers and sinks that may have it already.
2. *Weak* (6.1.3; a level of a wide epoch in which no computation has strong productions): productions and
   sinks; then every later level commits; then the write, without productions. It is deferred in memory
   (`DeferredWrites`), and made by the last level itself, or during the worker's next task (`settle_after`).
   Crash before the write: the driver finds the interval missing (`await_commits`) and runs the epoch again;
   this level runs on its old state, later ones answer from their checkpoints. After it: all receivers have
   its productions, and the next attempt answers with its report alone.
3. *Compact* (the whole epoch in one process, `commit_compact`): all levels run, with every write deferred and
   no production outside; then the writes of the strong levels from the first to the last, then the sinks,
   then the writes of the weak levels from the last to the first. The intervals of a strong level that are in
   one shard are one transaction, and of two strong levels that follow each other, so are the last shard of
   the first and the first shard of the second (`transactions`).
   A hook that raises, or a crash before the first write: nothing is stored. Between strong writes: the levels
   that are stored answer from their checkpoints, and the later ones, whose senders are all committed, run on
   their output. Between the last strong write and the last weak one: as in 2.
   If another attempt has committed an interval meanwhile, the epoch starts again from that one's
   commits (`EpochMoved`).

In each case the driver commits the epoch in its journal only after every interval has reported; for a crash
before that, see `millwheel.master.driver`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from millwheel.errors import FencedError
from millwheel.model.codec import pack_plain, unpack
from millwheel.model.graph import Graph
from millwheel.model.names import WatermarkName
from millwheel.store.base import Get, Guard, Shard, Snapshot, Store
from millwheel.store.keyspace import checkpoint_key, interval_key
from millwheel.worker.plan import Interval, Plan

_LONGEST_WAIT = 60.0  # seconds until a write that waits for later levels is dropped
_LOOK_EVERY = 0.002  # seconds
_MOST_MERGED = 50_000
"""Puts and deletes of a level in one transaction: a put of more takes longer than a second put, and a message
to PostgreSQL has an end."""


@dataclass
class Outcome:
    """The answer of a committed step, also to every later attempt (6.1.2)."""

    lows: dict[WatermarkName, int]
    sections: list[tuple[int, int, bytes]]
    batches: list[bytes]
    report: dict[str, Any]
    unfinished: list[str] = field(default_factory=list)
    """Computations with work left in this interval: the next epoch continues it."""
    pending: dict[str, list[Any]] = field(default_factory=dict)
    """By computation with a percentile in use: its input's, and what is pending."""

    def without_productions(self) -> Outcome:
        """What a weak level stores: when it commits, all receivers have its productions."""
        return Outcome(self.lows, [], [], self.report, self.unfinished, self.pending)

    def to_bytes(self) -> bytes:
        """Encodes it for the checkpoint."""
        return pack_plain(
            [self.lows, self.sections, self.batches, self.report, self.unfinished, self.pending]
        )

    @staticmethod
    def from_bytes(data: bytes) -> Outcome:
        """The inverse of `to_bytes`."""
        return Outcome(*unpack(data))


class AlreadyCommitted(Exception):
    """Another attempt at this step was faster."""


class EpochMoved(Exception):
    """Another attempt has committed a part of the epoch meanwhile."""


@dataclass
class IntervalState:
    """An interval's entry in the store: its last writer's sequencer, and its epoch."""

    sequencer: int
    epoch: int
    nonce: bytes = b""


@dataclass(frozen=True)
class StepCommit:
    """The commit of one interval in one epoch: its guard, its checkpoint, its write."""

    store: Store
    plan: Plan
    level: int
    interval: Interval

    @property
    def shard(self) -> Shard:
        """The shard of the interval."""
        return self.store.shards[self.interval.shard]

    def state(self, get: Get) -> IntervalState:
        """The interval's entry; one newer than the plan's is refused (6.2)."""
        plan, level, interval = self.plan, self.level, self.interval
        data = get(interval_key(level, interval.first))
        if data is None:
            return IntervalState(0, 0)
        state = IntervalState(*unpack(data))
        if state.sequencer > interval.sequencer or state.epoch > plan.epoch:
            raise FencedError(
                f"level {level}, tablets {interval.first} to {interval.last}: epoch {plan.epoch} came with "
                f"sequencer {interval.sequencer}, but the interval is at epoch {state.epoch} with sequencer "
                f"{state.sequencer}: another driver has taken it over"
            )
        return state

    def checkpoint(self, snapshot: Snapshot) -> Outcome:
        """The interval's answer when it committed this epoch."""
        data = snapshot.get(checkpoint_key(self.level, self.interval.first))
        if data is None:
            raise FencedError(
                f"level {self.level}, tablet {self.interval.first}: "
                "the checkpoint of a committed epoch is gone"
            )
        return Outcome.from_bytes(data)

    def guard(self, get: Get) -> None:
        """Refuses a write if the interval has changed since it was read."""
        if self.state(get).epoch == self.plan.epoch:
            raise AlreadyCommitted

    def answer(self) -> Outcome:
        """The checkpoint of another attempt that was faster."""
        with self.shard.snapshot() as snapshot:
            return self.checkpoint(snapshot)


@dataclass(frozen=True)
class StepWrite:
    """A step's atomic write, made at once, deferred, or merged with others."""

    epoch: int
    level: int
    shard: Shard
    puts: Sequence[tuple[bytes, bytes]]
    deletes: Sequence[bytes]
    guard: Guard
    done: Callable[[], None]
    """Called when it is durable."""
    kept: bool = False
    """Whether a cache keeps a copy."""

    def make(self) -> None:
        """Makes it, as a transaction of its own."""
        self.shard.write(self.puts, self.deletes, self.guard, kept=self.kept)
        self.done()


class DeferredWrites:
    """A worker's writes that wait for later levels, or the end of a compact epoch."""

    def __init__(self) -> None:
        self._waiting: list[StepWrite] = []

    def add(self, deferred: StepWrite) -> None:
        """Keeps a write until it is taken."""
        self._waiting.append(deferred)

    def take(self, epoch: int, first: int = 1) -> list[StepWrite]:
        """Takes the writes of an epoch from level ``first`` on, the last level first.

        Those of older epochs are dropped.
        """
        mine = [deferred for deferred in self._waiting if deferred.epoch == epoch]
        self._waiting = [deferred for deferred in mine if deferred.level < first]
        taken = [deferred for deferred in mine if deferred.level >= first]
        return sorted(taken, key=lambda deferred: -deferred.level)


def settle(deferred: Iterable[StepWrite]) -> None:
    """Makes deferred writes; drops those that another attempt has made already."""
    for one in deferred:
        with suppress(AlreadyCommitted):
            one.make()


def settle_after(store: Store, plan: Plan, levels: Iterable[int], deferred: Sequence[StepWrite]) -> bool:
    """Makes writes after other levels have committed; False: they did not commit."""
    if not await_commits(store, plan, levels, _LONGEST_WAIT):
        return False
    settle(deferred)
    return True


def await_commits(store: Store, plan: Plan, levels: Iterable[int], longest: float) -> bool:
    """Waits for the commits of levels; False: missing after ``longest`` seconds."""
    levels = tuple(levels)
    give_up = time.monotonic() + longest
    while not committed(store, plan, levels):
        if time.monotonic() > give_up:
            return False
        time.sleep(_LOOK_EVERY)
    return True


def commit_compact(
    plan: Plan, deferred: Sequence[StepWrite], weak: Sequence[int], deliver: Callable[[], None]
) -> None:
    """Commits an epoch that ran in one process; ``deliver`` writes to the sinks.

    ``deferred`` are its writes, those of the last level first.
    Strong levels commit one after the other, from the first: a receiver that has acted on productions must
    find their sender committed. Then the sinks get theirs, and weak levels commit, from the last.
    """
    for together in transactions([one for one in reversed(deferred) if one.level not in weak]):
        try:
            _make_together(together)
        except AlreadyCommitted as error:
            raise EpochMoved(f"epoch {plan.epoch}, level {together[0].level}") from error
    deliver()
    settle(one for one in deferred if one.level in weak)


def transactions(strong: Sequence[StepWrite]) -> list[list[StepWrite]]:
    """Groups the writes of strong levels, in order of levels, into transactions.

    The intervals of a level that are in one shard are one transaction: they send nothing to each other, so
    that it is as if one had been written just after the other. The shard that a level wrote last is written
    first by the next one, and both are one transaction: all senders of the later level are durable by then,
    or become so in it. With one shard the epoch is one transaction, which saves a put of object storage, or
    two disk syncs, for each of the others.
    """
    found: list[list[StepWrite]] = []
    for level in sorted({one.level for one in strong}):
        mine = [one for one in strong if one.level == level]
        places = {id(shard): place for place, shard in enumerate(one.shard for one in reversed(mine))}
        if found:
            places[id(found[-1][-1].shard)] = len(mine)
        mine.sort(key=lambda one: -places[id(one.shard)])
        for one in mine:
            if found and found[-1][-1].shard is one.shard and _may_join(found[-1], one):
                found[-1].append(one)
            else:
                found.append([one])
    return found


def _may_join(together: Sequence[StepWrite], one: StepWrite) -> bool:
    """Whether a write may be merged with others, before it, of its shard."""
    if together[-1].level < one.level:
        return True
    return sum(len(each.puts) + len(each.deletes) for each in (*together, one)) <= _MOST_MERGED


def _make_together(writes: Sequence[StepWrite]) -> None:
    """Makes writes of one shard in one transaction: if one is refused, all are."""
    if len(writes) == 1:
        writes[0].make()
        return

    def guard(get: Get) -> None:
        for one in writes:
            one.guard(get)

    # None deletes a key that another one puts: levels have computations of their own, and the intervals of a
    # level their own tablets, but for IDs, of which any interval of a shard deletes those that have expired.
    # One that has expired and is put again stays, as in a single write: deletes come before puts.
    puts = [put for one in writes for put in one.puts]
    deletes = [key for one in writes for key in one.deletes]
    writes[0].shard.write(puts, deletes, guard, kept=all(one.kept for one in writes))
    for one in writes:
        one.done()


def weak_levels(graph: Graph) -> tuple[int, ...]:
    """The levels in which no computation has strong productions."""
    return tuple(
        number
        for number, names in enumerate(graph.levels, start=1)
        if not any(graph.nodes[name].strong_productions for name in names)
    )


def committed(store: Store, plan: Plan, levels: Iterable[int]) -> bool:
    """Whether every interval of these levels has committed an epoch."""
    for level in levels:
        for interval in plan.intervals[level - 1]:
            step = StepCommit(store, plan, level, interval)
            with step.shard.snapshot() as snapshot:
                if step.state(snapshot.get).epoch < plan.epoch:
                    return False
    return True


def touched(store: Store, plan: Plan) -> bool:
    """Whether anything of an epoch is in the store, by any writer."""
    for level, intervals in enumerate(plan.intervals, start=1):
        for interval in intervals:
            with store.shards[interval.shard].snapshot() as snapshot:
                data = snapshot.get(interval_key(level, interval.first))
            if data is not None and unpack(data)[1] >= plan.epoch:
                return True
    return False
