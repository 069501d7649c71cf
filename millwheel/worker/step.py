"""The step: one interval in one epoch, read, run and committed in one atomic write (6.1).

1. Open the interval. A newer sequencer than ours: refuse. This epoch already there: answer from the
   checkpoint, run nothing.
2. For each computation of the level: drop duplicates, run the hooks key by key, collect the changes.
3. Write rows, timers, IDs, productions, report, epoch; the write looks at the sequencer again.
4. Only then do the productions leave; with *weak* productions (6.1.3), before.

`millwheel.worker.commit` has the order of the writes, and what a crash between any two of them leaves.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from millwheel.model.codec import pack
from millwheel.model.folding import folding_of
from millwheel.model.graph import Graph
from millwheel.model.names import WatermarkName
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.store.base import Range, Snapshot, SnapshotLost, Store, just
from millwheel.store.keyspace import checkpoint_key, interval_key
from millwheel.watermark.formula import Work
from millwheel.watermark.interval import Before, IntervalWatermarks
from millwheel.watermark.percentile import NOTHING
from millwheel.worker.activity import Activity
from millwheel.worker.budget import Budget
from millwheel.worker.cache import Cache, Reading, Token, before, not_kept
from millwheel.worker.commit import (
    AlreadyCommitted,
    Deferred,
    DeferredWrites,
    Outcome,
    ShardWrite,
    StepCommit,
    weak_levels,
)
from millwheel.worker.context import HookContext
from millwheel.worker.envelope import Section
from millwheel.worker.gather import Opened, gather, take_up
from millwheel.worker.holds import EndedHolds
from millwheel.worker.in_order import Ordered
from millwheel.worker.inbox import (
    SeenIds,
    backlog_range,
    expired_range,
    id_retention,
    relogged,
    retentions,
)
from millwheel.worker.keyed import KeyedRun
from millwheel.worker.pending import pending_of
from millwheel.worker.plan import Plan
from millwheel.worker.report import IntervalReport
from millwheel.worker.route import Router
from millwheel.worker.timer_index import Tablets, counters_range

if TYPE_CHECKING:
    from millwheel.worker.bloom import IdFilter
    from millwheel.worker.window_run import WindowRun

_FORGET = 4  # logs of IDs forgotten in one step for each that it may add: so it keeps up, and catches up


class Worker:
    """Runs steps of one graph against one store; lives as long as its process or its topology.

    The contexts, and with them the instances of the computations, are its soft state.
    """

    def __init__(
        self,
        graph: Graph,
        numbers: dict[str, int],
        store: Store,
        order: random.Random | None = None,
        clock: Callable[[], float] = time.perf_counter,
        cache: Cache | None = None,
    ) -> None:
        self.graph = graph
        self.activity = Activity()
        self.cache = cache
        self.store = store
        self.clock = clock
        self._numbers = numbers
        self._order = order
        self._contexts = {name: HookContext(node) for name, node in graph.nodes.items()}
        self._edges = {name: [edge for edge in graph.edges if edge.consumer == name] for name in graph.nodes}
        self.weak = weak_levels(graph)
        self._deferred = DeferredWrites()
        self._filters: dict[tuple[int, int], IdFilter] = {}
        self._retention = {name: id_retention(graph, edges) for name, edges in self._edges.items()}

    def step(
        self,
        plan: Plan,
        level: int,
        index: int,
        watermarks: dict[WatermarkName, int],
        sections: list[Section],
        *,
        unfinished: Collection[str] = (),
        defer: bool = False,
    ) -> Outcome:
        """Runs one interval, or answers from its checkpoint.

        ``unfinished`` are the senders that will go on with this epoch in the next one. With ``defer`` the
        write waits, as that of a weak level does, until somebody takes it: then the productions must not
        leave the process before it is made.
        """
        while True:
            try:
                return self._step(plan, level, index, watermarks, sections, unfinished, defer=defer)
            except SnapshotLost:  # nothing is written; and the store is waited for no longer than it says
                continue

    def _step(
        self,
        plan: Plan,
        level: int,
        index: int,
        watermarks: dict[WatermarkName, int],
        sections: list[Section],
        unfinished: Collection[str],
        *,
        defer: bool,
    ) -> Outcome:
        commit = StepCommit(self.store, plan, level, plan.intervals[level - 1][index])
        attempt = _Attempt(self, plan, level, index, unfinished)
        with commit.shard.snapshot() as snapshot:
            snapshot.prefetch(not_kept(self.cache, attempt.ranges()))
            found = commit.state(snapshot.get)
            if found.epoch == plan.epoch:
                return commit.checkpoint(snapshot)
            state = Token(found.sequencer, found.epoch, found.nonce)
            with before(self.cache, snapshot, plan, level, commit.interval, state) as attempt.reading:
                outcome = attempt.run(attempt.reading or snapshot, watermarks, sections)
        weak = level in self.weak
        puts, deletes = attempt.writes(outcome.without_productions() if weak else outcome)

        kept = attempt.reading is not None

        def keep() -> None:
            if attempt.reading is not None:
                attempt.reading.keep(attempt.token, puts, deletes)

        def write() -> None:
            commit.write(puts, deletes, kept=kept)
            keep()

        if weak or defer:
            parts = ShardWrite(commit.shard, puts, deletes, commit.guard, keep, kept)
            self._deferred.add(Deferred(plan.epoch, level, write, parts))
            return outcome
        try:
            write()
        except AlreadyCommitted:
            return commit.answer()
        return outcome

    def id_filter(self, computation: int, shard: int) -> IdFilter:
        """This worker's filter of the IDs that a computation has seen in a shard."""
        place = (computation, shard)
        if place not in self._filters:
            from millwheel.worker.bloom import IdFilter  # with NumPy, which most pipelines do without

            self._filters[place] = IdFilter(computation)
        return self._filters[place]

    def take_deferred(self, plan: Plan, first: int = 1) -> list[Deferred]:
        """The writes of an epoch that wait, from level ``first`` on: those of the last level first."""
        return self._deferred.take(plan.epoch, first)


