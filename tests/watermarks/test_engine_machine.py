"""Invariants 1, 4 and 5 over the whole engine, under whatever order of input, epochs, crashes and layouts.

Every hook logs what it saw and what it did; the machine replays the log of each committed epoch against a
model of each key's timers and holds, and compares what was sent with what arrived.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.master.planner import Mode
from millwheel.model.graph import Graph, build
from millwheel.model.names import SourceName
from millwheel.store.memory import MemoryStore
from millwheel.worker.plan import Plan
from millwheel.worker.report import IntervalReport
from millwheel.worker.timer_index import HOLDS, WALL_TIMERS, WATERMARK_TIMERS
from tests.watermarks.machinery import (
    HOLD_TAGS,
    KEYS,
    PLACES,
    RECORDS,
    SETTINGS,
    STEP,
    ByHand,
    Crash,
    DiesAtTheEnd,
    Key,
    Mortal,
    Obeys,
    Pending,
    ReKeyed,
    Shape,
    Story,
    shapes,
)


class EngineMachine(RuleBasedStateMachine):
    """Driver, worker and store in this process; partitions, clock, crashes and slots by hand."""

    sound = False
    """Whether the last epoch was found in order: otherwise there is nothing to be drained."""

    @initialize(
        shape=shapes(),
        slots=st.sampled_from([1, 2, 3]),
        shards=st.sampled_from([1, 4]),
        seed=st.integers(0, 3),
        compact=st.booleans(),
        due_limit=st.sampled_from([1, 2, 100]),
        bound=st.sampled_from([2, 4, 1_000]),
        silent=st.booleans(),
    )
    def begin(
        self,
        shape: Shape,
        slots: int,
        shards: int,
        seed: int,
        compact: bool,
        due_limit: int,
        bound: int,
        silent: bool,
    ) -> None:
        self.injectors = {"in": ByHand("abc", silent=silent)}
        if shape.two_injectors:
            self.injectors["more"] = ByHand("ab", silent=False)
        p = mw.Pipeline("machine")
        for stream, injector in self.injectors.items():
            p.inject(stream, injector)
        self.stories: list[Story] = []
        for n, inputs in enumerate(shape.nodes):
            extractors: dict[str, Any] = {
                stream: mw.by_key if chained else ReKeyed(n) for stream, chained in inputs.items()
            }
            p.add(Obeys(n), name=f"N{n}", inputs=extractors, outputs=[f"s{n}", f"log{n}"])
            self.stories.append(Story())
            p.sink(f"log{n}", self.stories[n])
        self.graph: Graph = build(p)
        self.names = list(self.graph.nodes)
        self.chained = {
            sender
            for name in self.names
            for sender in self.graph.senders(name)
            if self.graph.level_of.get(sender) == self.graph.level_of[name]
        }
        self.store = MemoryStore(shards)
        self.order = random.Random(seed)
        self.slots, self.compact, self.bound = slots, compact, bound
        self.due_limit = due_limit
        self.wall = 0
        self.keys: dict[tuple[str, str], Key] = {}
        self.on_time: dict[str, bool] = {}
        self.count = 0
        self.plans: dict[int, Plan] = {}
        self.epoch = 0
        self.highest: dict[str, int] = {}
        self.start()
        self.sound = True

    def start(self) -> None:
        """A new driver on the store that there is."""
        self.store.close()
        self.driver = Driver(
            self.graph,
            self.store,
            Options(
                slots=self.slots,
                due_limit=self.due_limit,
                compact_below=4_000 if self.compact else 0,
                step_budget=math.inf,
            ),
            clock=lambda: self.wall,
            owner="a machine",
        )
        self.worker = Mortal(self.graph, self.driver.numbers, self.store, self.order)
        self.executor = LocalExecutor(self.worker)

    # What happens

    @rule(place=st.sampled_from(PLACES), records=st.lists(RECORDS, min_size=1, max_size=4))
    def records_come(self, place: tuple[str, str], records: list[Any]) -> None:
        for key, k, ahead, then, do in records:
            told = {n: self.spell(n, commands) for n, commands in do.items() if n < len(self.names)}
            self.append(place, key, k, ahead, then, told)

    def spell(self, n: int, commands: list[Any], quiet: bool = False) -> list[Any]:
        """Commands with absolute times: about where the clocks of the computation stand.

        A hold in the epoch in which the watermark moves is heard of by chained consumers in other
        intervals one epoch later: such holds are sent by `a_key_holds` alone.
        """
        name = f"N{n}"
        told: list[Any] = []
        for verb, tag, *rest in commands:
            if verb == "hold":
                if name in self.chained and not quiet:
                    continue
                told.append([verb, tag, max(self.driver.authority.lows[name], 0) + rest[0] - 2])
            elif verb == "set":
                base = self.wall if rest[1] == mw.WALL else max(self.driver.authority.inputs[name], 0)
                told.append([verb, tag, base + rest[0] - 2, rest[1]])
            else:
                told.append([verb, tag])
        return told

    def append(
        self, place: tuple[str, str], key: str, k: int, ahead: int, then: int, do: dict[int, Any]
    ) -> None:
        stream, partition = place if place[0] in self.injectors else ("in", place[1])
        injector = self.injectors[stream]
        mark = injector.marks[partition][-1]
        timestamp = max(mark, 0) + ahead
        self.count += 1
        value = {"name": [self.count], "k": k, "do": do}
        id = self.count if self.count % 2 else None
        record = mw.Record(value=value, timestamp=timestamp, key=key, id=id)
        injector.append(partition, record, mark + then if mark > mw.MIN_TIME else mark)
        self.on_time[str([self.count])] = timestamp >= mark

    @rule(place=st.sampled_from(PLACES), by=st.integers(1, 12))
    def a_partition_s_watermark_advances(self, place: tuple[str, str], by: int) -> None:
        stream, partition = place if place[0] in self.injectors else ("in", place[1])
        injector = self.injectors[stream]
        injector.advance(partition, max(injector.marks[partition][-1], 0) + by)

    @rule(by=st.integers(1, 12))
    def every_watermark_advances(self, by: int) -> None:
        for injector in self.injectors.values():
            for partition, marks in injector.marks.items():
                injector.advance(partition, max(marks[-1], 0) + by)

    @rule(by=st.integers(1, 12))
    def the_wall_clock_advances(self, by: int) -> None:
        self.wall += by

    @rule(force=st.booleans())
    def an_epoch_runs(self, force: bool) -> None:
        plan = self.plan(Mode.FORCED if force else Mode.NORMAL)
        if plan is not None:
            self.run(plan)

    @rule()
    def epochs_run_until_nothing_is_to_do(self) -> None:
        self.settle()

    @rule(key=st.sampled_from(KEYS), k=st.integers(0, 5), n=st.integers(0, 3), tag=HOLD_TAGS, ahead=STEP)
    def a_key_holds(self, key: str, k: int, n: int, tag: str, ahead: int) -> None:
        """In an epoch in which no watermark moves."""
        self.settle()
        n = n % len(self.names)
        self.append(("in", "a"), key, k, 0, 0, {n: self.spell(n, [("hold", tag, ahead)], quiet=True)})
        self.settle()

    @rule(place=st.sampled_from(PLACES))
    def every_hold_is_released(self, place: tuple[str, str]) -> None:
        told = {n: [["release", ""], ["release", "h"]] for n in range(len(self.names))}
        for k, key in enumerate(KEYS):
            self.append(place, key, k, 0, 0, told)

    @rule(slots=st.sampled_from([1, 2, 3, 5]))
    def the_driver_crashes_between_epochs(self, slots: int) -> None:
        self.restart(slots)

    @rule(steps=st.integers(0, 12), slots=st.sampled_from([1, 2, 3, 5]))
    def the_driver_crashes_in_an_epoch(self, steps: int, slots: int) -> None:
        """Before some step; where there are not so many, before the commit."""
        plan = self.plan(Mode.FORCED)
        assert plan is not None
        self.worker.steps_to_live = steps
        try:
            self.driver.run(plan, DiesAtTheEnd(self.executor))  # type: ignore[arg-type]
        except Crash:
            pass
        else:
            raise AssertionError("it lived")
        self.restart(slots)

    def restart(self, slots: int) -> None:
        self.slots = slots
        self.start()

    def plan(self, mode: Mode = Mode.NORMAL) -> Plan | None:
        self.driver.sizer.bound = self.bound
        plan = self.driver.next_plan(mode)
        if plan is not None:
            self.plans[plan.epoch] = plan
        return plan

    def run(self, plan: Plan) -> None:
        self.sound = False
        self.committed(plan, self.driver.run(plan, self.executor))
        self.sound = True

    def settle(self) -> None:
        for _ in range(300):
            plan = self.plan()
            if plan is None:
                self.at_rest()
                return
            self.run(plan)
        raise AssertionError("it does not come to rest")

    # What must hold

    def committed(self, plan: Plan, reports: list[IntervalReport]) -> None:
        """Replays an epoch's log: order and time of timers, and that what was sent has arrived, once."""
        assert plan.epoch == self.epoch + 1
        assert plan.now >= (self.plans[self.epoch].now if self.epoch else 0), "the wall clock went back"
        self.epoch = plan.epoch
        sent: dict[str, Counter[str]] = {stream: Counter() for stream in self.graph.streams}
        got: dict[str, Counter[str]] = {name: Counter() for name in self.names}
        for item in plan.ranges:
            records = self.injectors[item.source.stream].read(item.partition, item.start, item.end)
            sent[item.source.stream].update(str(record.value["name"]) for record in records)
        for name in self.names:
            node = int(name[1:])
            for event in self.stories[node].of(plan.epoch):
                key = self.keys.setdefault((name, event.key), Key())
                if event.value[0] == "record":
                    _, seen, commands, productions = event.value
                    got[name][str(seen[0])] += 1
                    self.replay_record(plan, name, key, seen, commands, productions)
                    sent[f"s{node}"].update(map(str, productions))
                else:
                    _, fired, production = event.value
                    self.replay_timer(plan, name, key, fired, production)
                    sent[f"s{node}"][str(production)] += 1
        for name in self.names:
            expected: Counter[str] = Counter()
            for stream in self.graph.nodes[name].inputs:
                expected.update(sent[stream])
            assert got[name] == expected, f"{name} did not get each record once"
        self.counters_agree()
        if not plan.drain and not self.driver.authority.more_due:
            self.no_interval_is_ahead(reports)

    def no_interval_is_ahead(self, reports: list[IntervalReport]) -> None:
        """No interval has an input that passes its senders' low watermarks, wherever those were held."""
        known = {**self.driver.sources.watermarks, **self.driver.authority.lows}
        for report in reports:
            for name, node in report.nodes.items():
                assert node.input <= min(known[sender] for sender in self.graph.senders(name))

    def replay_record(
        self, plan: Plan, name: str, key: Key, seen: list[Any], commands: list[Any], sent: list[Any]
    ) -> None:
        record, timestamp, late, watermark, now = seen
        assert now == plan.now
        assert watermark >= plan.before[name]
        assert late == (timestamp < watermark)
        assert not (late and self.on_time[str(record)]), f"{record} was on time, and is late at {name}"
        forwarded, *released = sent
        self.on_time[str(forwarded)] = not late
        low = plan.lows[name]
        for verb, tag, *rest in commands:
            if verb == "set":
                key.timers[tag] = Pending(rest[0], rest[1], rest[0] >= low)
            elif verb == "clear":
                key.timers.pop(tag, None)
            elif verb == "hold":
                key.holds[tag] = Pending(rest[0], "", rest[0] >= low)
            elif tag in key.holds:
                self.on_time[str(released.pop(0))] = key.holds.pop(tag).kept
        assert not released

    def replay_timer(self, plan: Plan, name: str, key: Key, fired: list[Any], production: list[Any]) -> None:
        tag, time, clock, watermark, now = fired
        assert tag in key.timers, f"{name}: timer {tag} fired twice, or was never set"
        pending = key.timers.pop(tag)
        assert (time, clock) == pending[:2], "a timer fired that had been moved"
        reached = {mw.WATERMARK: watermark, mw.WALL: now}
        assert time <= reached[clock], "a timer fired too early"
        if not self.driver.authority.more_due and not plan.drain:
            assert watermark <= self.driver.authority.inputs[name]
        for other, (when, its_clock, _) in key.timers.items():
            if when <= reached[its_clock]:
                assert (time, tag) < (when, other), "timers fired out of order"
        self.on_time[str(production)] = pending.kept and clock == mw.WATERMARK
        if tag == "again":
            key.timers["more"] = Pending(time + 4, clock, pending.kept)

    def pending(self, name: str, clock: str) -> list[Pending]:
        mine = [key for (owner, _), key in self.keys.items() if owner == name]
        return [timer for key in mine for timer in key.timers.values() if timer.clock == clock]

    def holds(self, name: str) -> list[Pending]:
        return [hold for (owner, _), key in self.keys.items() if owner == name for hold in key.holds.values()]

    def counters_agree(self) -> None:
        count = self.driver.authority.counter
        for name in self.names:
            assert count(name, WATERMARK_TIMERS) == len(self.pending(name, mw.WATERMARK))
            assert count(name, WALL_TIMERS) == len(self.pending(name, mw.WALL))
            assert count(name, HOLDS) == len(self.holds(name))

    def at_rest(self) -> None:
        """With nothing to do, nothing is due, and every watermark stands where its definition says."""
        authority = self.driver.authority
        known = dict(self.driver.sources.watermarks)
        for injector in self.injectors.values():
            for partition, records in injector.records.items():
                assert self.read_so_far(injector, partition) == len(records)
        for name in self.names:
            timers, holds = self.pending(name, mw.WATERMARK), self.holds(name)
            reached = min(known[sender] for sender in self.graph.senders(name))
            assert authority.inputs[name] == reached
            assert all(timer.time > reached for timer in timers)
            assert all(timer.time > self.driver.now() for timer in self.pending(name, mw.WALL))
            work = [timer.time for timer in timers] + [hold.time for hold in holds if hold.kept]
            assert authority.lows[name] <= min([reached, *work])
            if all(hold.kept for hold in holds):
                assert authority.lows[name] == min([reached, *work])
            known[name] = authority.lows[name]

    def read_so_far(self, injector: ByHand, partition: str) -> int:
        source = next(s.name for s in self.graph.sources if s.injector is injector)
        ends = [
            item.end
            for epoch in range(1, self.epoch + 1)
            for item in self.plans[epoch].ranges
            if (item.source, item.partition) == (source, partition)
        ]
        return max(ends, default=0)

    @precondition(lambda self: hasattr(self, "driver"))
    @invariant()
    def watermarks_never_go_back(self) -> None:
        authority = self.driver.authority
        values = {
            **{f"input of {name}": value for name, value in authority.inputs.items()},
            **{f"low watermark of {name}": value for name, value in authority.lows.items()},
            **self.driver.sources.watermarks,
        }
        for what, value in values.items():
            assert value >= self.highest.get(what, mw.MIN_TIME), f"the {what} went back"
        self.highest = values

    @precondition(lambda self: hasattr(self, "driver"))
    @invariant()
    def watermarks_never_pass_unfinished_work(self) -> None:
        authority = self.driver.authority
        known = {**self.driver.sources.watermarks, **authority.lows}
        for stream, injector in self.injectors.items():
            for partition, records in injector.records.items():
                for record in records[self.read_so_far(injector, partition) :]:
                    if self.on_time[str(record.value["name"])]:
                        assert known[SourceName(stream)] <= record.timestamp
        for name in self.names:
            low = authority.lows[name]
            assert low <= authority.inputs[name] <= min(known[s] for s in self.graph.senders(name))
            assert all(low <= timer.time for timer in self.pending(name, mw.WATERMARK))
            assert all(low <= hold.time for hold in self.holds(name) if hold.kept)

    def teardown(self) -> None:
        """The run ends: all is read, and every watermark timer fires."""
        if not self.sound:
            return
        self.settle()
        for injector in self.injectors.values():
            for partition in injector.marks:
                injector.advance(partition, mw.MAX_TIME)
        self.settle()
        assert self.driver.sources.exhausted
        if self.driver.held:
            self.drain()
        self.watermarks_never_go_back()
        assert set(self.driver.authority.lows.values()) == {mw.MAX_TIME}
        for name in self.names:
            assert self.pending(name, mw.WATERMARK) == []
        wall = sum(len(self.pending(name, mw.WALL)) for name in self.names)
        assert self.driver.report().pending_wall_timers == wall

    def drain(self) -> None:
        for _ in range(300):
            plan = self.plan(Mode.DRAIN)
            assert plan is not None
            self.run(plan)
            if self.driver.settled:
                return
        raise AssertionError("it does not end")


def test_no_order_of_input_epochs_crashes_and_layouts_breaks_an_invariant() -> None:
    run_state_machine_as_test(EngineMachine, settings=SETTINGS)
