"""The authority (7.2) against a model: reports lost, repeated, late and of old owners, splits and merges.

The model knows what is true in the workers: each tablet's pending timers and holds. The authority knows
what it is told; what it publishes must never be ahead of the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
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
from millwheel.model.codec import pack, unpack
from millwheel.model.graph import Graph, build
from millwheel.model.names import SourceName
from millwheel.watermark.authority import WatermarkAuthority
from millwheel.watermark.marks import ComputationMarks, IntervalMark
from millwheel.watermark.source import SourceMark
from tests.computations import Echo

SETTINGS = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
TABLETS = 8
FIRSTS = st.sets(st.integers(1, TABLETS - 1), max_size=3).map(lambda cuts: sorted({0, *cuts}))
PARTITIONS = ("a", "b", "c")
NODES = 4
PLACES = st.tuples(st.integers(0, NODES - 1), st.integers(0, TABLETS - 1))
SETS = st.tuples(PLACES, st.sampled_from(["timers", "holds"]), st.integers(0, 25))


class Letter(NamedTuple):
    """A report on its way: ``number`` orders those that the workers wrote."""

    number: int
    name: str
    first: int
    last: int
    mark: IntervalMark


@dataclass
class Tablet:
    """What is pending in a tablet of a computation."""

    timers: set[int] = field(default_factory=set)
    holds: set[int] = field(default_factory=set)


@dataclass
class Source:
    """An injector: what its partitions vouch for, and what it has said so far."""

    marks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    watermark: int = 0

    def move(self, by: dict[str, int], read: set[str]) -> None:
        """Partitions advance; those in ``read`` are joined by the tasks that read them."""
        for name, step in by.items():
            self.marks[name] = min(max(self.marks[name], 0) + step, mw.MAX_TIME)
        rest = [mark for name, mark in self.marks.items() if name not in read]
        known = SourceMark(
            previous=self.watermark,
            held=min(rest, default=mw.MAX_TIME),
            newest=mw.MIN_TIME,
            slack=None,
            final=False,
        )
        for name in sorted(read):
            known = known.join(held=self.marks[name], newest=self.marks[name])
        before, self.watermark = self.watermark, known.watermark()
        assert self.watermark >= before, "the watermark of an injector went back"
        assert self.watermark == max(before, min(self.marks.values()))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random graph without cycles; computations may share an output, and inputs may be chained."""
    p = mw.Pipeline("random")
    streams = ["in", "more"]
    for stream in streams:
        p.inject(stream, mw.injectors.Records([]))
    reads: set[str] = set()
    for n in range(draw(st.integers(1, NODES))):
        inputs = draw(st.lists(st.sampled_from(streams), min_size=1, max_size=2, unique=True))
        reads.update(inputs)
        shared = [stream for stream in streams if stream not in reads]
        output = draw(st.sampled_from([f"s{n}", *shared]))
        keys = {s: mw.by_key if draw(st.booleans()) else mw.by("k") for s in inputs}
        p.add(Echo(output), name=f"N{n}", inputs=keys, outputs=[output])
        if output not in streams:
            streams.append(output)
    return build(p)


def _values(authority: WatermarkAuthority) -> dict[str, Any]:
    return {name: marks.to_value() for name, marks in authority.computations().items()}


