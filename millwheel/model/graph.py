"""The graph of a pipeline, checked and divided into levels.

A level is a shuffle: computations of one level run in one task per slot. A computation that reads a
producer by `by_key` shares its keys, hence its intervals, and runs in the producer's level.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from millwheel.errors import PipelineError
from millwheel.model import codec as codecs
from millwheel.model.derived import Derived, is_public, public_name
from millwheel.model.keys import ByKey, KeyExtractor
from millwheel.model.names import Sender, SourceName
from millwheel.model.pipeline import ERRORS_SUFFIX, LATE_SUFFIX, Node, Pipeline, Source
from millwheel.model.side_table import HeldTable, Lookup
from millwheel.model.sink import Sink

MOST_LEVELS = 255  # the store's keys have one byte for a level


@dataclass(frozen=True)
class Edge:
    """One consumer's input from one stream."""

    index: int
    stream: str
    consumer: str
    extractor: KeyExtractor
    level: int


@dataclass(frozen=True)
class Graph:
    """A pipeline in the order in which an epoch runs it.

    Every node comes after its producers; every edge leads to the producer's level (chained) or to
    a later one.
    """

    name: str
    sources: tuple[Source, ...]
    nodes: dict[str, Node]
    levels: tuple[tuple[str, ...], ...]
    edges: tuple[Edge, ...]
    consumers: dict[str, tuple[Edge, ...]]
    producers: dict[str, tuple[Sender, ...]]
    """By stream: the computations and the injectors that write it."""
    sinks: dict[str, tuple[Sink, ...]]
    level_of: dict[str, int] = field(default_factory=dict)
    replays: dict[str, dict[Sender, Sender]] = field(default_factory=dict)
    """By computation that catches up: its own injector for each shared one."""
    derived: dict[str, tuple[tuple[Derived, int], ...]] = field(default_factory=dict)
    """By stream: the streams derived from it, and its position among their parents."""
    side_tables: dict[str, HeldTable] = field(default_factory=dict)
    """By name: the tables for lookups."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Every stream that a user named, in no particular order."""
        return tuple(filter(is_public, self.producers))

    def origins(self, stream: str) -> set[str]:
        """The streams that a stream is derived from; itself if it is not derived."""
        parents = {
            parent for parent, found in self.derived.items() for derived, _ in found if derived.name == stream
        }
        if not parents:
            return {stream}
        return set().union(*map(self.origins, parents))

    @cached_property
    def percentiles(self) -> tuple[float, ...]:
        """The percentile watermarks in use, beside the exact ones."""
        return tuple(sorted({node.watermark for node in self.nodes.values()} - {1.0}))

    def senders(self, node: str) -> tuple[Sender, ...]:
        """The senders whose watermarks bound a computation's input."""
        return self._senders[node]

    @cached_property
    def _senders(self) -> dict[str, tuple[Sender, ...]]:
        """By computation; cached, as every step of every epoch needs it."""
        found: dict[str, tuple[Sender, ...]] = {}
        for name, node in self.nodes.items():
            own = self.replays.get(name, {})
            found[name] = tuple(
                {own.get(s, s): None for stream in node.inputs for s in self.producers[stream]}
            )
        return found

    def readers(self, source: Source, stream: str) -> tuple[Edge, ...]:
        """The consumers of a source's stream; one that catches up has its own source."""
        edges = self.consumers[stream]
        if source.reader:
            return tuple(edge for edge in edges if edge.consumer == source.reader)
        if not self.replays:
            return edges
        return tuple(edge for edge in edges if source.name not in self.replays.get(edge.consumer, ()))

    def behind(self, names: Iterable[str]) -> set[str]:
        """These computations, and all that read from them."""
        found = set(names)
        for name in self.nodes:  # each comes after its producers
            if any(sender in found for sender in self.senders(name)):
                found.add(name)
        return found


def build(pipeline: Pipeline) -> Graph:
    """Checks a pipeline and divides it into levels; a mistake is a `PipelineError`."""
    if not pipeline.sources:
        raise PipelineError(f"pipeline {pipeline.name!r} has no injector: it would never do anything")
    _check_diverted(pipeline)
    producers: dict[str, list[Sender]] = {}
    for source in pipeline.sources:
        for stream in source.streams:
            producers.setdefault(stream, []).append(source.name)
    for node in pipeline.nodes.values():
        for stream in node.streams:
            producers.setdefault(stream, []).append(node.name)
    derived: dict[str, list[tuple[Derived, int]]] = {}
    for one in _behind_parents(pipeline):
        for number, parent in enumerate(one.parents):
            _written(pipeline, producers, parent, f"stream {one.label!r} is derived from")
            derived.setdefault(parent, []).append((one, number))
        writers = dict.fromkeys(writer for parent in one.parents for writer in producers[parent])
        if one.name in producers:
            raise PipelineError(
                f"pipeline {pipeline.name!r}: stream {one.name!r} is derived from "
                f"{', '.join(map(public_name, one.parents))} and is written by others as well: "
                "give it another name, and merge them with union()"
            )
        producers[one.name] = list(writers)
    for node in pipeline.nodes.values():
        for stream in node.inputs:
            _written(pipeline, producers, stream, f"computation {node.name!r} reads")
    for stream, _ in pipeline.sinks:
        _written(pipeline, producers, stream, "a sink takes")

    order = _topological(pipeline, producers)
    level_of: dict[str, int] = {}
    for name in order:
        level = 1
        for stream, extractor in pipeline.nodes[name].inputs.items():
            for producer in producers[stream]:
                if isinstance(producer, SourceName):
                    continue
                chained = isinstance(extractor, ByKey)
                level = max(level, level_of[producer] + (0 if chained else 1))
        level_of[name] = level
    deepest = max(level_of, key=level_of.__getitem__, default="")
    if level_of.get(deepest, 0) > MOST_LEVELS:
        raise PipelineError(
            f"pipeline {pipeline.name!r}: computation {deepest!r} is after {level_of[deepest] - 1} "
            f"others, each of which changes the keys; {MOST_LEVELS} levels are the most: read "
            "by mw.by_key if the key stays the same, or split the pipeline"
        )
    levels = tuple(
        tuple(name for name in order if level_of[name] == level)
        for level in range(1, max(level_of.values(), default=0) + 1)
    )

    edges: list[Edge] = []
    consumers: dict[str, list[Edge]] = {stream: [] for stream in producers}
    for name in order:
        for stream, extractor in pipeline.nodes[name].inputs.items():
            edge = Edge(len(edges), stream, name, extractor, level_of[name])
            edges.append(edge)
            consumers[stream].append(edge)
        _register_state(pipeline.nodes[name])

    sinks: dict[str, list[Sink]] = {}
    for stream, sink in pipeline.sinks:
        sinks.setdefault(stream, []).append(sink)
    return Graph(
        pipeline.name,
        tuple(pipeline.sources),
        {name: pipeline.nodes[name] for name in order},
        levels,
        tuple(edges),
        {stream: tuple(found) for stream, found in consumers.items()},
        {stream: tuple(found) for stream, found in producers.items()},
        {stream: tuple(found) for stream, found in sinks.items()},
        level_of,
        derived={stream: tuple(found) for stream, found in derived.items()},
        side_tables=_side_tables(pipeline),
    )


