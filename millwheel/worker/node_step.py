"""One computation in a step: its inbox, its hooks, its watermarks, its changes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millwheel.model.batch import RecordBatch
from millwheel.model.folding import folding_of
from millwheel.model.graph import Edge, Graph
from millwheel.model.names import WatermarkName
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.store.base import Range, Snapshot
from millwheel.watermark.formula import Work
from millwheel.watermark.interval import IntervalWatermarks
from millwheel.watermark.percentile import NOTHING
from millwheel.worker.activity import Activity
from millwheel.worker.budget import Budget
from millwheel.worker.cache import Reading
from millwheel.worker.context import HookContext
from millwheel.worker.envelope import Section
from millwheel.worker.holds import EndedHolds
from millwheel.worker.in_order import Ordered
from millwheel.worker.inbox import Arrivals, Opened, backlog_range, gather
from millwheel.worker.keyed import KeyedRun
from millwheel.worker.pending import pending_of
from millwheel.worker.plan import Interval, Plan
from millwheel.worker.reorder_buffer import take_up
from millwheel.worker.report import NodeReport
from millwheel.worker.seen_ids import SeenIds, expired_range, relogged, retentions
from millwheel.worker.timer_index import Tablets, counters_range

if TYPE_CHECKING:
    from millwheel.worker.bloom import IdFilter
    from millwheel.worker.window_run import WindowRun

_FORGET = 4  # log entries of IDs expired in one step for each that it may add, so that it catches up


@dataclass
class Node:
    """A computation as a worker keeps it from step to step."""

    name: str
    number: int
    context: HookContext
    edges: Sequence[Edge]
    """Those to it."""
    retention: dict[str, int]
    """By injected input stream: how long its IDs are remembered."""
    filters: dict[int, IdFilter] = field(default_factory=dict)
    """By shard: the IDs that it has seen there."""

    def id_filter(self, shard: int) -> IdFilter:
        """The filter of the IDs seen in a shard."""
        if shard not in self.filters:
            from millwheel.worker.bloom import IdFilter  # imports NumPy, which most pipelines do not need

            self.filters[shard] = IdFilter(self.number)
        return self.filters[shard]

    def ranges(self, interval: Interval, now: int) -> list[Range]:
        """The ranges that every step reads, as far as known before its records."""
        mine = interval.tablets
        found = [backlog_range(self.number, mine), counters_range(self.number, mine)]
        if self.retention:
            found.append(expired_range(self.number, now, _FORGET * len(self.retention)))
        if interval.shard in self.filters:
            found += self.filters[interval.shard].news(now, retentions(self.retention))
        return found


@dataclass
class StepSetting:
    """What the computations of a level share in one attempt at a step."""

    graph: Graph
    plan: Plan
    interval: Interval
    marks: IntervalWatermarks
    budget: Budget
    activity: Activity
    order: random.Random | None
    reading: Reading | None = None


class NodeStep:
    """One computation, interval and epoch; collects ``puts`` and ``deletes``.

    With ``waits`` a sender has not done all of the epoch: then no clock moves, and no timer fires. In an
    epoch, records come first (semantics 5), and more of them will.
    """

    def __init__(
        self,
        step: StepSetting,
        node: Node,
        snapshot: Snapshot,
        watermarks: dict[WatermarkName, int],
        *,
        waits: bool,
    ) -> None:
        self._step = step
        self._node = node
        self._snapshot = snapshot
        self._watermarks = watermarks
        self._waits = waits
        self._in_order = step.graph.nodes[node.name].in_order
        self._before = step.plan.before.get(node.name, MIN_TIME)
        self._reached = step.marks.reached(node.name, watermarks)
        self._now_at = step.marks.input(node.name, self._reached, waits=waits)
        self._tablets = Tablets(node.number, step.interval.tablets, snapshot, step.plan.tablets)
        # In order, nothing is delivered before all records of this epoch have arrived.
        until = MIN_TIME if waits and self._in_order else self._now_at
        limit = None if step.plan.ends_holds else step.plan.due_limit
        self._waiting, self._bound = take_up(
            node.number, snapshot, self._tablets, until, limit, in_order=self._in_order
        )
        self._seen = SeenIds(node.number)
        self._ids: IdFilter | None = None
        self.puts: list[tuple[bytes, bytes]] = []
        self.deletes: list[bytes] = []
        self.diverted: list[tuple[str, RecordBatch]] = []
        self.lows: dict[WatermarkName, int] = {}
        """Its low watermark after the step, and the percentile ones in use."""
        self.unfinished = False
        """Whether it has not done all of the epoch."""

    def run(self, sections: Sequence[Section], local: Iterable[tuple[RecordBatch, str]]) -> NodeReport:
        """Runs the hooks on the records that were sent, or produced by chained ones."""
        name, number = self._node.name, self._node.number
        edges = self._step.graph.edges
        opened = [Opened(s.part, edges[s.edge].stream, *s.batch()) for s in sections]
        arrivals, taken = gather(
            number,
            self._step.interval.tablets,
            self._step.plan.tablets,
            self._snapshot,
            [o for o in opened if o.batch],
            self._waiting,
        )
        self.deletes += taken
        for batch, stream in local:
            arrivals.add_local(batch, stream)
        self._look_up_ids(arrivals)
        self._node.context.reset()
        self._step.activity.enter(lambda: name, self._node.context)
        # A section without records has partial aggregates.
        run = self._runner([blob for part in opened if not part.batch for blob in part.batch.values])
        ordered = Ordered(arrivals, self._before, self._bound) if self._in_order else None
        self._run_hooks(run, arrivals, ordered)
        self._keep_waiting(run, arrivals, ordered)
        self._move_watermarks(run)
        self._count(run, arrivals)
        self._collect(run)
        if ordered is None:
            self.puts += arrivals.backlog(run.left, number, self._step.plan.tablets)
        self.diverted = run.diverted
        return run.report

    def _look_up_ids(self, arrivals: Arrivals) -> None:
        """Finds which of the records may have been here before."""
        if arrivals.ids is None or not self._step.graph.nodes[self._node.name].exactly_once:
            return
        plan = self._step.plan
        self._ids = self._node.id_filter(self._step.interval.shard)
        self._ids.bring_up(self._snapshot, plan.epoch, plan.now, retentions(self._node.retention))
        self._seen.look_up(arrivals, self._snapshot, self._ids)

    def _runner(self, blobs: list[bytes]) -> KeyedRun | WindowRun:
        """The runner: on columns for a folding of windows, otherwise the hooks."""
        node, plan, context = self._node, self._step.plan, self._node.context
        low_before, fires = plan.lows.get(node.name, MIN_TIME), not self._waits
        folding = folding_of(context.computation)
        if folding is None:
            return KeyedRun(
                context,
                node.number,
                self._before,
                self._bound,
                low_before,
                plan.now,
                self._seen,
                self._tablets,
                self._step.budget,
                fires=fires,
                wall_bound=self._bound if self._bound < self._now_at else MAX_TIME,
            )
        # Imports NumPy, which most pipelines do not need.
        from millwheel.worker.window_run import WindowRun

        run = WindowRun(
            context,
            node.number,
            self._before,
            self._bound,
            low_before,
            self._seen,
            self._tablets,
            self._step.budget,
        )
        run.take(folding, blobs, fires=fires)
        return run

    def _run_hooks(self, run: KeyedRun | WindowRun, arrivals: Arrivals, ordered: Ordered | None) -> None:
        """Runs them; in a plan that ends holds it does that, and no hook runs."""
        plan = self._step.plan
        if plan.ends_holds:
            ended = EndedHolds(self._node.number, self._tablets, self._snapshot)
            run.report.holds_ended = ended.count
            self.puts += ended.puts
            self.deletes += ended.deletes
            return
        if ordered is not None and self._waiting is not None:
            assert isinstance(run, KeyedRun)
            run.admit(ordered, self._waiting.spans())
        run.run(self._snapshot, arrivals, plan.due_limit, self._step.order, ordered)

    def _keep_waiting(self, run: KeyedRun | WindowRun, arrivals: Arrivals, ordered: Ordered | None) -> None:
        """Stores the records that wait for the watermark, or for the next epoch."""
        report = run.report
        report.more_due |= self._bound < self._now_at and not self._waits
        self.unfinished = report.more_due or report.left > 0 or self._waits
        if self._waiting is not None:
            rest = [] if ordered is None else sorted([*ordered.waiting, *run.left])
            late = ordered.late if ordered is not None else set()
            self._waiting.keep(self._snapshot, arrivals, rest, late, self._step.plan.epoch)
            self.puts += self._waiting.puts
            self.deletes += self._waiting.deletes
        if self._in_order:
            report.next_record = self._tablets.first_waiting()

    def _move_watermarks(self, run: KeyedRun | WindowRun) -> None:
        """The computation's clock and its low watermark after the step (4.5)."""
        report, name, unfinished = run.report, self._node.name, self.unfinished
        # The backlog is not late when it is processed.
        report.input = self._before if unfinished else self._now_at
        report.next_timer, report.next_wall, report.oldest_hold = self._tablets.next_times(self._snapshot)
        work = Work(report.next_timer, report.next_record, report.oldest_hold)
        report.low = self._step.marks.low(name, self._reached, self._now_at, work, unfinished=unfinished)
        self.lows = {name: report.low}
        if self._step.graph.percentiles:
            self._move_percentiles(run)

    def _move_percentiles(self, run: KeyedRun | WindowRun) -> None:
        """The percentile low watermarks in use, and what is pending for them."""
        marks, plan, report, name = self._step.marks, self._step.plan, run.report, self._node.name
        pending = NOTHING
        if not self.unfinished:
            pending = pending_of(
                self._tablets,
                self._snapshot,
                self._node.number,
                dict(run.puts),
                self._waiting,
                bound=marks.horizon(self._watermarks),
                before=plan.pending.get(name, 0),
                lowest=min(self._step.graph.percentiles),
                holds=not plan.drain,
            )
        report.pending = list(pending)
        report.percentiles = marks.percentile_inputs(name, self._reached, unfinished=self.unfinished)
        self.lows |= marks.percentile_lows(name, report.low, report.percentiles, pending)

    def _count(self, run: KeyedRun | WindowRun, arrivals: Arrivals) -> None:
        """What the report has beside what the hooks did."""
        report = run.report
        report.counters = self._tablets.totals()
        if self._step.plan.weigh:
            report.weights = run.weights(self._tablets.weights(arrivals.keys))
        report.ids_filtered, report.ids_read = self._seen.filtered, self._seen.read
        if self._step.reading is not None:
            report.rows_cached, report.rows_read = self._step.reading.counts(self._node.number)
        if self._ids is not None:
            report.filter_bytes, report.filter_error = self._ids.bloom.size, self._ids.bloom.error

    def _collect(self, run: KeyedRun | WindowRun) -> None:
        """The changes of rows and timers, the new IDs, and those that are forgotten."""
        plan, interval, retention = self._step.plan, self._step.interval, self._node.retention
        self.puts += run.puts
        self.puts += self._tablets.writes()
        self.puts += self._seen.writes(plan.epoch, plan.now, interval.first, retention)
        self.deletes += run.deletes
        self.deletes += self._tablets.deletes()
        if not retention:
            return
        if plan.relogs:
            kept = max(retention.values())
            for old, new, value in relogged(
                self._node.number, self._snapshot, plan.epoch, plan.now, interval.tablets, kept
            ):
                self.deletes.append(old)
                self.puts.append((new, value))
        self.deletes += self._seen.expired(self._snapshot, plan.now, _FORGET * len(retention))
