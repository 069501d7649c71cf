"""The journal: all that a driver needs to continue from another one.

Its entries are those of `millwheel.store.keyspace.JournalKey`; computations are entered by
`millwheel.master.registry`, requests by `millwheel.master.mailbox`, notes by `millwheel.watch.history`.
Each write carries its generation; one of a driver that was taken over is refused (6.2).
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
from millwheel.store.formats import check_format, format_of
from millwheel.store.keyspace import JournalKey, after, partition_key
from millwheel.store.unfinished import refuse_unfinished
from millwheel.worker.commit import weak_levels
from millwheel.worker.form import form_of
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
    """The journal's content when a driver starts."""

    commit: Commit = field(default_factory=Commit)
    partitions: dict[SourceName, dict[str, Partition]] = field(default_factory=dict)
    plan: Plan | None = None
    """An epoch that was started and not committed: it is run again as planned."""


Committed = tuple[SourceName, str, Partition]
"""An injector, a partition of it, and how far it has been read."""


class _Moved(Exception):
    """The value that was read has changed."""


class Journal:
    """Reads and writes the journal of one store for one driver."""

    def __init__(self, store: Store) -> None:
        self._shard = store.journal
        self._tablets = store.tablets
        self._generation = 0
        self._owner = ""
        self._entry = b""
        self.id = ""
        """A name unique to this store; set once the journal is acquired."""

    def acquire(self, graph: Graph, owner: str) -> int:
        """Makes this driver the owner: a new generation, whose number is its sequencer."""
        self.read(refuse_unfinished)
        form, name, driver, id = self._get(
            JournalKey.FORMAT, JournalKey.PIPELINE, JournalKey.DRIVER, JournalKey.ID
        )
        check_format(form, self._tablets)
        if name is not None and unpack(name) != graph.name:
            raise StoreError(
                f"the store belongs to the pipeline {unpack(name)!r}, not to {graph.name!r}: "
                "give this pipeline a store of its own"
            )
        self._generation = (unpack(driver)[0] if driver is not None else 0) + 1
        self._owner = owner
        self.id = unpack(id) if id is not None else uuid.uuid4().hex
        generation = self._generation
        # Unique: a store that reconnects repeats the write, and must recognise it as its own.
        self._entry = entry = pack([generation, owner, uuid.uuid4().hex])

        def guard(get: Get) -> None:
            found = get(JournalKey.DRIVER)
            if found is not None and found != entry and unpack(found)[0] >= generation:
                raise FencedError(f"{unpack(found)[1]} has taken over this pipeline at the same moment")

        puts = [
            (JournalKey.FORMAT, pack(format_of(self._tablets))),
            (JournalKey.PIPELINE, pack(graph.name)),
            (JournalKey.DRIVER, entry),
            (JournalKey.ID, pack(self.id)),
        ]
        self._shard.write(puts, (), guard)
        return generation

    @property
    def sequencer(self) -> int:
        """The sequencer of this driver, once the journal is acquired."""
        return self._generation

    def owner(self) -> str:
        """The current driver of the pipeline."""
        (found,) = self._get(JournalKey.DRIVER)
        return str(unpack(found)[1]) if found is not None else "nobody"

    def read(self, look: Callable[[Snapshot], T]) -> T:
        """Reads the journal, in one snapshot."""
        return read(self._shard, look)

    def swap(
        self, key: bytes, old: bytes | None, puts: list[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()
    ) -> bool:
        """Writes if a key still has the value that was read; False: it has not."""

        def guard(get: Get) -> None:
            if get(key) != old:
                raise _Moved

        try:
            self._write(puts, deletes, guard)
        except _Moved:
            return False
        return True

    def recover(self) -> Recovered:
        """Reads what the last driver journaled."""
        keys = (JournalKey.COMMIT, JournalKey.PLAN)
        (commit, plan), entries = read(
            self._shard,
            lambda snapshot: (
                snapshot.get_each(keys),
                list(snapshot.scan(JournalKey.PARTITIONS, after(JournalKey.PARTITIONS))),
            ),
        )
        found = Recovered(Commit.from_bytes(commit), read_partitions(entries))
        if plan is not None:
            pending = Plan.from_bytes(plan)
            if pending.epoch == found.commit.epoch + 1:
                found.plan = pending
        return found

    def planned_for(self, graph: Graph) -> tuple[bool, bool]:
        """Whether the last plan was for such a graph, and whether all of it was strong."""
        with self._shard.snapshot() as snapshot:
            topology = snapshot.get(JournalKey.TOPOLOGY)
        if topology is None:
            return False, False
        *shape, weak = unpack(topology)
        return shape == unpack(_signature(graph))[:-1], not weak

    def plan(self, plan: Plan, graph: Graph) -> None:
        """Journals a plan, before any of its work is done."""
        self._write([(JournalKey.PLAN, plan.to_bytes()), (JournalKey.TOPOLOGY, _signature(graph))])

    def forget_plan(self) -> None:
        """Removes a plan of which nothing is in the store."""
        self._write([], [JournalKey.PLAN])

    def commit(
        self, commit: Commit, partitions: Iterable[Committed], notes: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Journals the end of an epoch, or watermarks that moved without one.

        ``partitions`` are those that were read in it, ``notes`` those of an observer.
        """
        puts = [(JournalKey.COMMIT, commit.to_bytes())]
        for source, partition, state in partitions:
            value = pack([list(source), partition, state.offset, state.watermark, state.newest])
            puts.append((partition_key(source, partition), value))
        self._write([*puts, *notes])

    def layout(self) -> dict[str, Any]:
        """The last chosen intervals and the reasons; empty if they never changed."""
        with self._shard.snapshot() as snapshot:
            return read_layout(snapshot)

    def renew(self, layout: dict[str, Any]) -> int:
        """Journals other intervals under the driver's next generation: their sequencer."""
        entry = pack([self._generation + 1, self._owner, uuid.uuid4().hex])
        self._write([(JournalKey.DRIVER, entry), (JournalKey.LAYOUT, pack(layout))], renewed=entry)
        self._generation += 1
        self._entry = entry
        return self._generation

    def write(self, puts: list[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Writes entries that have no order among those of epochs."""
        self._write(puts, deletes)

    def note(self, notes: list[tuple[bytes, bytes]]) -> None:
        """Journals an observer's notes, on their own."""
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
            found = get(JournalKey.DRIVER)
            if found != self._entry and (renewed is None or found != renewed):
                owner = unpack(found)[1] if found is not None else "nobody"
                raise FencedError(
                    f"this driver ({self._owner}) was taken over by {owner}: it stops, and the other one "
                    "continues; nothing is lost"
                )
            if more is not None:
                more(get)

        self._shard.write(puts, deletes, guard)


@dataclass(frozen=True)
class Shape:
    """The readers and writers of each stream."""

    inputs: dict[str, list[str]]
    producers: dict[str, list[Sender]]
    replays: dict[str, dict[Sender, Sender]] = field(default_factory=dict)
    """By computation that catches up: its own injector for each shared one."""
    forms: dict[str, str] = field(default_factory=dict)
    """By computation: whether it uses columns or objects; empty in older stores."""
    derived: dict[str, list[str]] = field(default_factory=dict)
    """By stream: those that operators derive from it; empty in older stores."""

    def senders(self, name: str) -> list[Sender]:
        """The senders whose watermarks bound a computation's input."""
        own = self.replays.get(name, {})
        return [own.get(sender, sender) for stream in self.inputs[name] for sender in self.producers[stream]]


def read_layout(snapshot: Snapshot) -> dict[str, Any]:
    """The intervals for the next epoch, and their last changes."""
    data = snapshot.get(JournalKey.LAYOUT)
    return unpack(data) if data is not None else {}


def shape_of(graph: Graph) -> bytes:
    """The shape of a graph, for the journal."""
    inputs = {name: list(node.inputs) for name, node in graph.nodes.items()}
    producers = {stream: list(found) for stream, found in graph.producers.items()}
    forms = {name: form for name in graph.nodes if (form := form_of(graph, name))}
    derived = {stream: [one.name for one, _ in found] for stream, found in graph.derived.items()}
    return pack([inputs, producers, graph.replays, forms, derived])


def read_shape(snapshot: Snapshot) -> Shape | None:
    """The shape of the pipeline that a store belongs to."""
    data = snapshot.get(JournalKey.SHAPE)
    if data is None:
        return None
    inputs, producers, replays, *later = unpack(data)
    return Shape(
        inputs,
        {stream: list(map(_sender, found)) for stream, found in producers.items()},
        {
            name: {source_name(one): source_name(other) for one, other in own.items()}
            for name, own in replays.items()
        },
        *later,
    )


def _sender(value: Any) -> Sender:
    return value if isinstance(value, str) else source_name(value)


def read_partitions(entries: Iterable[tuple[bytes, bytes]]) -> dict[SourceName, dict[str, Partition]]:
    """By injector and partition: how far it has been read, from their entries."""
    found: dict[SourceName, dict[str, Partition]] = {}
    for _, value in entries:
        source, partition, *state = unpack(value)
        found.setdefault(source_name(source), {})[partition] = Partition(*state)
    return found


def _signature(graph: Graph) -> bytes:
    """What a plan depends on: the computations of each level, and the edges' keys."""
    return pack(
        [
            [list(level) for level in graph.levels],
            [[edge.stream, edge.consumer, edge.level] for edge in graph.edges],
            [list(source.name) for source in graph.sources],
            [[stream, one.name] for stream, found in graph.derived.items() for one, _ in found],
            list(weak_levels(graph)),
        ]
    )