class _Attempt:
    """One attempt at one step: pending changes in memory, nothing in the store."""

    def __init__(
        self, worker: Worker, plan: Plan, level: int, index: int, unfinished: Collection[str]
    ) -> None:
        self._worker = worker
        self._unfinished = set(unfinished)
        """Who has not done all of this epoch: in levels before anywhere, in this level in this interval."""
        self._left_over: list[str] = []
        self._pending: dict[str, list[Any]] = {}
        self._plan = plan
        self._level = level
        self._interval = plan.intervals[level - 1][index]
        self._marks = IntervalWatermarks(
            worker.graph,
            level,
            self._interval.first,
            Before(plan.before, plan.lows, plan.holds, plan.drain),
            alone=len(plan.intervals[level - 1]) == 1,
        )
        self._router = Router(worker.graph, plan, level, index)
        self._puts: list[tuple[bytes, bytes]] = []
        self._deletes: list[bytes] = []
        # A weak step may be run again after others have acted on its productions: it must do all the same
        # work then, so it is never cut short.
        self._budget = Budget(math.inf if level in worker.weak else plan.budget, worker.clock)
        self._report = IntervalReport(level, self._interval.first, self._interval.sequencer)
        nonce = b"" if worker.cache is None else os.urandom(8)
        self.token = Token(self._interval.sequencer, plan.epoch, nonce)
        self.reading: Reading | None = None

    def ranges(self) -> list[Range]:
        """What every step reads, and what can be known before its records are looked at."""
        worker, interval = self._worker, self._interval
        mine = range(interval.first, interval.last)
        found = [just(interval_key(self._level, interval.first))]
        for name in worker.graph.levels[self._level - 1]:
            number, retention = worker._numbers[name], worker._retention[name]
            found += (backlog_range(number, mine), counters_range(number, mine))
            if retention:
                found.append(expired_range(number, self._plan.now, _FORGET * len(retention)))
            ids = worker._filters.get((number, interval.shard))
            if ids is not None:
                found += ids.news(self._plan.now, retentions(retention))
        return found

    def run(
        self, snapshot: Snapshot, watermarks: dict[WatermarkName, int], sections: list[Section]
    ) -> Outcome:
        """Runs every computation of the level, in the order of the graph."""
        started = time.perf_counter()
        if self.reading is not None:
            self.reading.prefetch(self.ranges())
        by_consumer: dict[str, list[Section]] = {}
        for section in sections:
            by_consumer.setdefault(self._worker.graph.edges[section.edge].consumer, []).append(section)
        lows: dict[WatermarkName, int] = {}
        for name in self._worker.graph.levels[self._level - 1]:
            lows |= self._run_node(name, snapshot, {**watermarks, **lows}, by_consumer.get(name, []))
        self._router.finish()
        report = self._report
        report.streams = self._router.streams
        report.failed = self._router.failed
        report.seconds = time.perf_counter() - started
        value = report.to_value()
        return Outcome(
            lows, self._router.sections, self._router.batches, value, self._left_over, self._pending
        )

    def _run_node(
        self,
        name: str,
        snapshot: Snapshot,
        watermarks: dict[WatermarkName, int],
        sections: list[Section],
    ) -> dict[WatermarkName, int]:
        worker, plan = self._worker, self._plan
        graph = worker.graph
        context = worker._contexts[name]
        number = worker._numbers[name]
        before = plan.before.get(name, MIN_TIME)
        reached = self._marks.reached(name, watermarks)
        # Behind a sender that has not done all of the epoch no clock moves, and no timer fires: in an epoch,
        # records come first (semantics 5), and more of them will.
        waits = not self._unfinished.isdisjoint(graph.senders(name))
        now_at = self._marks.input(name, reached, waits=waits)
        mine = range(self._interval.first, self._interval.last)
        tablets = Tablets(number, mine, snapshot)
        in_order = graph.nodes[name].in_order
        # In order, nothing is delivered before all that is to come in this epoch has come.
        until = MIN_TIME if waits and in_order else now_at
        limit = None if plan.ends_holds else plan.due_limit
        waiting, bound = take_up(number, snapshot, tablets, until, limit, in_order=in_order)
        folding = folding_of(context.computation)
        opened = [Opened(s.tablet, graph.edges[s.edge].stream, *s.batch()) for s in sections]
        # A section without records has partial aggregates of them.
        blobs: list[bytes] = [blob for part in opened if not part.batch for blob in part.batch.values]
        arrivals, waited = gather(number, mine, snapshot, [part for part in opened if part.batch], waiting)
        for edge in worker._edges[name]:
            for batch in self._router.local.pop(edge.index, ()):
                arrivals.add_local(batch, edge.stream)
        seen = SeenIds(number)
        ids: IdFilter | None = None
        if graph.nodes[name].exactly_once and arrivals.ids is not None:
            ids = worker.id_filter(number, self._interval.shard)
            ids.bring_up(snapshot, plan.epoch, plan.now, retentions(worker._retention[name]))
            seen.look_up(arrivals, snapshot, ids)
        if self.reading is not None:
            self.reading.at(number, now_at)
        context.reset()
        worker.activity.enter(lambda: name, context)
        low_before = plan.lows.get(name, MIN_TIME)
        run: KeyedRun | WindowRun
        if folding is None:
            run = KeyedRun(
                context,
                number,
                before,
                bound,
                low_before,
                plan.now,
                seen,
                tablets,
                self._budget,
                fires=not waits,
                wall_bound=bound if bound < now_at else MAX_TIME,
            )
        else:
            from millwheel.worker.window_run import WindowRun  # with NumPy, which most pipelines do without

            run = WindowRun(context, number, before, bound, low_before, seen, tablets, self._budget)
            run.take(folding, blobs, fires=not waits)
        report = run.report
        ordered = Ordered(arrivals, before, bound) if in_order else None
        if plan.ends_holds:
            ended = EndedHolds(number, tablets, snapshot)
            report.holds_ended = ended.count
            self._puts += ended.puts
            self._deletes += ended.deletes
        else:
            if ordered is not None and waiting is not None:
                assert isinstance(run, KeyedRun)
                run.admit(ordered, waiting.spans())
            run.run(snapshot, arrivals, plan.due_limit, worker._order, ordered)
        report.more_due |= bound < now_at and not waits
        unfinished = report.more_due or report.left > 0 or waits
        if unfinished:
            self._unfinished.add(name)
            self._left_over.append(name)
        report.input = before if unfinished else now_at  # what was left is not late when its turn comes
        if waiting is not None:
            rest = [] if ordered is None else sorted([*ordered.waiting, *run.left])
            waiting.keep(snapshot, arrivals, rest, ordered.late if ordered is not None else set(), plan.epoch)
        if in_order:
            report.next_record = tablets.first_waiting()
        report.next_timer, report.next_wall, report.oldest_hold = tablets.next_times(snapshot)
        work = Work(report.next_timer, report.next_record, report.oldest_hold)
        report.low = self._marks.low(name, reached, now_at, work, unfinished=unfinished)
        fast: dict[WatermarkName, int] = {}
        if graph.percentiles:
            pending = NOTHING
            if not unfinished:
                pending = pending_of(
                    tablets,
                    snapshot,
                    number,
                    dict(run.puts),
                    waiting,
                    bound=self._marks.horizon(watermarks),
                    before=plan.pending.get(name, 0),
                    lowest=min(graph.percentiles),
                    holds=not plan.drain,
                )
            report.pending = list(pending)
            report.percentiles = self._marks.percentile_inputs(name, reached, unfinished=unfinished)
            fast = self._marks.percentile_lows(name, report.low, report.percentiles, pending)
            self._pending[name] = [report.percentiles, report.pending]
        report.counters = tablets.totals()
        if plan.weigh:
            report.weights = run.weights(tablets.weights(arrivals.keys))
        report.ids_filtered, report.ids_read = seen.filtered, seen.read
        if self.reading is not None:
            report.rows_cached, report.rows_read = self.reading.counts(number)
        if ids is not None:
            report.filter_bytes, report.filter_error = ids.bloom.size, ids.bloom.error
        self._report.nodes[name] = report
        self._puts += run.puts
        self._puts += tablets.writes()
        self._puts += seen.writes(plan.epoch, plan.now, self._interval.first, worker._retention[name])
        if ordered is None:
            self._puts += arrivals.backlog(run.left, number)
        if waiting is not None:
            self._puts += waiting.puts
            self._deletes += waiting.deletes
        self._deletes += run.deletes
        self._deletes += tablets.deletes()
        self._deletes += waited
        if plan.relogs and worker._retention[name]:
            kept = max(worker._retention[name].values())
            for old, new, value in relogged(number, snapshot, plan.epoch, plan.now, mine, kept):
                self._deletes.append(old)
                self._puts.append((new, value))
        if worker._retention[name]:
            self._deletes += seen.expired(snapshot, plan.now, _FORGET * len(worker._retention[name]))
        for stream, batch in (*context.outputs.items(), *run.diverted):
            self._router.send(stream, batch, name)
        return {name: report.low, **fast}

    def writes(self, outcome: Outcome) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """All changes of the step, its checkpoint among them."""
        interval = self._interval
        state = pack(list(self.token) if self.token.nonce else [interval.sequencer, self._plan.epoch])
        self._puts.append((interval_key(self._level, interval.first), state))
        self._puts.append((checkpoint_key(self._level, interval.first), outcome.to_bytes()))
        return self._puts, self._deletes
