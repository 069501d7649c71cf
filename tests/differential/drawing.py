"""Draws a case from a seed: features that work alone meet here."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from tests.differential.case import (
    OPERATORS,
    Case,
    DerivedSpec,
    Extractor,
    Kind,
    NodeSpec,
    Options,
    SourceSpec,
)
from tests.differential.steps import Steps

_EXTRACTORS: tuple[Extractor, ...] = ("by_key", "by_key", "by_key", "suffix", "mod", "field", "skip")


def draw(seed: int) -> Case:
    """The case of a seed: always the same."""
    chance = random.Random(seed)
    cut = chance.random() < 0.4
    rush = cut and chance.random() < 0.5
    sources = _sources(chance)
    drawing = _Nodes(chance, sources, cut)
    nodes = drawing.drawn()
    if any(node.watermark < 1 for node in nodes):
        sources = tuple(replace(source, partitions=1) for source in sources)
    steps = Steps(chance, sources).drawn()
    read = {parent for one in drawing.derived for parent in one.parents}
    nodes = _come_and_go(chance, nodes, read, len(steps))
    if rush:
        steps = tuple(replace(step, rush=chance.random() < 0.5) for step in steps[:-1]) + steps[-1:]
        settled = {node.since - 1 for node in nodes} | {node.until - 1 for node in nodes}
        steps = tuple(replace(s, rush=False) if s.drain or s.number in settled else s for s in steps)
    options = _options(chance, cut)
    options = _with_tablets(options, random.Random(f"tablets of {seed}"))
    options = _on_objects(options, random.Random(f"object storage of {seed}"))
    sources = _with_slack(sources, random.Random(f"slack of {seed}"))
    if lags(nodes, drawing.derived) and cut:
        nodes = _without_timers_behind_holds(nodes, drawing.derived)
        steps = tuple(replace(step, rush=False) for step in steps)
    elif lags(nodes, drawing.derived):
        if chance.random() < 0.5:
            options = replace(options, slots=1, shards=1, tablets=(64,))
            steps = tuple(replace(step, slots=0, layout=0) for step in steps)
            nodes = tuple(replace(node, since=0, until=NodeSpec.until) for node in nodes)
        else:
            nodes = tuple(replace(node, holds=False, watermark=1.0) for node in nodes)
    return Case(seed, sources, nodes, steps, options, tuple(drawing.derived))


def _sources(chance: random.Random) -> tuple[SourceSpec, ...]:
    streams = ["in0", *chance.sample(["in0", "in1", "in1"], chance.choice((0, 0, 1, 2)))]
    return tuple(
        SourceSpec("abc"[index], stream, chance.choice((1, 1, 1, 2))) for index, stream in enumerate(streams)
    )


def _options(chance: random.Random, cut: bool) -> Options:
    options = Options(
        slots=chance.choice((1, 2, 2, 3, 4)),
        shards=chance.choice((1, 1, 2, 4)),
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


def _with_tablets(options: Options, chance: random.Random) -> Options:
    """Other numbers of tablets, in as many shards as the largest one needs."""
    if chance.random() < 0.5:
        return options
    tablets = tuple(chance.choice((64, 128, 256, 1_024, 4_096)) for _ in range(chance.choice((1, 2, 3))))
    return replace(options, tablets=tablets, shards=max(options.shards, max(tablets) // 256))


def _on_objects(options: Options, chance: random.Random) -> Options:
    """A few stores are in object storage, which takes ten times as long as memory."""
    return replace(options, objects=not options.lmdb and chance.random() < 0.04)


def _with_slack(sources: tuple[SourceSpec, ...], chance: random.Random) -> tuple[SourceSpec, ...]:
    """Some injectors' watermarks follow the timestamps of what was read."""
    return tuple(
        replace(source, slack=chance.choice((0, 5, 20))) if chance.random() < 0.2 else source
        for source in sources
    )


def lags(nodes: tuple[NodeSpec, ...], derived: list[DerivedSpec]) -> bool:
    """Whether a computation shares a level with one whose watermark it cannot know within an epoch.

    In one level the intervals do not hear of each other before the epoch is over: of a hold, and of what
    percentiles count, a chained consumer in another interval hears one epoch later. So it is where the
    computations of the level have just changed.
    """
    holding: set[str] = set()
    for node in nodes:
        chained = {stream for stream, how in node.inputs.items() if how == "by_key"}
        if chained & _with_derived(holding, derived):
            return True
        if node.holds:
            holding |= set(node.streams)
    made = _with_derived({stream for node in nodes for stream in node.streams}, derived)
    return any(
        how == "by_key" and stream in made for node in nodes for stream, how in node.inputs.items()
    ) and any(node.watermark < 1 for node in nodes)


def _with_derived(streams: set[str], derived: list[DerivedSpec]) -> set[str]:
    """Streams, and those that are made of them."""
    found = set(streams)
    for one in derived:  # each behind its parents
        if found & set(one.parents):
            found.add(one.name)
    return found


