"""Forgets a computation: all that a store keeps of one that is not in its pipeline any more.

1. In one write to the journal, the name is taken from the computation's number, and the number is noted as
   one to be cleared. From here on nobody finds the rows: a computation that is added under the name starts
   anew. It is refused where the name is in the pipeline that runs. *Crash before*: nothing has happened.
2. The rows, timers, IDs and what else stands under the number are removed, a bounded batch at a time, beside
   the pipeline if it runs. *Crash*: the number is still noted, and the next call goes on.
3. The note is taken away. The number is never given again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from millwheel.errors import StoreError
from millwheel.model.codec import pack, unpack
from millwheel.model.names import source_name
from millwheel.store.base import Get, Shard, Snapshot, Store
from millwheel.store.keyspace import after, away_key

_BATCH = 10_000  # entries removed in one write: few enough that the pipeline's writes do not wait long
_LETTERS = b"RTIGBWC"  # where in a shard a computation's number is the beginning of a key
_READ = (
    b"numbers",
    b"forgotten",
    b"shape",
    b"design",
    b"versions",
    b"replays",
    b"commit",
    b"plan",
    b"topology",
)


@dataclass
class Forgotten:
    """What was removed."""

    computation: str
    entries: int


class _Moved(Exception):
    """The journal has changed since it was read."""


def forget(store: Store, name: str, who: str) -> Forgotten:
    """Removes a computation's rows, and those that a call before left; a `StoreError` says why it cannot."""
    try:
        store.lock(who)
        runs = False
    except StoreError:  # a pipeline runs: it is well as long as the computation is not in it
        runs = True
    while not _take_name(store, name, runs=runs):
        pass
    removed = 0
    for number in _pending(store):
        removed += sum(_clear(shard, number) for shard in store.shards)
        while not _cleared(store, number):
            pass
    return Forgotten(name, removed)


def _books(snapshot: Snapshot) -> dict[bytes, Any]:
    found = {key: snapshot.get(key) for key in _READ}
    return {key: unpack(value) if value is not None else None for key, value in found.items()}


def _take_name(store: Store, name: str, *, runs: bool) -> bool:
    """Step 1; False where it is to be tried again."""
    with store.journal.snapshot() as snapshot:
        books = _books(snapshot)
        raw = {key: snapshot.get(key) for key in (b"numbers", b"shape", b"forgotten")}
        offsets = list(snapshot.scan(b"o", after(b"o")))
    numbers: dict[str, int] = books[b"numbers"] or {}
    _, pending = books[b"forgotten"] or (0, [])
    if name not in numbers:
        if pending:
            return True  # a call before did not come to its end
        raise StoreError(f"the store knows no computation {name!r}: it knows {', '.join(numbers) or 'none'}")
    if runs and name in (books[b"shape"] or ({},))[0]:
        raise StoreError(
            f"computation {name!r} is in the pipeline that runs on this store: take it out first "
            "(millwheel apply), or stop the pipeline"
        )
    if _is_unfinished(books, name):
        raise StoreError(
            f"an epoch with computation {name!r} in it is not finished: run the pipeline once more, "
            "then forget it"
        )
    first_free = max(numbers.values()) + 1
    rest = {other: number for other, number in numbers.items() if other != name}
    note = [max(first_free, (books[b"forgotten"] or (0,))[0]), [*pending, numbers[name]]]
    puts = [(b"numbers", pack(rest)), (b"forgotten", pack(note))]
    for key in (b"versions", b"replays"):
        if name in (books[key] or {}):
            puts.append((key, pack({other: value for other, value in books[key].items() if other != name})))
    design = books[b"design"]
    if design is not None:
        design["away"].pop(name, None)
        puts.append((b"design", pack(design)))
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
    """Whether an epoch that needs the computation's rows was started and not committed."""
    plan, commit, topology = books[b"plan"], books[b"commit"], books[b"topology"]
    if plan is None or plan["epoch"] != (commit[0] if commit is not None else 0) + 1:
        return False
    return any(name in level for level in topology[0])


def _pending(store: Store) -> list[int]:
    with store.journal.snapshot() as snapshot:
        data = snapshot.get(b"forgotten")
    return list(unpack(data)[1]) if data is not None else []


def _clear(shard: Shard, number: int) -> int:
    """Step 2, in one shard; returns how many entries there were."""
    removed = 0
    for letter in _LETTERS:
        prefix = bytes((letter,)) + number.to_bytes(2, "big")
        while True:
            with shard.snapshot() as snapshot:
                found = [key for key, _ in itertools.islice(snapshot.scan(prefix, after(prefix)), _BATCH)]
            if not found:
                break
            shard.write([], found)
            removed += len(found)
    return removed


def _cleared(store: Store, number: int) -> bool:
    """Step 3; False where it is to be tried again."""
    with store.journal.snapshot() as snapshot:
        raw = snapshot.get(b"forgotten")
    assert raw is not None
    first_free, pending = unpack(raw)

    def guard(get: Get) -> None:
        if get(b"forgotten") != raw:
            raise _Moved

    note = pack([first_free, [other for other in pending if other != number]])
    try:
        store.journal.write([(b"forgotten", note)], (), guard)
    except _Moved:
        return False
    return True
