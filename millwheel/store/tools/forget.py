"""Removes the stored data of a computation that is no longer in its pipeline.

1. In one write to the journal, the name is removed from the computation's number, and the number is marked
   for removal. From here on the rows are unreachable: a computation that is added under the name starts
   empty. It is refused if the name is in the pipeline that runs. *Crash before*: nothing has happened.
2. The rows, timers, IDs and other entries of the number are removed, a bounded batch at a time, beside
   the pipeline if it runs. *Crash*: the number is still marked, and the next call continues.
3. The mark is removed. The number is never used again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from millwheel.errors import StoreError
from millwheel.model.codec import pack, unpack
from millwheel.model.names import source_name
from millwheel.store.base import Get, Shard, Snapshot, Store
from millwheel.store.keyspace import OF_COMPUTATIONS, JournalKey, after, away_key

BATCH = 10_000  # entries removed in one write: few enough that the pipeline's writes do not wait long
_READ = (
    JournalKey.NUMBERS,
    JournalKey.FORGOTTEN,
    JournalKey.SHAPE,
    JournalKey.DESIGN,
    JournalKey.VERSIONS,
    JournalKey.REPLAYS,
    JournalKey.COMMIT,
    JournalKey.PLAN,
    JournalKey.TOPOLOGY,
)


@dataclass
class Forgotten:
    """The result of a removal."""

    computation: str
    entries: int


class _Moved(Exception):
    """The journal has changed since it was read."""


def forget(store: Store, name: str, who: str) -> Forgotten:
    """Removes a computation's rows, and those of an interrupted call."""
    try:
        store.lock(who)
        runs = False
    except StoreError:  # a pipeline runs, which is fine unless the computation is in it
        runs = True
    while not _take_name(store, name, runs=runs):
        pass
    removed = 0
    for number in _pending(store):
        removed += sum(clear(shard, number) for shard in store.shards)
        while not _cleared(store, number):
            pass
    return Forgotten(name, removed)


def _books(snapshot: Snapshot) -> dict[bytes, Any]:
    found = {key: snapshot.get(key) for key in _READ}
    return {key: unpack(value) if value is not None else None for key, value in found.items()}


def _take_name(store: Store, name: str, *, runs: bool) -> bool:
    """Step 1; False: retry."""
    with store.journal.snapshot() as snapshot:
        books = _books(snapshot)
        raw = {key: snapshot.get(key) for key in (JournalKey.NUMBERS, JournalKey.SHAPE, JournalKey.FORGOTTEN)}
        offsets = list(snapshot.scan(JournalKey.PARTITIONS, after(JournalKey.PARTITIONS)))
    numbers: dict[str, int] = books[JournalKey.NUMBERS] or {}
    _, pending = books[JournalKey.FORGOTTEN] or (0, [])
    if name not in numbers:
        if pending:
            return True  # an earlier call was interrupted
        raise StoreError(f"the store has no computation {name!r}: it has {', '.join(numbers) or 'none'}")
    if runs and name in (books[JournalKey.SHAPE] or ({},))[0]:
        raise StoreError(
            f"computation {name!r} is in the pipeline that runs on this store: remove it first "
            "(millwheel apply), or stop the pipeline"
        )
    if _is_unfinished(books, name):
        raise StoreError(
            f"an epoch with computation {name!r} in it is not finished: run the pipeline once more, "
            "then forget it"
        )
    first_free = max(numbers.values()) + 1
    rest = {other: number for other, number in numbers.items() if other != name}
    note = [max(first_free, (books[JournalKey.FORGOTTEN] or (0,))[0]), [*pending, numbers[name]]]
    puts = [(JournalKey.NUMBERS, pack(rest)), (JournalKey.FORGOTTEN, pack(note))]
    for key in (JournalKey.VERSIONS, JournalKey.REPLAYS):
        if name in (books[key] or {}):
            puts.append((key, pack({other: value for other, value in books[key].items() if other != name})))
    design = books[JournalKey.DESIGN]
    if design is not None:
        design["away"].pop(name, None)
        puts.append((JournalKey.DESIGN, pack(design)))
    own = [key for key, value in offsets if source_name(unpack(value)[0]).reader == name]

    def guard(get: Get) -> None:
        if any(get(key) != value for key, value in raw.items()):
            raise _Moved

    try:
        store.journal.write(puts, [away_key(name), *own], guard)
    except _Moved:
        return False
    return True


def _is_unfinished(books: dict[bytes, Any], name: str) -> bool:
    """Whether an open epoch needs the computation's rows."""
    plan, commit, topology = books[JournalKey.PLAN], books[JournalKey.COMMIT], books[JournalKey.TOPOLOGY]
    if plan is None or plan["epoch"] != (commit[0] if commit is not None else 0) + 1:
        return False
    return any(name in level for level in topology[0])


def _pending(store: Store) -> list[int]:
    with store.journal.snapshot() as snapshot:
        data = snapshot.get(JournalKey.FORGOTTEN)
    return list(unpack(data)[1]) if data is not None else []


def clear(shard: Shard, number: int) -> int:
    """Step 2, in one shard; returns the number of entries removed."""
    removed = 0
    for letter in OF_COMPUTATIONS:
        prefix = letter + number.to_bytes(2, "big")
        while True:
            with shard.snapshot() as snapshot:
                found = [key for key, _ in itertools.islice(snapshot.scan(prefix, after(prefix)), BATCH)]
            if not found:
                break
            shard.write([], found)
            removed += len(found)
    return removed


def _cleared(store: Store, number: int) -> bool:
    """Step 3; False: retry."""
    with store.journal.snapshot() as snapshot:
        raw = snapshot.get(JournalKey.FORGOTTEN)
    assert raw is not None
    first_free, pending = unpack(raw)

    def guard(get: Get) -> None:
        if get(JournalKey.FORGOTTEN) != raw:
            raise _Moved

    note = pack([first_free, [other for other in pending if other != number]])
    try:
        store.journal.write([(JournalKey.FORGOTTEN, note)], (), guard)
    except _Moved:
        return False
    return True
