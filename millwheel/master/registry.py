"""The computations in the journal: numbers, versions, catch-up, removal.

    numbers     the number of each computation, part of the keys of its rows
    versions    the newest version of each computation that may have written state
    replays     by computation that catches up: the injectors that it reads on its own
    forgotten   the first unused number, and the numbers whose rows are being removed
    away...     one entry for each computation that was removed: its watermarks at that time

A driver registers its graph in one write, so that a new computation is never half registered. The write is
made only if ``numbers`` has not changed since it was read: `millwheel store forget` changes it too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from millwheel.errors import PipelineError
from millwheel.master.journal import Journal, Partition, Recovered, shape_of
from millwheel.master.topology import design_of, sent_elsewhere
from millwheel.model.codec import pack, unpack
from millwheel.model.graph import Graph
from millwheel.model.names import SourceName, source_name
from millwheel.model.replay import replaying, to_replay
from millwheel.store.base import Snapshot, Store
from millwheel.store.keyspace import JournalKey, after, away_key, partition_key
from millwheel.watermark.marks import ComputationMarks
from millwheel.worker.commit import touched
from millwheel.worker.fencing import fence


@dataclass
class Roster:
    """A graph as it was registered."""

    graph: Graph
    """With the sources of computations that catch up."""
    numbers: dict[str, int]
    watermarks: dict[str, ComputationMarks]
    """By computation: the authority's last values; none if it is new."""


@dataclass
class _Books:
    """The entries of the journal."""

    raw: bytes | None
    numbers: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    replays: dict[str, list[SourceName]] = field(default_factory=dict)
    next: int = 0
    away: dict[str, ComputationMarks] = field(default_factory=dict)
    design: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(snapshot: Snapshot) -> _Books:
        keys = (
            JournalKey.NUMBERS,
            JournalKey.VERSIONS,
            JournalKey.REPLAYS,
            JournalKey.FORGOTTEN,
            JournalKey.DESIGN,
        )
        raw, versions, replays, forgotten, design = (snapshot.get(key) for key in keys)
        return _Books(
            raw,
            unpack(raw) if raw is not None else {},
            unpack(versions) if versions is not None else {},
            {name: list(map(source_name, found)) for name, found in unpack(replays or b"\x80").items()},
            unpack(forgotten)[0] if forgotten is not None else 0,
            {
                name: ComputationMarks.from_value(marks)
                for name, marks in (
                    unpack(value) for _, value in snapshot.scan(JournalKey.AWAY, after(JournalKey.AWAY))
                )
            },
            unpack(design) if design is not None else {},
        )


def enrol(journal: Journal, store: Store, graph: Graph, found: Recovered) -> Roster:
    """Registers a graph; raises a `PipelineError` for a computation that cannot be."""
    while True:
        books = journal.read(_Books.read)
        _check_versions(graph, books)
        running, done = _catching_up(graph, books, found)
        if not _finishes(journal, store, replaying(graph, running), found, books.design):
            continue
        numbers = dict(books.numbers)
        fresh = [name for name in graph.nodes if name not in numbers]
        first = max([books.next, *(number + 1 for number in numbers.values())])
        numbers |= {name: first + index for index, name in enumerate(fresh)}
        # A computation with a number that was in no committed epoch has read nothing. One without a number
        # that was in one was removed by `millwheel store forget`.
        known = {
            name: value
            for name, value in {**books.away, **found.commit.watermarks}.items()
            if name in books.numbers
        }
        if found.commit.epoch and found.plan is None:
            new = [name for name in graph.nodes if name not in known and name not in books.replays]
            running |= _new_replays(graph, new, found)
        entered = replaying(graph, running)
        gone = {name: marks for name, marks in found.commit.watermarks.items() if name not in graph.nodes}
        replays = {name: names for name, names in books.replays.items() if name not in done} | running
        versions = books.versions | {name: node.computation.version for name, node in graph.nodes.items()}
        puts = [(away_key(name), pack([name, marks.to_value()])) for name, marks in gone.items()]
        puts += [
            (JournalKey.SHAPE, shape_of(entered)),
            (JournalKey.DESIGN, pack(design_of(graph, books.design))),
        ]
        if numbers != books.numbers:
            puts.append((JournalKey.NUMBERS, pack(numbers)))
        if versions != books.versions:
            puts.append((JournalKey.VERSIONS, pack(versions)))
        if replays != books.replays:
            puts.append((JournalKey.REPLAYS, pack(replays)))
        if journal.swap(JournalKey.NUMBERS, books.raw, puts, list(_own_offsets(done, found))):
            return Roster(entered, numbers, known)


