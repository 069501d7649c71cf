"""The driver: plan, journal, run, commit, recover.

1. *Plan*: what the injectors have, up to the bound; nothing to do, no epoch.
2. *Journal* the plan. From here on the epoch will be run, by this driver or the next one.
3. *Run* it. Intervals commit on their own; one that already has answers from its checkpoint.
4. *Commit*: offsets, watermarks and totals, in one write. Then the injectors are told.

A crash before 2 leaves nothing. Between 2 and 4, the next driver takes new sequencers and runs the plan
again as it was journaled. After 4, the epoch is over; an injector may be told twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NoReturn

from millwheel.errors import EngineError, FencedError
from millwheel.master.assignment import Change, Layout
from millwheel.master.balancer import Balancer
from millwheel.master.clock import WallClock
from millwheel.master.delivery import deliver
from millwheel.master.executor import Executor
from millwheel.master.hot_keys import HotKeys
from millwheel.master.intervals import Cuts, check_slots
from millwheel.master.journal import Committed, Journal
from millwheel.master.observer import Observer
from millwheel.master.planning import due_everywhere
from millwheel.master.registry import enrol
from millwheel.master.sizing import Sizer, without_start
from millwheel.master.sources import Sources
from millwheel.master.status import Report, Totals
from millwheel.master.watermark_reports import interval_mark
from millwheel.model.graph import Graph
from millwheel.model.injector import Injector
from millwheel.model.names import WatermarkName
from millwheel.model.sink import Sink
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.store.base import Store
from millwheel.watermark.authority import WatermarkAuthority
from millwheel.worker.commit import touched, weak_levels
from millwheel.worker.envelope import Frame
from millwheel.worker.epoch import load_error
from millwheel.worker.plan import Interval, Plan, Range
from millwheel.worker.report import IntervalReport
from millwheel.worker.timer_index import HOLDS, WAITING_TOTAL, WALL_TIMERS

logger = logging.getLogger("millwheel")

_ELSEWHERE = -1  # the first tablet of no interval

DUE_LIMIT = 100_000  # keys: a hundred megabytes or so of rows and productions in a worker's memory

_STEP_BUDGET = 1.0  # seconds, and as long as an epoch is to take


class Driver:
    """One pipeline on one store. Not thread-safe: one thread runs its epochs."""

    def __init__(
        self,
        graph: Graph,
        store: Store,
        *,
        slots: int,
        clock: WallClock | Callable[[], int],
        owner: str,
        target: float = 1.0,
        longest: float | None = None,
        follow: bool = False,
        due_limit: int = DUE_LIMIT,
        max_skew: int | None = None,
        step_budget: float | None = None,
        compact_below: int = 4_000,
        takeover: bool = False,
        locked: bool = False,
        balancer: Balancer | None = None,
        closes: bool = True,
        begins: bool = False,
    ) -> None:
        """``closes``: whether event time ends where the injectors do; ``begins``: whether a run does here."""
        self.graph = graph
        self.store = store
        self.sizer = Sizer(target, longest)
        self.clock = clock if isinstance(clock, WallClock) else WallClock(clock)
        self._due_limit = due_limit
        self._max_skew = max_skew
        self._step_budget = step_budget
        self._compact_below = compact_below
        self._fired = 0
        self._filters: dict[tuple[str, int], tuple[int, float]] = {}
        self._balancer = balancer
        self.hot = HotKeys()
        self.observer: Observer | None = None
        self.changes_at_start: list[str] = []
        self.job: int | None = None
        """Of the last epoch: see `Executor.job`."""
        if not locked:
            store.lock(owner, takeover=takeover)
        self._opened: list[Injector | Sink] = []
        self.base = graph
        """The pipeline as it was given; `graph` has the sources of those that catch up, too."""
        self.journal = Journal(store)
        sequencer = self.journal.acquire(graph, owner)
        try:
            self._open(follow)
            found = self.journal.recover()
            roster = enrol(self.journal, store, graph, found)
            graph = self.graph = roster.graph
            self.numbers = roster.numbers
            self.epoch = found.epoch
            self.clock.resume(found.now)
            self.authority = WatermarkAuthority(graph)
            self.authority.restore(roster.watermarks)
            self.sources = Sources(graph.sources, found.partitions, found.sources, graph.percentiles, closes)
            self.authority.admit(self.sources.watermarks, roster.watermarks)
            back = roster.watermarks.keys() - found.watermarks.keys()  # it may have ended with another run
            self.authority.lower(self.sources.watermarks, (), only=back)
            self.totals = Totals(found.totals)
            self.baseline = self.totals.copy()
            known = found.watermarks.keys() >= graph.nodes.keys()
            marks = None if not found.epoch else found.layout if known else []
            self.layout = Layout(graph, store, self.journal, slots, sequencer, marks)
            self.sources.tell_again()
            for sink in self._sinks():
                sink.begin(self.journal.id, self.epoch)
            self.layout.fence(found.plan)
        except BaseException:
            self.let_go()
            raise
        self._caught_up_first = graph.behind(graph.replays)
        self.recovering = found.plan  # until it is run again
        self.holds_ended = 0  # that nobody had released, with the run
        self._closes = closes
        self.begins = begins
        """Whether the run is yet to begin: it does with the first plan that is a new one."""
        self._draining = found.draining
        """Whether the last epoch did not heed holds: one that continues it does not either."""
        self._drained = found.draining and self.authority.unfinished
        self._at_rest = False
        """Whether an epoch that drains has moved nothing, so that no other one will."""
        self._started = False

    def _open(self, follow: bool) -> None:
        """Opens injectors and sinks, and tells the injectors whose they are."""
        for source in self.base.sources:
            self._opened.append(source.injector)
            source.injector.open(follow=follow)
        for sink in self._sinks():
            self._opened.append(sink)
            sink.open()
        for source in self.base.sources:
            source.injector.begin(self.journal.id, str(source.name))

    def let_go(self) -> None:
        """Lets go of the injectors and the sinks that were opened."""
        while self._opened:
            self._opened.pop().close()

    def _sinks(self) -> list[Sink]:
        return [sink for sinks in self.graph.sinks.values() for sink in sinks]

    @property
    def slots(self) -> int:
        """In how many pieces the key space is worked on at once."""
        return self.layout.slots

    @property
    def sequencer(self) -> int:
        """The newest: what is changed or taken over next gets the one behind it."""
        return self.layout.sequencer

    @property
    def intervals(self) -> tuple[tuple[Interval, ...], ...]:
        """By level: the intervals of the next epoch."""
        return self.layout.intervals

    def now(self) -> int:
        """The wall time for the next epoch; it does not go back in this run, whatever the clock does."""
        now = self.clock.now()
        self.sources.pass_over(self.clock.jumped)
        return now

    def next_plan(
        self,
        *,
        drain: bool = False,
        force: bool = False,
        over_skew: bool = False,
        read: bool = True,
        ends_holds: bool = False,
    ) -> Plan | None:
        """The next epoch, or None where there is nothing to do, unless it is forced.

        An epoch that drains does not heed holds any more (semantics 9); one over the skew reads on where
        the limit has brought everything to a stand. Without ``read`` only what is in flight is finished,
        with the watermarks as they are.

        An epoch that left something is continued before anything else happens (semantics 15): nothing new
        is read, and neither the injectors' watermarks nor the wall time move.
        """
        if self.recovering is not None:
            plan = self.recovering.with_sequencer(self.sequencer)
            self.clock.resume(plan.now)
            self.recovering = None
            return plan
        wait, left = self.authority.more_due, self.authority.left
        continued = wait or left > 0
        now = self.clock.time if continued else self.now()
        begins = self.begins and not continued
        if begins:
            self.sources.begin()
        if (read and not continued) or not self.sources.polled:
            self.sources.poll(now)
        if begins:
            self._reopen()
        ranges: list[Range] = []
        if read and not continued:
            ceiling = MAX_TIME if over_skew else self._ceiling()
            limited = self._max_skew is not None and not over_skew
            ranges = self.sources.choose(
                self.sizer.bound, self.slots, self._compact_below, ceiling, careful=limited
            )
        marks = self.sources.committed() if continued else self.sources.marks(ranges, now)
        due = False
        if not ranges:
            reached = {name: mark.watermark() for name, mark in marks.items()}
            due = self.authority.makes_due(reached)
            wall = read and self.authority.next_wall <= now
            idle = not (due or continued or drain or force or wall)
            if idle and self.layout.settled:
                self.authority.pass_on(reached)
                self._note_watermarks(reached)
                if self.observer is not None:
                    self.observer.idle()
                return None
        tasks = max((r.task for r in ranges), default=-1) + 1
        estimate = self.sources.size(ranges) + left
        jump = due_everywhere(marks, self.authority) if due else 0
        compact = not wait and 0 < self._compact_below >= max(estimate + self._fired, jump)
        return Plan(
            epoch=self.epoch + 1,
            now=now,
            slots=self.slots,
            intervals=self.intervals,
            ranges=tuple(ranges),
            tasks=tasks,
            sources=marks,
            ignored=self.sources.ignored,
            before=dict(self.authority.inputs),
            lows=dict[WatermarkName, int](self.authority.lows) | self.authority.percentiles,
            holds=self._holds(),
            compact=compact,
            drain=drain or (continued and self._draining),
            budget=max(_STEP_BUDGET, self.sizer.aim) if self._step_budget is None else self._step_budget,
            due_limit=self._due_limit,
            pending=self.authority.pending(),
            relogs=self.clock.anew,
            ends_holds=ends_holds,
            weigh=not compact and self._balancer is not None and self._balancer.weighs(time.perf_counter()),
        )

    def next_plan_to_the_end(self) -> Plan | None:
        """The next epoch of a run that ends by itself; where it closes, holds are not heeded at its end."""
        plan = self.next_plan()
        closing = self._closes and self.exhausted
        if plan is None and closing and self.held:
            plan = self.next_plan(drain=True)
        if plan is None and self.sources.held_back:
            plan = self.next_plan(over_skew=True)
        if plan is None and closing and self._unreleased:
            plan = self.next_plan(drain=True, ends_holds=True)
        return plan

    @property
    def ended(self) -> bool:
        """Whether such a run has nothing more to do, known after a plan was asked for and there was none."""
        return self.exhausted and not (self._closes and self.held)

    def conclude(self) -> None:
        """Journals where event time really was, as the last thing of a run that closes (semantics 9)."""
        if self._closes:
            lowered = self.sources.end()
            self.authority.lower(self.sources.watermarks, lowered)
            self._journal_commit([])

    def _reopen(self) -> None:
        """Takes back, as a run begins, that an injector is at its end, where it goes on all the same.

        That is in the journal if the last run was stopped, or died before it had concluded.
        """
        self.begins = False
        lowered = self.sources.reopen()
        self._draining = self._draining and not lowered  # event time goes on, and holds count again
        if self.authority.lower(self.sources.watermarks, lowered) or lowered:
            self._journal_commit([])

    def _holds(self) -> dict[str, dict[int, int]]:
        """The holds by interval; where the layout has just changed, they are in none of the new ones."""
        holds = self.authority.holds()
        if self.layout.settled:
            return holds
        return {name: {_ELSEWHERE: min(found.values())} for name, found in holds.items()}

    def _ceiling(self) -> int:
        """The newest timestamp that may be read: so far ahead of the slowest computation (8.4)."""
        lows = self.authority.lows
        slowest = min((lows[name] for name in lows if name not in self._caught_up_first), default=MAX_TIME)
        if self._max_skew is None or slowest in (MIN_TIME, MAX_TIME):
            return MAX_TIME
        return min(slowest + self._max_skew, MAX_TIME)

    def _note_watermarks(self, reached: dict[WatermarkName, int]) -> None:
        """Journals watermarks that moved while there was nothing to run, and injectors without input."""
        if reached != self.sources.watermarks or self.sources.empty_changed():
            self.sources.watermarks = reached
            self._journal_commit([])

    def run(self, plan: Plan, executor: Executor) -> list[IntervalReport]:
        """Journals, runs and commits one epoch."""
        moments = [time.perf_counter()]
        self.journal.plan(plan, self.graph)
        moments.append(time.perf_counter())
        frames = executor.execute(plan)
        self.job = executor.job
        reports = self._reports(plan, frames)
        moments.append(time.perf_counter())
        deliver(self.graph, plan, reports)
        moments.append(time.perf_counter())
        self._commit(plan, reports)
        moments.append(time.perf_counter())
        records = sum(report.records_in for report in reports)
        waiting = sum(self.sources.lag().values()) if records >= self.sizer.bound // 2 else 0
        spent = moments[-1] - moments[0]
        self.sizer.learn(records, spent if self._started else without_start(spent, reports), waiting)
        self._started = True
        if self.observer is not None:
            self.observer.epoch(plan, reports, moments)
        if self._balancer is not None:
            self._balance(plan, reports, moments)
        return reports

    def _balance(self, plan: Plan, reports: list[IntervalReport], moments: list[float]) -> None:
        assert self._balancer is not None
        self._balancer.observe(plan, reports, moments[-1] - moments[0], moments[-1])
        decision = self._balancer.decide(self.intervals, moments[-1]) if self.layout.settled else None
        if decision is not None:
            self.lay_out({decision.level: (decision.cuts, decision.why)})

    def lay_out(self, levels: dict[int, tuple[Cuts, str]]) -> None:
        """Gives levels other intervals, each for a reason, between two epochs."""
        self._changed(self.layout.change(levels, self.epoch, self.clock.time))

    def rescale(self, slots: int) -> None:
        """Works with another number of slots from the next epoch on."""
        check_slots(slots)
        if slots != self.slots:
            self._changed(self.layout.rescale(slots, self.epoch, self.clock.time))

    def _changed(self, changes: list[Change]) -> None:
        for change in changes:
            self.totals.count_change(change.moved, change.split, change.merged)
            logger.info("level %d: %s", change.level, change.why)
        if self._balancer is not None:
            self._balancer.changed(time.perf_counter(), self.slots)

    def _reports(self, plan: Plan, frames: list[Frame]) -> list[IntervalReport]:
        for frame in frames:
            if frame.error is not None:
                self._fail(plan, load_error(frame.error))
        reports = [IntervalReport.from_value(value) for frame in frames for value in frame.reports]
        expected = plan.tasks + sum(len(level) for level in plan.intervals)
        if len(reports) != expected:
            raise EngineError(
                f"epoch {plan.epoch}: {len(reports)} reports came back instead of {expected}; "
                "it is not committed and will be run again"
            )
        return reports

    def _fail(self, plan: Plan, error: BaseException) -> NoReturn:
        """Raises what a task met. A plan of which nothing is in the store is forgotten.

        So the next start may plan anew, over input that was mended. Otherwise the plan stays, and the
        next start runs it again: what is in the store came from these very ranges. Weak productions may
        have reached a sink though nothing is in the store.
        """
        if isinstance(error, FencedError):
            raise FencedError(f"{error}: {self.journal.owner()}") from error
        if not touched(self.store, plan) and not weak_levels(self.graph):
            self.journal.forget_plan()
        raise error

    def _commit(self, plan: Plan, reports: list[IntervalReport]) -> None:
        fired = 0
        for report in reports:
            self.totals.add(report)
            for name, node in report.nodes.items():
                fired += node.timers
                if node.filter_bytes:
                    self._filters[name, report.first] = (node.filter_bytes, node.filter_error)
                mark = interval_mark(
                    report.sequencer, node, self._filters.get((name, report.first), (0, 0.0))
                )
                self.authority.report(name, report.first, mark)
                self.holds_ended += node.holds_ended
        self._fired = fired
        self.hot.add(plan.now, reports)
        self.totals.value["epochs"] += 1

        changed = self.sources.commit(plan, reports)
        layout = {
            name: {i.first for i in plan.intervals[self.graph.level_of[name] - 1]}
            for name in self.graph.nodes
        }
        self._filters = {
            place: found for place, found in self._filters.items() if place[1] in layout[place[0]]
        }
        stood = self.authority.marks()
        self.authority.publish(layout)
        self.authority.pass_on(self.sources.watermarks)
        self.epoch = plan.epoch
        self._draining = plan.drain
        self._drained = self._drained or plan.drain
        self._at_rest = plan.drain and not self.authority.unfinished and self.authority.marks() == stood
        self.layout.ran(plan)
        self._journal_commit(changed)
        self.sources.tell(changed)
        for sink in self._sinks():
            sink.commit(self.epoch)

    def _journal_commit(self, partitions: list[Committed]) -> None:
        self.journal.commit(
            self.epoch,
            self.clock.time,
            self.authority.to_value(),
            self.sources.watermarks,
            self.totals.value,
            self.layout.marks() if self.layout.settled else [],
            self.sources.holders,
            partitions,
            self.observer.notes() if self.observer is not None else (),
            draining=self._draining,
        )

    @property
    def settled(self) -> bool:
        """Whether nothing is due without new input: no timer was left, and none becomes due by what
        the intervals of the last epoch did not know of each other yet."""
        if self.authority.unfinished:
            return False
        return not self.authority.makes_due(self.sources.watermarks)

    @property
    def caught_up(self) -> bool:
        """Whether a computation that read by itself stands where the others stand: a new driver joins it."""
        return self.sources.level

    @property
    def exhausted(self) -> bool:
        """Whether the injectors have nothing more to give, ever; known after a plan was asked for."""
        return self.sources.exhausted

    @property
    def held(self) -> bool:
        """Whether something keeps the watermarks from their end though the injectors are exhausted."""
        return not self._at_rest and any(mark < MAX_TIME for mark in self.authority.marks().values())

    @property
    def _unreleased(self) -> int:
        return sum(self.authority.counter(name, HOLDS) for name in self.graph.nodes)

    def report(self) -> Report:
        """What was done since this driver started."""
        report = self.totals.since(self.baseline, self.graph)
        report.low_watermarks = dict(self.authority.lows)
        report.input_watermarks = dict(self.authority.inputs)
        nodes = self.graph.nodes
        report.pending_wall_timers = sum(self.authority.counter(name, WALL_TIMERS) for name in nodes)
        report.waiting = {name: self.authority.counter(name, WAITING_TOTAL) for name in nodes}
        report.idle_partitions = {str(name): found for name, found in self.sources.idle.items()}
        for (name, _), (size, error) in self._filters.items():
            report.filter_bytes[name] = report.filter_bytes.get(name, 0) + size
            report.filter_error[name] = max(report.filter_error.get(name, 0.0), error)
        report.lag = self.sources.lag()
        report.changes, report.changes_at_start = self.layout.changes, list(self.changes_at_start)
        for name, (key, share, *window) in self.hot.found().items():
            report.hot_keys[name], report.hot_windows[name] = (key, share), (window[0], window[1])
        if self._drained or self.holds_ended:
            report.unreleased_holds = self.holds_ended + self._unreleased
        return report

    def close(self) -> None:
        """Lets go of the injectors, the sinks and the store."""
        try:
            if self.observer is not None:
                self.observer.close()
            self.let_go()
        finally:
            self.store.close()
