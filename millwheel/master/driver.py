"""The driver: plan, journal, run, commit, recover.

1. *Plan*: input of the injectors, up to the bound; without work, no epoch (`millwheel.master.planner`).
2. *Journal* the plan. From here on the epoch will be run, by this driver or the next one.
3. *Run* it. Intervals commit on their own (`millwheel.worker.commit`); one that has committed already
   answers from its checkpoint.
4. *Commit*: offsets, watermarks and totals, in one write. Then the injectors and sinks are notified.

A crash before 2 leaves nothing. Between 2 and 4, the next driver takes new sequencers and runs the plan
again as it was journaled. After 4, the epoch is over; an injector may be notified twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NoReturn

from millwheel.errors import FencedError
from millwheel.master import planner
from millwheel.master.assignment import Change, Layout
from millwheel.master.balancer import Balancer
from millwheel.master.clock import WallClock
from millwheel.master.collection import paused_collection
from millwheel.master.commit_entry import Commit
from millwheel.master.connections import Connections
from millwheel.master.ending import Drain, Ending, Start
from millwheel.master.executor import Executor
from millwheel.master.intervals import Cuts, check_slots
from millwheel.master.journal import Committed, Journal
from millwheel.master.observer import Observer
from millwheel.master.options import Options
from millwheel.master.planner import Limits, Mode, Situation
from millwheel.master.registry import enrol
from millwheel.master.reports import deliver, error_of, reports_of
from millwheel.master.sizing import Sizer, without_start
from millwheel.master.sources import Sources
from millwheel.master.status import Report, Totals
from millwheel.master.table_versions import Lookups
from millwheel.master.tally import Tally
from millwheel.model.graph import Graph
from millwheel.model.names import WatermarkName
from millwheel.model.time import MAX_TIME
from millwheel.store.base import Store
from millwheel.watermark.authority import WatermarkAuthority
from millwheel.worker.commit import touched, weak_levels
from millwheel.worker.plan import Plan, Range
from millwheel.worker.report import IntervalReport
from millwheel.worker.timer_index import HOLDS, WAITING_TOTAL, WALL_TIMERS, WATERMARK_TIMERS

logger = logging.getLogger("millwheel")

_STEP_BUDGET = 1.0  # seconds; at least the target of an epoch
_TARGET = 1.0  # seconds for a full epoch


class Driver:
    """One pipeline on one store. Not thread-safe: one thread runs its epochs."""

    def __init__(
        self,
        graph: Graph,
        store: Store,
        options: Options,
        *,
        clock: WallClock | Callable[[], int],
        owner: str,
        start: Start = Start.RECOVERY,
        ending: Ending = Ending.CLOSE,
        balancer: Balancer | None = None,
    ) -> None:
        """Takes over the store and the journal, and recovers the last driver's epoch."""
        self.base = graph
        """The pipeline as given; `graph` adds the sources of computations that catch up."""
        self.store = store
        self.options = options
        self.clock = clock if isinstance(clock, WallClock) else WallClock(clock)
        self.sizer = Sizer(_TARGET if options.target is None else options.target)
        self.observer: Observer | None = None
        self.job: int | None = None
        """Of the last epoch: see `Executor.job`."""
        self.begins = start is Start.RUN
        """Whether the run has not begun: it does with its first new plan."""
        self._ending = ending
        self._balancer = balancer
        if start is not Start.CHANGE:
            store.lock(owner, takeover=options.takeover)
        self._connections = Connections(graph)
        self.journal = Journal(store)
        sequencer = self.journal.acquire(graph, owner)
        try:
            self._connections.open(self.journal.id, follow=ending is Ending.NEVER)
            found = self.journal.recover()
            last = found.commit
            roster = enrol(self.journal, store, graph, found)
            graph = self.graph = roster.graph
            self.numbers = roster.numbers
            self.epoch = last.epoch
            self.clock.resume(last.now)
            self.authority = WatermarkAuthority(graph)
            self.authority.restore(roster.watermarks)
            self.sources = Sources(
                graph.sources, found.partitions, last.sources, graph.percentiles, ending.closes
            )
            self.authority.admit(self.sources.watermarks, roster.watermarks)
            # A computation that returns may have ended with another run.
            back = roster.watermarks.keys() - last.watermarks.keys()
            self.authority.lower(self.sources.watermarks, (), only=back)
            self.tally = Tally(Totals(last.totals))
            known = last.watermarks.keys() >= graph.nodes.keys()
            marks = None if not last.epoch else last.layout if known else []
            self.layout = Layout(graph, store, self.journal, options.slots or 1, sequencer, marks)
            self.sources.notify_again()
            self._connections.resume(self.journal.id, self.epoch)
            self.layout.fence(found.plan)
            self.lookups = Lookups(graph.side_tables, self.journal)
        except BaseException:
            self.let_go()
            raise
        self.recovering = found.plan  # until it is run again
        self._drain = Drain(last.draining, last.draining and self.authority.unfinished)

    def let_go(self) -> None:
        """Closes the injectors and the sinks that were opened."""
        self._connections.close()

    def now(self) -> int:
        """The wall time for the next epoch; it never goes back in this run."""
        now = self.clock.now()
        self.sources.pass_over(self.clock.jumped)
        return now

    def next_plan(self, mode: Mode = Mode.NORMAL) -> Plan | None:
        """The next epoch, or None without work; one that was begun is run again first."""
        if self.recovering is not None:
            plan = self.recovering.with_sequencer(self.layout.sequencer)
            self.clock.resume(plan.now)
            self.recovering = None
            return plan
        situation = self._situation(mode)
        found = planner.make_plan(situation, self._limits(), mode)
        if found is None:
            self._rest(situation)
        return found

    def _situation(self, mode: Mode) -> Situation:
        """Reads the clock and polls the injectors; first begins the run, if it is new."""
        authority, sources = self.authority, self.sources
        continued = authority.unfinished
        now = self.clock.time if continued else self.now()
        begins = self.begins and not continued
        reads = mode.reads and not continued
        if self.graph.side_tables:
            self.lookups.refresh(now, only_new=continued)
        if begins:
            sources.begin()
        if reads or not sources.polled:
            sources.poll(now)
        if begins:
            self._reopen()
        ranges = self._choose(mode) if reads else []
        marks = sources.committed() if continued else sources.marks(ranges, now)
        due = not ranges and authority.makes_due({name: mark.watermark() for name, mark in marks.items()})
        return Situation(
            epoch=self.epoch,
            now=now,
            slots=self.layout.slots,
            intervals=self.layout.intervals,
            settled=self.layout.settled,
            ranges=tuple(ranges),
            size=sources.size(ranges),
            sources=marks,
            ignored=sources.ignored,
            inputs=dict(authority.inputs),
            lows=dict[WatermarkName, int](authority.lows) | authority.percentiles,
            holds=authority.holds(),
            pending=authority.pending(),
            continued=continued,
            more_due=authority.more_due,
            left=authority.left,
            draining=self._drain.draining,
            fired=self.tally.fired,
            due=due,
            timers=sum(self._counted(WATERMARK_TIMERS, WAITING_TOTAL).values()) if due else 0,
            next_wall=authority.next_wall,
            relogs=self.clock.anew,
            weighs=self._balancer is not None and self._balancer.weighs(time.perf_counter()),
            lookups=self.lookups.versions(),
            sinks=tuple(sorted(self.graph.sinks)),
        )

    def _choose(self, mode: Mode) -> list[Range]:
        """The ranges that the next epoch reads."""
        skew = None if mode is Mode.OVER_SKEW else self.options.max_skew
        besides = self.graph.behind(self.graph.replays) if skew is not None else ()
        ceiling = planner.ceiling(self.authority.lows, skew, besides)
        return self.sources.choose(
            self.sizer.bound,
            self.layout.slots,
            self.options.compact_below,
            ceiling,
            careful=skew is not None,
        )

    def _limits(self) -> Limits:
        budget = self.options.step_budget
        if budget is None:
            budget = max(_STEP_BUDGET, self.sizer.aim)
        return Limits(self.options.compact_below, self.options.due_limit, budget)

    def _rest(self, situation: Situation) -> None:
        """Without an epoch: applies watermarks that moved to the graph; journals them."""
        reached = {name: mark.watermark() for name, mark in situation.sources.items()}
        self.authority.pass_on(reached)
        if reached != self.sources.watermarks or self.sources.empty_changed():
            self.sources.watermarks = reached
            self._journal_commit([])
        if self.observer is not None:
            self.observer.idle()

    def next_plan_to_the_end(self) -> Plan | None:
        """The next epoch of a run that ends by itself; at its close, holds are ignored."""
        plan = self.next_plan()
        closing = self._ending.closes and self.sources.exhausted
        if plan is None and closing and self.held:
            plan = self.next_plan(Mode.DRAIN)
        if plan is None and self.sources.held_back:
            plan = self.next_plan(Mode.OVER_SKEW)
        if plan is None and closing and self._unreleased:
            plan = self.next_plan(Mode.END_HOLDS)
        return plan

    @property
    def ended(self) -> bool:
        """Whether such a run is over; valid after a plan was requested and was None."""
        return self.sources.exhausted and not (self._ending.closes and self.held)

    def conclude(self) -> None:
        """Journals how far event time was, as the last write of a run that closes (9)."""
        if self._ending.closes:
            lowered = self.sources.end()
            self.authority.lower(self.sources.watermarks, lowered)
            self._journal_commit([])

    def _reopen(self) -> None:
        """At the start of a run: reopens injectors that ended but have more input.

        The journal has such an end if the last run was stopped, or died before it had concluded.
        """
        self.begins = False
        lowered = self.sources.reopen()
        if lowered:
            self._drain.draining = False  # event time continues, and holds count again
        if self.authority.lower(self.sources.watermarks, lowered) or lowered:
            self._journal_commit([])

    def run(self, plan: Plan, executor: Executor) -> list[IntervalReport]:
        """Journals, runs and commits one epoch."""
        moments = [time.perf_counter()]
        self.journal.plan(plan, self.graph)
        moments.append(time.perf_counter())
        frames = executor.execute(plan)
        self.job = executor.job
        error = error_of(frames)
        if error is not None:
            self._fail(plan, error)
        with paused_collection():
            reports = reports_of(plan, frames)
        moments.append(time.perf_counter())
        deliver(self.graph, plan.epoch, reports)
        moments.append(time.perf_counter())
        with paused_collection():
            self._commit(plan, reports)
        moments.append(time.perf_counter())
        records, spent = sum(report.records_in for report in reports), moments[-1] - moments[0]
        waiting = sum(self.sources.lag().values()) if records >= self.sizer.bound // 2 else 0
        first = self.tally.epochs == 1
        self.sizer.learn(records, without_start(spent, reports) if first else spent, waiting)
        if self.observer is not None:
            self.observer.epoch(plan, reports, moments)
        if self._balancer is not None:
            self._balancer.observe(plan, reports, spent, moments[-1])
            settled = self.layout.settled
            decision = self._balancer.decide(self.layout.intervals, moments[-1]) if settled else None
            if decision is not None:
                self.lay_out({decision.level: (decision.cuts, decision.why)})
        return reports

    def lay_out(self, levels: dict[int, tuple[Cuts, str]]) -> None:
        """Changes the intervals of levels, between two epochs."""
        self._changed(self.layout.change(levels, self.epoch, self.clock.time))

    def rescale(self, slots: int) -> None:
        """Uses another number of slots from the next epoch on."""
        check_slots(slots, self.store.tablets)
        if slots != self.layout.slots:
            self._changed(self.layout.rescale(slots, self.epoch, self.clock.time))

    def _changed(self, changes: list[Change]) -> None:
        for change in changes:
            self.tally.totals.count_change(change.moved, change.split, change.merged)
            logger.info("level %d: %s", change.level, change.why)
        if self._balancer is not None:
            self._balancer.changed(time.perf_counter(), self.layout.slots)

    def _fail(self, plan: Plan, error: BaseException) -> NoReturn:
        """Raises a task's error. A plan of which nothing is in the store is removed.

        So the next start may plan again, over input that was fixed. Otherwise the plan stays, and the
        next start runs it again: what is in the store came from these very ranges. Weak productions may
        have reached a sink though nothing is in the store.
        """
        if isinstance(error, FencedError):
            raise FencedError(f"{error}: {self.journal.owner()}") from error
        if not touched(self.store, plan) and not weak_levels(self.graph):
            self.journal.forget_plan()
        raise error

    def _commit(self, plan: Plan, reports: list[IntervalReport]) -> None:
        self.tally.add(plan.now, reports)
        for report in reports:
            for name, node in report.nodes.items():
                filtered = self.tally.filter(name, report.first)
                self.authority.report(name, report.first, node.mark(report.sequencer, filtered))
        changed = self.sources.commit(plan, reports)
        layout = {
            name: {i.first for i in plan.intervals[self.graph.level_of[name] - 1]}
            for name in self.graph.nodes
        }
        self.tally.keep(layout)
        stood = self.authority.marks()
        self.authority.publish(layout)
        self.authority.pass_on(self.sources.watermarks)
        self.epoch = plan.epoch
        self._drain.committed(
            drains=plan.drain, unfinished=self.authority.unfinished, moved=self.authority.marks() != stood
        )
        self.layout.ran(plan)
        self._journal_commit(changed)
        self.sources.notify(changed)
        self._connections.commit(self.epoch)

    def _journal_commit(self, partitions: list[Committed]) -> None:
        """Journals the end of an epoch, or watermarks that moved without one."""
        commit = Commit(
            epoch=self.epoch,
            now=self.clock.time,
            watermarks=self.authority.computations(),
            sources=self.sources.watermarks,
            totals=self.tally.totals.value,
            layout=self.layout.marks() if self.layout.settled else [],
            holders=self.sources.holders,
            draining=self._drain.draining,
        )
        self.journal.commit(commit, partitions, self.observer.notes() if self.observer is not None else ())

    @property
    def settled(self) -> bool:
        """Whether nothing is due without new input.

        No timer was left, and none becomes due by reports that the intervals of the last epoch did not
        have of each other yet.
        """
        if self.authority.unfinished:
            return False
        return not self.authority.makes_due(self.sources.watermarks)

    @property
    def held(self) -> bool:
        """Whether something holds the watermarks though the injectors are exhausted."""
        return not self._drain.at_rest and any(mark < MAX_TIME for mark in self.authority.marks().values())

    @property
    def _unreleased(self) -> int:
        return sum(self._counted(HOLDS).values())

    def _counted(self, *counters: int) -> dict[str, int]:
        """By computation: the sum of some counters of its intervals."""
        return {name: sum(self.authority.counter(name, i) for i in counters) for name in self.graph.nodes}

    def report(self) -> Report:
        """The counts since this driver started, and its current state."""
        report = self.tally.report(self.graph)
        report.low_watermarks = dict(self.authority.lows)
        report.input_watermarks = dict(self.authority.inputs)
        report.pending_wall_timers = sum(self._counted(WALL_TIMERS).values())
        report.waiting = self._counted(WAITING_TOTAL)
        report.idle_partitions = {str(name): found for name, found in self.sources.idle.items()}
        report.lag = self.sources.lag()
        report.changes = self.layout.changes
        report.lookups = self.lookups.status()
        if self._drain.drained or self.tally.holds_ended:
            report.unreleased_holds = self.tally.holds_ended + self._unreleased
        return report

    def close(self) -> None:
        """Closes the injectors, the sinks and the store."""
        try:
            if self.observer is not None:
                self.observer.close()
            self.let_go()
        finally:
            self.store.close()