def _finishes(journal: Journal, store: Store, graph: Graph, found: Recovered, design: dict[str, Any]) -> bool:
    """Whether the graph can finish an epoch that was started, if one was.

    One that was started with another graph, and of which nothing is in the store, is removed: then False.
    So is one with other keys for injected records: they would reach intervals that have committed without
    them, and others a second time.
    """
    if found.plan is None:
        return True
    same, strong = journal.planned_for(graph)
    rekeyed = sent_elsewhere(graph, design)
    if same and not rekeyed:
        return True
    fence(store, found.plan.intervals, journal.sequencer)  # no write of that epoch is accepted from here on
    # Weak productions, and records without computations, may be in sinks though nothing is in the store.
    if touched(store, found.plan) or not strong or not found.plan.intervals:
        raise PipelineError(
            f"pipeline {graph.name!r}: epoch {found.plan.epoch} was started with another "
            f"{f'key extractor of {rekeyed[0]!r}' if same else 'graph of computations'} and is not finished; "
            "run the former pipeline once more on this store, then change it"
        )
    journal.forget_plan()
    found.plan = None
    return False


def _check_versions(graph: Graph, books: _Books) -> None:
    for name, node in graph.nodes.items():
        check_version(name, node.computation.version, books.versions)


def check_version(name: str, version: int, stored: dict[str, int]) -> None:
    """Refuses to read state of a newer version with older code."""
    if stored.get(name, 1) > version:
        raise PipelineError(
            f"computation {name!r}: the store has state of version {stored[name]}, and the code is version "
            f"{version}, which cannot read it: run the newer code, or forget the state "
            f"(millwheel store forget {name})"
        )


def _catching_up(
    graph: Graph, books: _Books, found: Recovered
) -> tuple[dict[str, list[SourceName]], dict[str, list[SourceName]]]:
    """The computations that catch up, and those done; an open epoch changes none."""
    running: dict[str, list[SourceName]] = {}
    done: dict[str, list[SourceName]] = {}
    for name, sources in books.replays.items():
        if name not in graph.nodes:
            continue
        if found.plan is None and all(_level(source, name, found) for source in sources):
            done[name] = sources
        else:
            running[name] = sources
    return running, done


def _level(source: SourceName, reader: str, found: Recovered) -> bool:
    """Whether a computation that catches up has read as far as the others."""
    own = found.partitions.get(source._replace(reader=reader), {})
    others = found.partitions.get(source, {})
    return all(own.get(name, Partition()).offset == state.offset for name, state in others.items())


def _new_replays(graph: Graph, fresh: list[str], found: Recovered) -> dict[str, list[SourceName]]:
    offsets = {
        source: {name: state.offset for name, state in partitions.items() if state.offset is not None}
        for source, partitions in found.partitions.items()
    }
    read = [source for source, known in offsets.items() if known]
    replays: dict[str, list[SourceName]] = {}
    for name in fresh:
        if not graph.nodes[name].replay:
            continue
        for source in to_replay(graph, name, fresh, read):
            injector = next(s.injector for s in graph.sources if s.name == source)
            why = injector.lost(offsets[source])
            if why is not None:
                raise PipelineError(
                    f'computation {name!r}: replay="earliest" is not possible with the injector of '
                    f"{str(source)!r}: {why}. Leave replay out to start with new records"
                )
            replays.setdefault(name, []).append(source)
    return replays


def _own_offsets(done: dict[str, list[SourceName]], found: Recovered) -> Iterable[bytes]:
    for reader, sources in done.items():
        for source in sources:
            name = source._replace(reader=reader)
            for partition in found.partitions.get(name, {}):
                yield partition_key(name, partition)
