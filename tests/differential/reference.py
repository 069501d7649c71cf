"""The reference: the semantics of the contract, one record after the other, in the plainest way.

It has no intervals, no store, no index and no cutting: every question is answered by a walk over all there
is. Nothing of the engine is used but the values that the contract names.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from millwheel.model.record import Record
from millwheel.model.time import MAX_TIME, MIN_TIME, WALL
from millwheel.model.timer import Timer
from tests.differential.behaviour import extract, on_record, on_timer, transform, value_of
from tests.differential.case import OPERATORS, DerivedSpec, NodeSpec, Sent, SourceSpec
from tests.differential.keys import Hand, Key, Node
from tests.differential.operators import OnHand, operator

EXACT = 1.0


class Reference:
    """A pipeline as the contract describes it."""

    def __init__(
        self, sources: Iterable[SourceSpec], nodes: Iterable[NodeSpec], derived: Iterable[DerivedSpec] = ()
    ) -> None:
        self._derived = list(derived)
        self.sources = {source.name: source for source in sources}
        self.marks = {(s.name, partition): MIN_TIME for s in sources for partition in range(s.partitions)}
        self.lows = dict.fromkeys(self.sources, MIN_TIME)
        """By source: its low watermark."""
        self.now = 0
        self.nodes: dict[str, Node] = {}
        self.outputs: dict[str, list[Record]] = {}
        """By stream: what it carried in the last epoch, in the order in which it was made."""
        self.streams: Counter[str] = Counter()
        self.user: Counter[str] = Counter()
        self._percentiles: set[float] = {EXACT}
        self._arrived: dict[str, list[Record]] = {}
        self._arrivals = 0
        self._newest: dict[str, int] = {}
        self._newest_read: dict[tuple[str, int], int] = {}
        self.become(nodes)

    def become(self, specs: Iterable[NodeSpec]) -> None:
        """Goes on with other computations; a new one begins where its senders are."""
        specs = list(specs)
        self._percentiles = {EXACT, *(spec.watermark for spec in specs)}
        writers: dict[str, list[str]] = {}
        for source in self.sources.values():
            writers.setdefault(source.stream, []).append("@" + source.name)
        for spec in specs:
            for stream in spec.streams:
                writers.setdefault(stream, []).append(spec.name)
        for one in self._derived:  # each behind its parents
            writers[one.name] = [writer for parent in one.parents for writer in writers.get(parent, [])]
        before, self.nodes = self.nodes, {}
        for spec in specs:
            senders = tuple(sender for stream in spec.inputs for sender in writers[stream])
            node = self.nodes[spec.name] = before.get(spec.name) or _made(spec, senders)
            node.spec, node.senders = spec, senders
            for percentile in self._percentiles:
                if percentile not in node.lows:
                    node.lows[percentile] = node.lows.get(EXACT, self._reached(node, percentile))
            if spec.name not in before:
                node.input = self._reached(node, spec.watermark)

    def epoch(
        self,
        records: Iterable[Sent] = (),
        marks: dict[tuple[str, int], int] | None = None,
        now: int = 0,
        *,
        drain: bool = False,
    ) -> None:
        """One epoch: records come, injectors and the clock move on, and all that is due is done."""
        self.now = max(self.now, now)
        for place, mark in (marks or {}).items():
            self.marks[place] = max(self.marks[place], mark)
        self.outputs = {}
        self._arrived = {name: [] for name in self.nodes}
        for sent in records:
            record = Record(value_of(sent.n), sent.timestamp, sent.key, id=sent.id)
            stream = self.sources[sent.source].stream
            self._newest[stream] = max(self._newest.get(stream, MIN_TIME), sent.timestamp)
            place = sent.source, sent.partition
            self._newest_read[place] = max(self._newest_read.get(place, MIN_TIME), sent.timestamp)
            self._carry(stream, record)
        for source in self.sources.values():
            self.lows[source.name] = max(self.lows[source.name], self._low(source))
        for node in self.nodes.values():
            self._run(node, drain=drain)

    def reopen(self) -> None:
        """Ends the run, and begins the next one (semantics 9); one that has not come to its end goes on."""
        if any(mark < MAX_TIME for mark in self.marks.values()):
            return
        for source, partition in self.marks:
            newest = self._newest.get(self.sources[source].stream, MIN_TIME)
            self.lows[source] = self.marks[source, partition] = newest if newest == MIN_TIME else newest + 1
        for node in self.nodes.values():
            node.input = self._reached(node, node.spec.watermark)
            node.lows = {percentile: self._reached(node, percentile) for percentile in self._percentiles}
        self.end_holds()

    def end_holds(self) -> None:
        """A hold that is never released ends with the run."""
        for node in self.nodes.values():
            for key in node.keys.values():
                key.holds.clear()
            node.keys = {name: key for name, key in node.keys.items() if key.row or key.waiting}

    def watermark(self, sender: str, percentile: float) -> int:
        """The low watermark that somebody writes streams with."""
        if sender.startswith("@"):
            return self.lows[sender[1:]]
        return self.nodes[sender].lows[percentile]

    def _low(self, source: SourceSpec) -> int:
        """What an injector's partitions vouch for; with a slack also what follows from their timestamps."""
        marks = {place: mark for place, mark in self.marks.items() if place[0] == source.name}
        low = min(marks.values())
        if source.slack is None or low == MAX_TIME:
            return low
        behind = {place: self._behind(place, source.slack) for place in marks}
        return min(*(max(marks[place], behind[place]) for place in marks), max(behind.values()))

    def _behind(self, place: tuple[str, int], slack: int) -> int:
        """The newest timestamp of a partition less the slack."""
        newest = self._newest_read.get(place, MIN_TIME)
        return newest if newest == MIN_TIME else newest - slack

    def _reached(self, node: Node, percentile: float) -> int:
        return min(self.watermark(sender, percentile) for sender in node.senders)

    def _carry(self, stream: str, record: Record) -> None:
        """Puts a record on a stream: every consumer gets its own copy, with its own key."""
        self.outputs.setdefault(stream, []).append(record)
        self.streams[stream] += 1
        for node in self.nodes.values():
            if stream not in node.spec.inputs:
                continue
            mine = Record(copy.deepcopy(record.value), record.timestamp, record.key, stream, record.id)
            try:
                key = extract(node.spec.inputs[stream], mine)
            except Exception as error:
                if node.spec.errors != "divert":
                    raise
                node.counts["failed"] += 1
                self._carry(node.spec.name + ".errors", _failed(record.key, mine, error))
                continue
            if isinstance(key, str):
                if node.spec.kind == "top":
                    mine.value = [mine.key, mine.value]
                mine.key = key
                self._arrived[node.spec.name].append(mine)
        for one in self._derived:
            for way in range(one.parents.count(stream)):
                for piece, value in enumerate(transform(one.how, copy.deepcopy(record.value), self.now)):
                    id: Any = None if record.id is None else (record.id, stream, way, piece)
                    self._carry(one.name, Record(value, record.timestamp, record.key, id=id))

    def _run(self, node: Node, *, drain: bool) -> None:
        before, low_before = node.input, node.lows[EXACT]
        after = max(before, self._reached(node, node.spec.watermark))
        for record in self._arrived[node.spec.name]:
            if self._is_new(node, record):
                self._record_comes(node, record, before, low_before)
        node.input = after
        for name in list(node.keys):
            self._catch_up(node, name, low_before)
        pending = node.pending(holds=not drain)
        for percentile in self._percentiles:
            place = math.floor((1 - Fraction(str(percentile))) * len(pending))
            oldest = pending[place] if pending else MAX_TIME
            low = min(self._reached(node, percentile), oldest)
            node.lows[percentile] = max(node.lows[percentile], low)
        for name, key in list(node.keys.items()):
            if key.deleted and key.state == node.initial():
                key.state = None
            key.deleted = False
            if not key.row and not key.waiting:
                del node.keys[name]

    def _is_new(self, node: Node, record: Record) -> bool:
        if not node.spec.exactly_once or record.id is None:
            return True
        unique = (record.key, record.stream, record.id)
        if unique in node.seen:
            node.counts["duplicates"] += 1
            return False
        node.seen.add(unique)
        return True

    def _record_comes(self, node: Node, record: Record, before: int, low_before: int) -> None:
        spec = node.spec
        record.late = record.timestamp < before
        if record.late:
            node.counts["late"] += 1
            if spec.kind in OPERATORS and self._accepts(node, record, before):
                self._hook(node, record.key, record, before, low_before)
                return
            if spec.late == "drop":
                node.counts["dropped"] += 1
                return
            if spec.late == "divert":
                node.counts["diverted"] += 1
                plain = Record(record.value, record.timestamp, record.key)
                self._carry(spec.name + ".late", plain)
                return
        if spec.in_order:
            self._arrivals += 1
            key = node.keys.setdefault(record.key, Key())
            key.waiting.append((record.timestamp, self._arrivals, record))
        else:
            self._hook(node, record.key, record, before, low_before)

    def _accepts(self, node: Node, record: Record, before: int) -> bool:
        """Whether an operator takes a late record: late for a window goes by the window."""
        return OnHand(node.computation, Hand(node, record.key, self.now, before)).accepts_late(record)

    def _catch_up(self, node: Node, name: str, low_before: int) -> None:
        """A key's records that waited for the watermark, and its due timers, in their order."""
        while True:
            key = node.keys[name]  # another one, after a hook that was undone
            due = [
                (time, tag, clock)
                for tag, (time, clock) in key.timers.items()
                if time <= (self.now if clock == WALL else node.input)
            ]
            ready = [entry for entry in key.waiting if entry[0] < node.input]
            if ready and (not due or min(ready)[0] < min(due)[0]):
                entry = min(ready, key=lambda one: one[:2])
                key.waiting.remove(entry)
                self._hook(node, name, entry[2], node.input, low_before)
            elif due:
                time, tag, clock = min(due)
                del key.timers[tag]
                node.counts["timers"] += 1
                self._hook(node, name, Timer(tag, time, clock), node.input, low_before)
            else:
                return

    def _hook(self, node: Node, name: str, what: Record | Timer, low_watermark: int, low_before: int) -> None:
        hand = Hand(node, name, self.now, low_watermark)
        hand.timestamp = what.timestamp
        if node.spec.errors == "divert":
            saved, given = copy.deepcopy((node.keys[name], what))
        try:
            if node.computation is not None:
                OnHand(node.computation, hand).run(what)
            elif isinstance(what, Record):
                on_record(node.spec, hand, what)
            else:
                on_timer(node.spec, hand, what)
        except Exception as error:
            if node.spec.errors != "divert":
                raise
            node.keys[name] = saved
            node.counts["failed"] += 1
            self._carry(node.spec.name + ".errors", _failed(name, given, error))
            return
        node.counts["records"] += isinstance(what, Record)
        self.user += hand.counted
        for stream, value, timestamp in hand.made:
            node.counts["produced"] += 1
            node.counts["produced_late"] += timestamp < low_before
            self._carry(stream, Record(copy.deepcopy(value), timestamp, name))


def _made(spec: NodeSpec, senders: tuple[str, ...]) -> Node:
    return Node(spec, senders, computation=operator(spec) if spec.kind in OPERATORS else None)


def _failed(name: str, given: Record | Timer, error: Exception) -> Record:
    """What an error stream carries of a record, or a timer, that was undone."""
    if isinstance(given, Timer):
        value: Any = {"tag": given.tag, "clock": given.clock}
        stream, id = "timers", None
    else:
        value, stream, id = given.value, given.stream, given.id
    whole = {"error": str(error), "traceback": str(error), "stream": stream, "value": value, "id": id}
    return Record(whole, given.timestamp, name)
