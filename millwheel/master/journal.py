"""The journal: all that a driver needs to go on where another one ended.

    format      the layout of the store, a number
    pipeline    the name of the pipeline that the store belongs to
    numbers ... who is in the pipeline: see `millwheel.master.registry`
    shape       who reads and writes which stream, for those who look at the store
    design      what the pipeline is, as far as a change of it can be judged: see `millwheel.master.topology`
    topology    the levels and edges of the graph that the plan was made for
    id          a name that no other store has
    driver      the generation of drivers, and who the present one is; a change of intervals takes the next
    layout      the intervals of each level that the next epoch is to have, and the last changes of them
    plan        the epoch that was started last
    commit      the epoch that was committed last, the watermarks, the totals
    o...        one entry for each injector and partition: offset, watermark, newest timestamp
    request, answer   what other processes ask: see `millwheel.master.mailbox`
    watch, h... what an observer notes for those who look: see `millwheel.watch.history`

Each write says which generation it comes from; a driver that was taken over is refused (6.2).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millwheel.errors import FencedError, StoreError
from millwheel.master.commit_entry import Commit
from millwheel.model.codec import pack, unpack
from millwheel.model.graph import Graph
from millwheel.model.injector import Offset
from millwheel.model.names import Sender, SourceName, source_name
from millwheel.model.time import MIN_TIME
from millwheel.store.base import Get, Guard, Snapshot, Store, read
from millwheel.store.keyspace import FORMAT, after, check_format, partition_key
from millwheel.store.unfinished import refuse_unfinished
from millwheel.worker.commit import weak_levels
from millwheel.worker.plan import Plan

T = TypeVar("T")


@dataclass
class Partition:
    """How far a partition has been read."""

    offset: Offset = None
    watermark: int = MIN_TIME
    newest: int = MIN_TIME


@dataclass
class Recovered:
    """What the journal says when a driver starts."""

    commit: Commit = field(default_factory=Commit)
    partitions: dict[SourceName, dict[str, Partition]] = field(default_factory=dict)
    plan: Plan | None = None
    """An epoch that was started and not committed: it is run again, as it was planned."""


Committed = tuple[SourceName, str, Partition]
"""An injector, a partition of it, and how far it has been read."""


class _Moved(Exception):
    """What was read is not there any more."""


class Journal:
    """Reads and writes the journal of one store for one driver."""

    def __init__(self, store: Store) -> None:
        self._shard = store.journal
        self._generation = 0
        self._owner = ""
        self._entry = b""
        self.id = ""
        """A name that no other store has; known once the journal is acquired."""

    def acquire(self, graph: Graph, owner: str) -> int:
        """Makes this driver the owner: a new generation, whose number is the new sequencer."""
        self.read(refuse_unfinished)
        form, name, driver, id = self._get(b"format", b"pipeline", b"driver", b"id")
        check_format(form)
        if name is not None and unpack(name) != graph.name:
            raise StoreError(
                f"the store belongs to the pipeline {unpack(name)!r}, not to {graph.name!r}: "
                "give this pipeline a store of its own"
            )
        self._generation = (unpack(driver)[0] if driver is not None else 0) + 1
        self._owner = owner
        self.id = unpack(id) if id is not None else uuid.uuid4().hex
        generation = self._generation
        # No other entry is like it: a store that is cut off makes the write again, and must know it then.
        self._entry = entry = pack([generation, owner, uuid.uuid4().hex])

        def guard(get: Get) -> None:
            found = get(b"driver")
            if found is not None and found != entry and unpack(found)[0] >= generation:
                raise FencedError(f"{unpack(found)[1]} has taken this pipeline in the same moment")

        puts = [
            (b"format", pack(FORMAT)),
            (b"pipeline", pack(graph.name)),
            (b"driver", entry),
            (b"id", pack(self.id)),
        ]
        self._shard.write(puts, (), guard)
        return generation

    @property
    def sequencer(self) -> int:
        """Of this driver, once the journal is acquired."""
        return self._generation

    def owner(self) -> str:
        """Who drives the pipeline now."""
        (found,) = self._get(b"driver")
        return str(unpack(found)[1]) if found is not None else "nobody"

    def read(self, look: Callable[[Snapshot], T]) -> T:
        """Looks at the journal, in one reading."""
        return read(self._shard, look)

    def swap(
        self, key: bytes, old: bytes | None, puts: list[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()
    ) -> bool:
        """Writes if a key still has the value that was read; False: somebody else was faster."""

        def guard(get: Get) -> None:
            if get(key) != old:
                raise _Moved

        try:
            self._write(puts, deletes, guard)
        except _Moved:
            return False
        return True

    def recover(self) -> Recovered:
        """What the last driver left."""
        keys = (b"commit", b"plan")
        (commit, plan), entries = read(
            self._shard, lambda snapshot: (snapshot.get_each(keys), list(snapshot.scan(b"o", after(b"o"))))
        )
        found = Recovered(Commit.from_bytes(commit), read_partitions(entries))
        if plan is not None:
            pending = Plan.from_bytes(plan)
            if pending.epoch == found.commit.epoch + 1:
                found.plan = pending
        return found

    def planned_for(self, graph: Graph) -> tuple[bool, bool]:
        """Whether the last plan was made for a graph like this one, and whether all was strong in it."""
        with self._shard.snapshot() as snapshot:
            topology = snapshot.get(b"topology")
        if topology is None:
            return False, False
        *shape, weak = unpack(topology)
        return shape == unpack(_signature(graph))[:-1], not weak

    def plan(self, plan: Plan, graph: Graph) -> None:
        """Journals a plan, before any work is done for it."""
        self._write([(b"plan", plan.to_bytes()), (b"topology", _signature(graph))])

    def forget_plan(self) -> None:
        """Drops a plan of which nothing is in the store."""
        self._write([], [b"plan"])

    def commit(
        self, commit: Commit, partitions: Iterable[Committed], notes: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Journals the end of an epoch, or what is known of watermarks while nothing runs.

        ``partitions`` are those that were read in it, ``notes`` what an observer has to say.
        """
        puts = [(b"commit", commit.to_bytes())]
        for source, partition, state in partitions:
            value = pack([list(source), partition, state.offset, state.watermark, state.newest])
            puts.append((partition_key(source, partition), value))
        self._write([*puts, *notes])

    def layout(self) -> dict[str, Any]:
        """The intervals that were chosen last, and why; empty where they were never changed."""
        with self._shard.snapshot() as snapshot:
            return read_layout(snapshot)

    def renew(self, layout: dict[str, Any]) -> int:
        """Journals other intervals under the next generation of the same driver: their new sequencer."""
        entry = pack([self._generation + 1, self._owner, uuid.uuid4().hex])
        self._write([(b"driver", entry), (b"layout", pack(layout))], renewed=entry)
        self._generation += 1
        self._entry = entry
        return self._generation

    def note(self, notes: list[tuple[bytes, bytes]]) -> None:
        """Journals what an observer notes, on its own."""
        self._write(notes)

    def _get(self, *keys: bytes) -> list[bytes | None]:
        return read(self._shard, lambda snapshot: snapshot.get_each(keys))

    def _write(
        self,
        puts: list[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        more: Guard | None = None,
        renewed: bytes | None = None,
    ) -> None:
        def guard(get: Get) -> None:
            found = get(b"driver")
            if found != self._entry and (renewed is None or found != renewed):
                owner = unpack(found)[1] if found is not None else "nobody"
                raise FencedError(
                    f"this driver ({self._owner}) was taken over by {owner}: it stops, and the other one "
                    "goes on; nothing is lost"
                )
            if more is not None:
                more(get)

        self._shard.write(puts, deletes, guard)


@dataclass(frozen=True)
class Shape:
    """Who reads and writes which stream."""

    inputs: dict[str, list[str]]
    producers: dict[str, list[Sender]]
    replays: dict[str, dict[Sender, Sender]] = field(default_factory=dict)
    """By computation that catches up: which injector stands for which."""

    def senders(self, name: str) -> list[Sender]:
        """Whose watermarks bound a computation's input."""
        own = self.replays.get(name, {})
        return [own.get(sender, sender) for stream in self.inputs[name] for sender in self.producers[stream]]


def read_layout(snapshot: Snapshot) -> dict[str, Any]:
    """The intervals that the next epoch is to have, and their last changes."""
    data = snapshot.get(b"layout")
    return unpack(data) if data is not None else {}


def shape_of(graph: Graph) -> bytes:
    """The shape of a graph, for the journal."""
    inputs = {name: list(node.inputs) for name, node in graph.nodes.items()}
    producers = {stream: list(found) for stream, found in graph.producers.items()}
    return pack([inputs, producers, graph.replays])


def read_shape(snapshot: Snapshot) -> Shape | None:
    """The shape of the pipeline that a store belongs to."""
    data = snapshot.get(b"shape")
    if data is None:
        return None
    inputs, producers, replays = unpack(data)
    return Shape(
        inputs,
        {stream: list(map(_sender, found)) for stream, found in producers.items()},
        {
            name: {source_name(one): source_name(other) for one, other in own.items()}
            for name, own in replays.items()
        },
    )


def _sender(value: Any) -> Sender:
    return value if isinstance(value, str) else source_name(value)


def read_partitions(entries: Iterable[tuple[bytes, bytes]]) -> dict[SourceName, dict[str, Partition]]:
    """How far each partition of each injector has been read, from their entries."""
    found: dict[SourceName, dict[str, Partition]] = {}
    for _, value in entries:
        source, partition, *state = unpack(value)
        found.setdefault(source_name(source), {})[partition] = Partition(*state)
    return found


def _signature(graph: Graph) -> bytes:
    """What a plan depends on: which computations run in which level, and what edges mean."""
    return pack(
        [
            [list(level) for level in graph.levels],
            [[edge.stream, edge.consumer, edge.level] for edge in graph.edges],
            [list(source.name) for source in graph.sources],
            [[stream, one.name] for stream, found in graph.derived.items() for one, _ in found],
            list(weak_levels(graph)),
        ]
    )