class AuthorityMachine(RuleBasedStateMachine):
    """Epochs write letters; which of them arrive, when and how often, is up to the rules."""

    @initialize(graph=graphs(), firsts=FIRSTS)
    def begin(self, graph: Graph, firsts: list[int]) -> None:
        self.graph = graph
        self.authority = WatermarkAuthority(graph)
        self.names = list(graph.nodes)
        self.sources = {SourceName(name): Source() for name in ("in", "more")}
        self.tablets = {name: [Tablet() for _ in range(TABLETS)] for name in self.names}
        self.true_inputs = dict.fromkeys(self.names, mw.MIN_TIME)
        self.true_lows = dict.fromkeys(self.names, mw.MIN_TIME)
        self.layout = dict.fromkeys(self.names, firsts)
        self.sequencer = 1
        self.number = 0
        self.letters: list[Letter] = []
        self.newest: dict[tuple[str, int], int] = {}
        self.accepted: dict[tuple[str, int], Letter] = {}
        self.fresh: dict[str, set[int]] = {}
        self.complete: dict[str, set[int]] = {}
        self.published: dict[str, tuple[int, int]] = dict.fromkeys(self.names, (mw.MIN_TIME, mw.MIN_TIME))

    def intervals(self, name: str) -> list[tuple[int, int]]:
        firsts = self.layout[name]
        return list(zip(firsts, [*firsts[1:], TABLETS], strict=True))

    # What happens in the workers

    @rule(
        which=st.sampled_from([SourceName("in"), SourceName("more")]),
        by=st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 20)),
        read=st.sets(st.sampled_from(PARTITIONS)),
    )
    def an_injector_advances(self, which: str, by: dict[str, int], read: set[str]) -> None:
        self.sources[which].move(by, read)

    def every_injector_advances(self, by: int) -> None:
        for source in self.sources.values():
            source.move(dict.fromkeys(PARTITIONS, by), set())

    @rule(
        by=st.integers(0, 20),
        sets=st.lists(SETS, max_size=4),
        released=st.lists(PLACES, max_size=3),
        lost=st.sets(st.integers(0, 5), max_size=2),
        publish=st.booleans(),
        data=st.data(),
    )
    def an_epoch_runs(
        self,
        by: int,
        sets: list[Any],
        released: list[tuple[int, int]],
        lost: set[int],
        publish: bool,
        data: st.DataObject,
    ) -> None:
        """Watermarks move through the graph, due timers fire, and every interval writes a letter."""
        if by:
            self.every_injector_advances(by)
        self.run_epoch(sets, released)
        new = [letter for letter in self.letters if self.is_newest(letter)]
        for n, letter in enumerate(data.draw(st.permutations(new), label="order")):
            if n not in lost:
                self.deliver(letter)
        if publish and self.nothing_hides():
            self.the_authority_publishes()

    def run_epoch(self, sets: list[Any], released: list[tuple[int, int]]) -> None:
        known = {name: source.watermark for name, source in self.sources.items()}
        for n, tablet in released:
            self.tablets[self.names[n % len(self.names)]][tablet].holds.clear()
        for n, name in enumerate(self.names):
            reached = min(known[sender] for sender in self.graph.senders(name))
            self.true_inputs[name] = reached = max(self.true_inputs[name], reached)
            for tablet in self.tablets[name]:
                tablet.timers = {time for time in tablet.timers if time > reached}
            for (which, place), kind, ahead in sets:
                if which % len(self.names) == n:
                    if kind == "timers":
                        self.tablets[name][place].timers.add(max(reached, 0) + 1 + ahead)
                    else:  # not below what the interval has reported, which is not taken back
                        floor = self.interval_low(name, place)
                        self.tablets[name][place].holds.add(max(reached, floor, 0) + ahead)
            for first, last in self.intervals(name):
                self.write_letter(name, first, last)
            lows = [self.low_of(name, first, last) for first, last in self.intervals(name)]
            self.true_lows[name] = known[name] = max(self.true_lows[name], *map(min, [lows]))

    def interval_low(self, name: str, place: int) -> int:
        first, last = next(i for i in self.intervals(name) if i[0] <= place < i[1])
        return self.low_of(name, first, last)

    def low_of(self, name: str, first: int, last: int) -> int:
        mine = self.tablets[name][first:last]
        pending = [time for tablet in mine for time in tablet.timers | tablet.holds]
        return max(min([self.true_inputs[name], *pending]), self.true_lows[name])

    def write_letter(self, name: str, first: int, last: int) -> None:
        mine = self.tablets[name][first:last]
        self.number += 1
        mark = IntervalMark(
            sequencer=self.sequencer,
            input=self.true_inputs[name],
            low=self.low_of(name, first, last),
            next_timer=min((time for tablet in mine for time in tablet.timers), default=mw.MAX_TIME),
            next_wall=mw.MAX_TIME,
            oldest_hold=min((time for tablet in mine for time in tablet.holds), default=mw.MAX_TIME),
            more_due=False,
        )
        self.letters.append(Letter(self.number, name, first, last, mark))
        self.newest[name, first] = self.number

    # What happens to letters

    def deliver(self, letter: Letter) -> None:
        place = (letter.name, letter.first)
        known = self.accepted.get(place)
        taken = self.authority.report(letter.name, letter.first, letter.mark)
        if known is not None:
            assert taken == (known.mark.sequencer <= letter.mark.sequencer)
        else:  # a place that was forgotten remembers under which sequencer
            assert taken or letter.mark.sequencer < self.sequencer
        if taken:
            self.accepted[place] = letter
            self.fresh.setdefault(letter.name, set()).add(letter.first)

    @precondition(lambda self: getattr(self, "letters", None))
    @rule(data=st.data(), times=st.integers(1, 2))
    def letters_arrive_late(self, data: st.DataObject, times: int) -> None:
        """Any that were ever written, so also those of old owners."""
        choice = st.lists(st.sampled_from(self.letters[-30:]), min_size=1, max_size=5)
        for letter in data.draw(choice, label="letters"):
            for _ in range(times):
                self.deliver(letter)

    @rule()
    def the_newest_letters_arrive(self) -> None:
        for letter in self.letters:
            if self.is_newest(letter):
                self.deliver(letter)

    def is_newest(self, letter: Letter) -> bool:
        in_layout = (letter.first, letter.last) in self.intervals(letter.name)
        return in_layout and self.newest[letter.name, letter.first] == letter.number

    @precondition(lambda self: hasattr(self, "authority") and self.nothing_hides())
    @rule()
    def the_authority_publishes(self) -> None:
        expected = dict(self.published)
        for name in self.names:
            known = [self.accepted.get((name, first)) for first, _ in self.intervals(name)]
            marks = [letter.mark for letter in known if letter is not None]
            wanted = set(self.layout[name])
            # Where the layout has changed, it waits for new reports of every interval.
            heard = wanted == self.complete.get(name) or wanted <= self.fresh.get(name, set())
            if len(marks) == len(known) and heard:
                self.complete[name] = wanted
                self.fresh[name] = set()
                old_input, old_low = expected[name]
                expected[name] = (
                    max(old_input, min(mark.input for mark in marks)),
                    max(old_low, min(mark.low for mark in marks)),
                )
                self.forget(name)
        self.authority.publish({name: set(firsts) for name, firsts in self.layout.items()})
        assert self.values() == expected

    def nothing_hides(self) -> bool:
        """No known report of a wanted place speaks for less than the interval that is there now."""
        return all(
            letter is None or letter.last >= last
            for name in self.names
            for first, last in self.intervals(name)
            for letter in [self.accepted.get((name, first))]
        )

    def forget(self, name: str) -> None:
        for owner, first in list(self.accepted):
            if owner == name and first not in self.layout[name]:
                del self.accepted[owner, first]

    def values(self) -> dict[str, tuple[int, int]]:
        return {name: (self.authority.inputs[name], self.authority.lows[name]) for name in self.names}

    # What happens to the driver

    @rule(data=st.data(), firsts=FIRSTS)
    def intervals_are_split_and_merged(self, data: st.DataObject, firsts: list[int]) -> None:
        """Under new sequencers. The old owners' letters are still on their way."""
        name = data.draw(st.sampled_from(self.names), label="name")
        self.layout = {**self.layout, name: firsts}
        self.sequencer += 1

    @rule()
    def the_driver_restarts(self) -> None:
        before = self.values()
        journaled = unpack(pack(_values(self.authority)))
        self.authority = WatermarkAuthority(self.graph)
        self.authority.restore(
            {name: ComputationMarks.from_value(value) for name, value in journaled.items()}
        )
        assert self.values() == before
        assert _values(self.authority) == journaled
        self.sequencer += 1

    @precondition(lambda self: hasattr(self, "authority") and self.all_is_known())
    @rule()
    def watermarks_pass_through_a_graph_at_rest(self) -> None:
        """Or an epoch runs, where that makes a timer due."""
        self.the_authority_publishes()
        reached = {name: source.watermark for name, source in self.sources.items()}
        before = self.values()
        due = self.authority.makes_due(reached)
        assert self.values() == before, "asking changes nothing"
        assert due == self.something_is_due(reached)
        self.authority.pass_on(reached)
        if due:
            assert self.values() == before
            self.run_epoch([], [])
            return
        for name in self.names:
            self.true_inputs[name], self.true_lows[name] = (
                self.authority.inputs[name],
                self.authority.lows[name],
            )
            senders = [({**reached, **self.authority.lows})[s] for s in self.graph.senders(name)]
            assert self.authority.inputs[name] == max(before[name][0], min(senders))
            pending = [time for tablet in self.tablets[name] for time in tablet.timers | tablet.holds]
            assert self.authority.lows[name] == max(
                before[name][1], min([self.authority.inputs[name], *pending])
            )

    def all_is_known(self) -> bool:
        """Whether every interval's newest letter is the one that was taken last."""
        return all(
            (letter := self.accepted.get((name, first))) is not None
            and letter.last == last
            and letter.number == self.newest[name, first]
            for name in self.names
            for first, last in self.intervals(name)
        )

    def something_is_due(self, reached: dict[str, int]) -> bool:
        known = dict(reached)
        for name in self.names:
            new = max(self.authority.inputs[name], min(known[s] for s in self.graph.senders(name)))
            timers = [time for tablet in self.tablets[name] for time in tablet.timers]
            holds = [time for tablet in self.tablets[name] for time in tablet.holds]
            if any(time <= new for time in timers):
                return True
            known[name] = max(self.authority.lows[name], min([new, *timers, *holds]))
        return False

    # What must hold

    @precondition(lambda self: hasattr(self, "authority"))
    @invariant()
    def published_values_never_go_back(self) -> None:
        now = self.values()
        for name, (old_input, old_low) in self.published.items():
            assert now[name][0] >= old_input
            assert now[name][1] >= old_low
        self.published = now

    @precondition(lambda self: hasattr(self, "authority"))
    @invariant()
    def published_values_never_pass_the_truth(self) -> None:
        known = {**{name: source.watermark for name, source in self.sources.items()}, **self.true_lows}
        for name in self.names:
            low = self.authority.lows[name]
            assert self.authority.inputs[name] <= min(known[sender] for sender in self.graph.senders(name))
            assert low <= self.authority.inputs[name]
            for tablet in self.tablets[name]:
                assert all(low <= time for time in tablet.timers | tablet.holds)


def test_no_order_of_reports_makes_the_authority_lead_its_workers() -> None:
    run_state_machine_as_test(AuthorityMachine, settings=SETTINGS)