def _without_timers_behind_holds(
    nodes: tuple[NodeSpec, ...], derived: list[DerivedSpec]
) -> tuple[NodeSpec, ...]:
    """What shares a level with others only forwards, the others are windows, which do not look at watermarks.

    So it does not matter when they hear of a hold; but for a percentile, which goes by what is pending in
    the meantime, and does not go back.
    """
    made = _with_derived({stream for node in nodes for stream in node.streams}, derived)
    found = []
    for node in nodes:
        if any(how == "by_key" and stream in made for stream, how in node.inputs.items()):
            node = replace(node, kind="forward", holds=False, combine="", in_order=False)
        elif node.kind == "script" or node.kind in OPERATORS:
            node = replace(node, kind="window", ordered=False)
        found.append(replace(node, watermark=1.0))
    return tuple(found)


def _come_and_go(
    chance: random.Random, nodes: tuple[NodeSpec, ...], read: set[str], steps: int
) -> tuple[NodeSpec, ...]:
    """Some of the last computations are added, or removed, while the pipeline runs."""
    found = list(nodes)
    read = read | {stream for node in nodes for stream in node.inputs}
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
        self.derived: list[DerivedSpec] = []
        self._read: set[str] = set()
        self._of_operators: set[str] = set()
        """Streams whose values are not those of the other computations."""
        self._percentile = chance.choice((0.9, 0.75, 0.5)) if chance.random() < 0.35 else 1.0

    def drawn(self) -> tuple[NodeSpec, ...]:
        if self._cut and self._chance.random() < 0.15:
            return tuple(self._holding(index) for index in range(self._chance.choice((2, 3, 4))))
        nodes = []
        for index in range(self._chance.choice((1, 2, 2, 3, 3, 4, 5))):
            if self._chance.random() < 0.15:
                self._derive(index)
            nodes.append(self._node(index))
        return tuple(nodes)

    def _derive(self, index: int) -> None:
        """A stream that an operator makes of others, where their records are made."""
        chance = self._chance
        parents = chance.choices(self._streams, k=chance.choice((1, 1, 1, 2)))
        how: Any = chance.choice(("map", "filter", "flat_map", "lookup"))
        one = DerivedSpec(f"d{index}", tuple(parents), how)
        self.derived.append(one)
        self._read |= set(parents)
        self._streams.append(one.name)
        self._ordered[one.name] = len(parents) == 1 and self._ordered[parents[0]]
        if parents[0] in self._injected:
            self._injected.add(one.name)

    def _holding(self, index: int) -> NodeSpec:
        """One of several windows, one behind the other, that hold until the run ends."""
        chance = self._chance
        inputs: dict[str, Extractor] = {
            f"s{index - 1}" if index else "in0": chance.choice(("suffix", "field", "field", "mod"))
        }
        late: Any = chance.choice(("deliver", "drop", "divert"))
        seed = chance.randrange(1 << 20) * 2
        return NodeSpec(f"N{index}", "window", seed, inputs, (f"s{index}",), holds=True, late=late)

    def _operator(self, index: int) -> NodeSpec | None:
        """A window, a join, `distinct` or `top`; None where what was drawn is not there to be read."""
        chance = self._chance
        inputs = self._inputs()
        kind: Kind = chance.choice(("windows", "windows", "windows", "join", "distinct", "top"))
        if kind == "join":
            if len(self._streams) < 2:
                return None
            inputs = {stream: "by_key" for stream in chance.sample(self._streams, 2)}
            how: Extractor = chance.choice(_EXTRACTORS if self._percentile == 1 else _EXTRACTORS[2:])
            inputs = dict.fromkeys(sorted(inputs), how)
        errors = {stream for stream in self._streams if stream.endswith(".errors")}
        if _with_derived(errors, self.derived) & inputs.keys():  # no two runs have the same tracebacks
            return None
        ordered = self._keeps_order(inputs)
        if kind == "top":
            inputs, ordered = {min(inputs): "all"}, False
        if kind == "distinct" and not ordered:  # of equal times the first that came is the first
            return None
        name = f"s{index}" if kind == "top" else f"N{index}"
        self._read |= inputs.keys()
        node = NodeSpec(
            name,
            kind,
            chance.randrange(1 << 20),
            inputs,
            (f"s{index}",),
            ordered=ordered,
            holds=kind == "join" and chance.random() < 0.5,
            late=chance.choice(("drop", "divert")) if kind == "windows" else "drop",
            exactly_once=kind == "top" or chance.random() < 0.85,
            strong=kind == "top" or chance.random() < 0.75,
            wall=False,
        )
        self._streams += [stream for stream in node.streams if stream not in self._streams]
        for stream in node.streams:
            self._ordered[stream] = False
        self._of_operators |= set(node.streams)
        return node

    def _node(self, index: int) -> NodeSpec:
        chance = self._chance
        if chance.random() < 0.35:
            found = self._operator(index)
            if found is not None:
                return found
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
            holds=chance.random() < (0.35 if self._percentile == 1 else 0.8) and kind != "forward",
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
        errors = {stream for stream in self._streams if stream.endswith(".errors")} | self._of_operators
        plain = not _with_derived(errors, self.derived) & node.inputs.keys()
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
        # Percentiles are about holds behind the watermark, and chained computations behind holds lag.
        extractors = _EXTRACTORS if self._percentile == 1 else _EXTRACTORS[2:]
        return {stream: chance.choice(extractors) for stream in sorted(chosen)}

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
