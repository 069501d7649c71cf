"""Draws a case from a seed: features that work alone meet here."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from millwheel.model.time import MAX_TIME
from tests.differential.case import Case, Extractor, Kind, NodeSpec, Options, Sent, SourceSpec, Step

_KEYS = [f"key {number}" for number in range(6)]  # in six different tablets
_EXTRACTORS: tuple[Extractor, ...] = ("by_key", "by_key", "by_key", "suffix", "mod", "field", "skip")

OPEN = frozenset({"percentiles"})
"""What is not drawn, or not compared, because the engine is known to be wrong in it."""


def draw(seed: int) -> Case:
    """The case of a seed: always the same."""
    chance = random.Random(seed)
    cut = chance.random() < 0.4
    rush = cut and chance.random() < 0.5
    sources = _sources(chance)
    nodes = _Nodes(chance, sources, cut).drawn()
    if any(node.watermark < 1 for node in nodes):
        sources = tuple(replace(source, partitions=1) for source in sources)
    steps = _Steps(chance, sources).drawn()
    nodes = _come_and_go(chance, nodes, len(steps))
    if rush:
        steps = tuple(replace(step, rush=chance.random() < 0.5) for step in steps[:-1]) + steps[-1:]
        settled = {node.since - 1 for node in nodes} | {node.until - 1 for node in nodes}
        steps = tuple(replace(s, rush=False) if s.drain or s.number in settled else s for s in steps)
    options = _options(chance, cut)
    if lags(nodes) and cut:
        nodes = _without_timers_behind_holds(nodes)
    elif lags(nodes):
        if chance.random() < 0.5:
            options = replace(options, slots=1, shards=1)
            steps = tuple(replace(step, slots=0, layout=0) for step in steps)
            nodes = tuple(replace(node, since=0, until=NodeSpec.until) for node in nodes)
        else:
            nodes = tuple(replace(node, holds=False, watermark=1.0) for node in nodes)
    return Case(seed, sources, nodes, steps, options)


def _sources(chance: random.Random) -> tuple[SourceSpec, ...]:
    streams = ["in0", *chance.sample(["in0", "in1", "in1"], chance.choice((0, 0, 1, 2)))]
    return tuple(
        SourceSpec("abc"[index], stream, chance.choice((1, 1, 1, 2))) for index, stream in enumerate(streams)
    )


def _options(chance: random.Random, cut: bool) -> Options:
    slots = chance.choice((1, 2, 3, 4))
    options = Options(
        slots=slots,
        shards=chance.choice((1, 2, 4)),
        lmdb=chance.random() < 0.1,
        compact=chance.random() < 0.6,
        cache=chance.choice((0, 0, 0, 1_000, 10_000_000)),
        order=chance.randrange(1 << 30),
    )
    if cut:
        limits = chance.choice(("due", "budget", "both"))
        if limits != "budget":
            options = replace(options, due_limit=chance.choice((1, 2, 3)))
        if limits != "due":
            options = replace(options, budget=chance.choice((1, 2, 4)))
    return options


def lags(nodes: tuple[NodeSpec, ...]) -> bool:
    """Whether a computation shares a level with one whose watermark it cannot know within an epoch.

    In one level the intervals do not hear of each other before the epoch is over: of a hold, and of what
    percentiles count, a chained consumer in another interval hears one epoch later. So it is where the
    computations of the level have just changed.
    """
    holding: set[str] = set()
    for node in nodes:
        chained = {stream for stream, how in node.inputs.items() if how == "by_key"}
        if chained & holding:
            return True
        if node.holds or chained & holding:
            holding |= set(node.streams)
    made = {stream for node in nodes for stream in node.streams}
    return any(
        how == "by_key" and stream in made for node in nodes for stream, how in node.inputs.items()
    ) and any(node.watermark < 1 for node in nodes)


def _without_timers_behind_holds(nodes: tuple[NodeSpec, ...]) -> tuple[NodeSpec, ...]:
    """What shares a level with others only forwards, the others are windows, which do not look at watermarks.

    So it does not matter when they hear of a hold.
    """
    made = {stream for node in nodes for stream in node.streams}
    found = []
    for node in nodes:
        if any(how == "by_key" and stream in made for stream, how in node.inputs.items()):
            node = replace(node, kind="forward", holds=False, combine="", in_order=False)
        elif node.kind == "script":
            node = replace(node, kind="window", ordered=False)
        found.append(node)
    return tuple(found)


def _come_and_go(chance: random.Random, nodes: tuple[NodeSpec, ...], steps: int) -> tuple[NodeSpec, ...]:
    """Some of the last computations are added, or removed, while the pipeline runs."""
    found = list(nodes)
    read = {stream for node in nodes for stream in node.inputs}
    for index, node in enumerate(nodes):
        if index and not read & set(node.streams) and chance.random() < 0.25:
            step = chance.randrange(1, steps)
            found[index] = replace(node, since=step) if chance.random() < 0.5 else replace(node, until=step)
    return tuple(found)


class _Nodes:
    """Draws computations one behind the other; each reads what is written before it."""

    def __init__(self, chance: random.Random, sources: tuple[SourceSpec, ...], cut: bool) -> None:
        self._chance = chance
        self._cut = cut
        self._streams = list(dict.fromkeys(source.stream for source in sources))
        self._ordered: dict[str, bool] = {}
        """By stream: whether the records of one of its keys have an order."""
        for source in sources:
            self._ordered[source.stream] = source.partitions == 1 and source.stream not in self._ordered
        self._injected = set(self._streams)
        self._read: set[str] = set()
        self._percentile = chance.choice((0.9, 0.75, 0.5)) if chance.random() < 0.35 else 1.0
        if "percentiles" in OPEN:
            self._percentile = 1.0

    def drawn(self) -> tuple[NodeSpec, ...]:
        if self._cut and self._chance.random() < 0.15:
            return tuple(self._holding(index) for index in range(self._chance.choice((2, 3, 4))))
        return tuple(self._node(index) for index in range(self._chance.choice((1, 2, 2, 3, 3, 4, 5))))

    def _holding(self, index: int) -> NodeSpec:
        """One of several windows, one behind the other, that hold until the run ends."""
        chance = self._chance
        inputs: dict[str, Extractor] = {
            f"s{index - 1}" if index else "in0": chance.choice(("suffix", "field", "field", "mod"))
        }
        late: Any = chance.choice(("deliver", "drop", "divert"))
        seed = chance.randrange(1 << 20) * 2
        return NodeSpec(f"N{index}", "window", seed, inputs, (f"s{index}",), holds=True, late=late)

    def _node(self, index: int) -> NodeSpec:
        chance = self._chance
        inputs = self._inputs()
        self._read |= inputs.keys()
        kinds: tuple[Kind, ...] = ("script", "script", "script", "window", "forward")
        kind: Kind = chance.choice(("window", *kinds) if self._cut else kinds)
        name = f"N{index}"
        node = NodeSpec(
            name,
            kind,
            chance.randrange(1 << 20),
            inputs,
            self._outputs(index),
            ordered=self._keeps_order(inputs),
            holds=chance.random() < 0.35 and kind != "forward",
            late=chance.choice(("deliver", "deliver", "drop", "divert")),
            errors=chance.choice(("stop", "stop", "divert")),
            watermark=self._percentile if chance.random() < 0.5 else 1.0,
            exactly_once=chance.random() < 0.85,
            strong=chance.random() < 0.75,
            wall=chance.random() < 0.6,
        )
        node = self._special(node)
        if node.errors == "divert" and chance.random() < 0.3:
            node = replace(node, inputs={stream: "picky" for stream in inputs}, ordered=False)
        self._streams += [stream for stream in node.streams if stream not in self._streams]
        for stream in node.streams:
            self._ordered[stream] = node.ordered and stream not in self._ordered
        return node

    def _special(self, node: NodeSpec) -> NodeSpec:
        chance = self._chance
        plain = not any(stream.endswith(".errors") for stream in node.inputs)
        if node.kind == "window" and plain and chance.random() < 0.4:
            combine: Any = chance.choice(("sum", "in_place"))
            node = replace(node, combine=combine, ordered=False)
        # Equal timestamps come in order of arrival. Where that is open, a timer between them would be, too.
        known = node.ordered or node.kind == "window"
        if known and node.kind != "forward" and chance.random() < 0.3:
            node = replace(node, in_order=True)
        if node.kind == "window":
            node = replace(node, ordered=False)
        return node

    def _inputs(self) -> dict[str, Extractor]:
        chance, streams = self._chance, self._streams
        recent = streams[-3:]
        chosen = {chance.choice(recent if chance.random() < 0.7 else streams)}
        if chance.random() < 0.3:
            chosen.add(chance.choice(streams))
        return {stream: chance.choice(_EXTRACTORS) for stream in sorted(chosen)}

    def _outputs(self, index: int) -> tuple[str, ...]:
        chance = self._chance
        outputs = [f"s{index}"]
        if chance.random() < 0.2 and "shared" not in self._read:
            outputs.append("shared")
        if chance.random() < 0.1 and self._streams[0] not in self._read:
            outputs.append(self._streams[0])
        return tuple(outputs)

    def _keeps_order(self, inputs: dict[str, Extractor]) -> bool:
        """Whether the contract gives an order to the records of one key (semantics 11)."""
        if len(inputs) > 1:
            return False
        stream, how = next(iter(inputs.items()))
        return self._ordered[stream] and (stream in self._injected or how in ("by_key", "suffix"))


class _Steps:
    """Draws what happens: records, watermarks, clocks, and trouble."""

    def __init__(self, chance: random.Random, sources: tuple[SourceSpec, ...]) -> None:
        self._chance = chance
        self._places = [(source.name, part) for source in sources for part in range(source.partitions)]
        self._marks = dict.fromkeys(self._places, 0)
        self._streams = {source.name: source.stream for source in sources}
        writers = [self._streams[name] for name, _ in self._places]
        self._alone = {source.name for source in sources if writers.count(source.stream) == 1}
        self._sent: dict[tuple[str, int], Sent] = {}
        self._wall = 0
        self._records = 0

    def drawn(self) -> tuple[Step, ...]:
        chance = self._chance
        steps: list[Step] = []
        for day in range(chance.choice((1, 1, 1, 2, 3))):
            first = len(steps)
            count = chance.randrange(4, 13) if not day else chance.randrange(1, 5)
            steps += [self._step(first + number) for number in range(count)]
            if day:
                steps[first] = replace(steps[first], reopen=True)
            if chance.random() < 0.75:
                steps.append(self._last(len(steps)))
        return tuple(steps)

    def _step(self, number: int) -> Step:
        chance = self._chance
        records = tuple(self._record() for _ in range(chance.choice((0, 1, 2, 4, 8, 12))))
        moved = {}
        if chance.random() < 0.6:
            for place in self._places:
                if chance.random() < 0.85:
                    self._marks[place] += chance.randrange(0, 25)
                    moved[place] = self._marks[place]
        if chance.random() < 0.4:
            self._wall += chance.randrange(1, 20)
        trouble = chance.random()
        return Step(
            number,
            records,
            moved,
            self._wall,
            crash=trouble < 0.12,
            slots=chance.randrange(1, 5) if 0.12 < trouble < 0.2 else 0,
            layout=chance.randrange(1, 1 << 20) if 0.2 < trouble < 0.3 else 0,
            fault=chance.randrange(1, 1 << 20) if 0.3 < trouble < 0.45 else 0,
        )

    def _last(self, number: int) -> Step:
        records = tuple(self._record() for _ in range(self._chance.choice((0, 2, 4))))
        marks = dict.fromkeys(self._places, MAX_TIME)
        fault = self._chance.randrange(1, 1 << 20) if self._chance.random() < 0.2 else 0
        return Step(number, records, marks, self._wall, drain=True, fault=fault)

    def _record(self) -> Sent:
        chance = self._chance
        self._records += 1
        source, partition = chance.choice(self._places)
        sent = Sent(
            self._records,
            source,
            partition,
            chance.choice(_KEYS),
            chance.randrange(100),
            self._marks[source, partition] + chance.randrange(-12, 30),
        )
        if chance.random() > 0.35:
            return sent
        id = chance.randrange(16)
        # Which of two comes first is open where they have different producers: then they are the same.
        again = self._sent.setdefault((self._streams[source], id), sent)
        if source not in self._alone or chance.random() < 0.7:
            sent = replace(sent, key=again.key, n=again.n, timestamp=again.timestamp)
        return replace(sent, id=id)