def _side_tables(pipeline: Pipeline) -> dict[str, HeldTable]:
    steps = [step for derived in pipeline.derived.values() for step in derived.steps]
    found = [step.function.table for step in steps if isinstance(step.function, Lookup)]
    return {table.name: table for table in found}


def _behind_parents(pipeline: Pipeline) -> list[Derived]:
    """The derived streams in topological order; a cycle is an error."""
    order: dict[str, Derived] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise PipelineError(
                f"pipeline {pipeline.name!r}: stream {public_name(name)!r} derives from itself"
            )
        if name in pipeline.derived and name not in order:
            for parent in pipeline.derived[name].parents:
                visit(parent, (*path, name))
            order[name] = pipeline.derived[name]

    for name in pipeline.derived:
        visit(name, ())
    return list(order.values())


def _check_diverted(pipeline: Pipeline) -> None:
    """Refuses a diverted stream that has another writer."""
    owners: dict[str, str] = {}
    for source in pipeline.sources:
        owners |= dict.fromkeys(source.diverted, f"the injector of {source.stream!r}")
    for node in pipeline.nodes.values():
        for stream in node.diverted:
            who = f"computation {node.name!r}"
            if owners.setdefault(stream, who) != who:
                raise PipelineError(
                    f"pipeline {pipeline.name!r}: {who} and {owners[stream]} both divert to the stream "
                    f"{stream!r}: give the computation another name"
                )
    used = [(source.stream, f"the injector of {source.stream!r}") for source in pipeline.sources]
    used += [(stream, f"computation {n.name!r}") for n in pipeline.nodes.values() for stream in n.outputs]
    for stream, who in used:
        if owners.get(stream, who) != who:
            raise PipelineError(
                f"pipeline {pipeline.name!r}: stream {stream!r} has the records that {owners[stream]} "
                f"diverts, and {who} writes a stream of that name: give yours another name"
            )


def _written(pipeline: Pipeline, producers: Iterable[str], stream: str, who: str) -> None:
    if stream in producers:
        return
    message = f"pipeline {pipeline.name!r}: {who} stream {public_name(stream)!r}, which nobody writes"
    owner = stream.removesuffix(ERRORS_SUFFIX)
    close = difflib.get_close_matches(stream, list(producers), n=1)
    if owner != stream and owner in pipeline.nodes:
        message += f': add {owner!r} with errors="divert" to have it'
    elif stream.removesuffix(LATE_SUFFIX) in pipeline.nodes:
        message += f': add {stream.removesuffix(LATE_SUFFIX)!r} with late="divert" to have it'
    elif owner != stream and owner in producers:
        message += f': give the injector of {owner!r} errors="divert" to have it'
    elif close:
        message += f": did you mean {close[0]!r}?"
    else:
        message += f": the streams are {', '.join(sorted(producers)) or 'none'}"
    raise PipelineError(message)


def _topological(pipeline: Pipeline, producers: dict[str, list[Sender]]) -> list[str]:
    """The computations in topological order; the error of a cycle has its path."""
    order: list[str] = []
    done: set[str] = set()
    for root in pipeline.nodes:
        path: list[str] = []
        stack: list[tuple[str, bool]] = [(root, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                path.pop()
                done.add(name)
                order.append(name)
                continue
            if name in done:
                continue
            if name in path:
                cycle = " <- ".join([*path[path.index(name) :], name])
                raise PipelineError(
                    f"pipeline {pipeline.name!r} has a cycle: {cycle}; a graph of computations has none"
                )
            path.append(name)
            stack.append((name, True))
            stack.extend(
                (producer, False)
                for stream in pipeline.nodes[name].inputs
                for producer in reversed(producers[stream])
                if isinstance(producer, str)
            )
    return order


def _register_state(node: Node) -> None:
    """Registers the dataclass of a computation's state, to be sent to workers."""
    try:
        state = node.computation.initial_state()
    except Exception:  # it may need a key, which only a hook has; it will be called there
        return
    codecs.register_tree(type(state))
