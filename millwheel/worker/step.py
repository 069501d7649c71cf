"""The step: one interval in one epoch, committed in one atomic write (6.1).

1. Open the interval. A newer sequencer than ours: refuse. This epoch already stored: answer from the
   checkpoint, run nothing.
2. For each computation of the level: drop duplicates, run the hooks key by key, collect the changes.
3. Write rows, timers, IDs, productions, report, epoch; the write checks the sequencer again.
4. Only then do the productions leave; with *weak* productions (6.1.3), before.

`millwheel.worker.commit` states the order of the writes, and what a crash between any two of them leaves.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Collection
from typing import Any

from millwheel.model.codec import pack
from millwheel.model.graph import Graph
from millwheel.model.names import WatermarkName
from millwheel.store.base import Range, Snapshot, SnapshotLost, Store, just
from millwheel.store.keyspace import checkpoint_key, interval_key
from millwheel.watermark.interval import Before, IntervalWatermarks
from millwheel.worker.activity import Activity
from millwheel.worker.budget import Budget
from millwheel.worker.cache import Cache, Reading, before, not_kept
from millwheel.worker.cache_room import Token
from millwheel.worker.commit import (
    AlreadyCommitted,
    DeferredWrites,
    Outcome,
    StepCommit,
    StepWrite,
    weak_levels,
)
from millwheel.worker.context import HookContext
from millwheel.worker.envelope import Section
from millwheel.worker.node_step import Node, NodeStep, StepSetting
from millwheel.worker.plan import Plan
from millwheel.worker.report import IntervalReport
from millwheel.worker.route import Router
from millwheel.worker.seen_ids import id_retention
from millwheel.worker.side_tables import SideTables
from millwheel.worker.unseen_fields import UnseenFields


class Worker:
    """Runs steps of one graph on one store; lives as long as its process or topology.

    The contexts, and the instances of the computations in them, are its soft state.
    """

    def __init__(
        self,
        graph: Graph,
        numbers: dict[str, int],
        store: Store,
        order: random.Random | None = None,
        clock: Callable[[], float] = time.perf_counter,
        cache: Cache | None = None,
        home: str = "",
    ) -> None:
        self.graph = graph
        self.home = home
        self.activity = Activity()
        self.cache = cache
        self.store = store
        self.clock = clock
        self.order = order
        self.weak = weak_levels(graph)
        self.unseen = UnseenFields(graph)
        self.side_tables = SideTables(store)
        self._deferred = DeferredWrites()
        self.nodes: dict[str, Node] = {}
        for name, node in graph.nodes.items():
            edges = [edge for edge in graph.edges if edge.consumer == name]
            self.nodes[name] = Node(name, numbers[name], HookContext(node), edges, id_retention(graph, edges))

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

        ``unfinished`` are the senders that continue this epoch in the next one. With ``defer`` the
        write is deferred, as that of a weak level, until it is taken: then the productions must not
        leave the process before it is made.
        """
        while True:
            try:
                return self._step(plan, level, index, watermarks, sections, unfinished, defer=defer)
            except SnapshotLost:  # nothing is written; the store's timeout bounds the wait
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
        attempt = Attempt(self, plan, level, index, unfinished)
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

        def keep() -> None:
            if attempt.reading is not None:
                attempt.reading.keep(attempt.token, puts, deletes)

        kept = attempt.reading is not None
        write = StepWrite(plan.epoch, level, commit.shard, puts, deletes, commit.guard, keep, kept)
        if weak or defer:
            self._deferred.add(write)
            return outcome
        try:
            write.make()
        except AlreadyCommitted:
            return commit.answer()
        return outcome

    def take_deferred(self, plan: Plan, first: int = 1) -> list[StepWrite]:
        """An epoch's deferred writes from level ``first`` on, the last level first."""
        return self._deferred.take(plan.epoch, first)


class Attempt:
    """One attempt at a step: pending changes in memory, nothing in the store."""

    def __init__(
        self, worker: Worker, plan: Plan, level: int, index: int, unfinished: Collection[str]
    ) -> None:
        self._worker = worker
        self._unfinished = set(unfinished)
        """Computations with work left: of earlier levels anywhere, of this level here."""
        self._left_over: list[str] = []
        self._pending: dict[str, list[Any]] = {}
        self._plan = plan
        self._level = level
        self._interval = plan.intervals[level - 1][index]
        self._router = Router(
            worker.graph, plan, level, index, unseen=worker.unseen, side_tables=worker.side_tables
        )
        self._puts: list[tuple[bytes, bytes]] = []
        self._deletes: list[bytes] = []
        self._setting = StepSetting(
            worker.graph,
            plan,
            self._interval,
            IntervalWatermarks(
                worker.graph,
                level,
                self._interval.first,
                Before(plan.before, plan.lows, plan.holds, plan.drain),
                alone=len(plan.intervals[level - 1]) == 1,
            ),
            # A weak step may be run again after others have acted on its productions: it must do the same
            # work then, so its budget is unlimited.
            Budget(math.inf if level in worker.weak else plan.budget, worker.clock),
            worker.activity,
            worker.order,
        )
        self._report = IntervalReport(level, self._interval.first, self._interval.sequencer, home=worker.home)
        nonce = b"" if worker.cache is None else os.urandom(8)
        self.token = Token(self._interval.sequencer, plan.epoch, nonce)
        self.reading: Reading | None = None

    def ranges(self) -> list[Range]:
        """The ranges that every step reads, as far as known before its records."""
        found = [just(interval_key(self._level, self._interval.first))]
        for name in self._worker.graph.levels[self._level - 1]:
            found += self._worker.nodes[name].ranges(self._interval, self._plan.now)
        return found

    def run(
        self, snapshot: Snapshot, watermarks: dict[WatermarkName, int], sections: list[Section]
    ) -> Outcome:
        """Runs every computation of the level, in the order of the graph."""
        started = time.perf_counter()
        self._setting.reading = self.reading
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
        report.unseen_fields = self._router.unseen_fields
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
        """Runs a computation, applies its changes and sends its output."""
        node, senders = self._worker.nodes[name], self._worker.graph.senders(name)
        run = NodeStep(
            self._setting, node, snapshot, watermarks, waits=not self._unfinished.isdisjoint(senders)
        )
        local = self._router.local
        report = run.run(
            sections, [(batch, edge.stream) for edge in node.edges for batch in local.pop(edge.index, ())]
        )
        self._report.nodes[name] = report
        if run.unfinished:
            self._unfinished.add(name)
            self._left_over.append(name)
        if self._worker.graph.percentiles:
            self._pending[name] = [report.percentiles, report.pending]
        self._puts += run.puts
        self._deletes += run.deletes
        for stream, batch in (*node.context.outputs.items(), *run.diverted):
            self._router.send(stream, batch, name)
        return run.lows

    def writes(self, outcome: Outcome) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """All changes of the step, including its checkpoint."""
        interval = self._interval
        state = pack(list(self.token) if self.token.nonce else [interval.sequencer, self._plan.epoch])
        self._puts.append((interval_key(self._level, interval.first), state))
        self._puts.append((checkpoint_key(self._level, interval.first), outcome.to_bytes()))
        return self._puts, self._deletes
