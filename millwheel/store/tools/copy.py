"""Moves a pipeline to another store, with all its state: from a laptop to a cluster, say.

The number of shards may be another one there. Rows, timers, counters and records that wait go to the shard
of their tablet. Of a seen ID only its digest is known: where a shard is cut, every part gets all of its IDs,
and its log of them, which forgets them.

First of all the copy's journal notes that it is one, and not finished; the journal comes last, in one write
with which the note goes. What has the note is refused by whoever opens it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millwheel.errors import StoreError
from millwheel.model.codec import pack, unpack
from millwheel.model.keys import TABLETS
from millwheel.store.base import Shard, Store, read
from millwheel.store.unfinished import UNFINISHED, refuse_unfinished

_LAST = b"\xff" * 16  # behind every key that there is
_ENTRIES = 5_000  # in one write
_BYTES = 4 << 20
_BY_DIGEST = b"IG"
_TABLET = {b"R": 3, b"T": 3, b"B": 3, b"W": 3, b"C": 3, b"M": 2, b"P": 2}
"""By letter: where a key has its tablet; a row has it in the first six bits of the fingerprint there."""

Tell = Callable[[int], None]


@dataclass(frozen=True)
class Copied:
    """What was copied."""

    pipeline: str
    epoch: int
    entries: int
    shards: int


def copy(source: Store, target: Store, tell: Tell = lambda entries: None) -> Copied:
    """Copies a store, of which the caller has the lock, to an empty one, of which he has it too.

    ``tell`` hears now and then how many entries are there.
    """
    for store in (source, target):
        read(store.journal, refuse_unfinished)
    journal = dict(_entries(source.journal))
    if b"driver" not in journal:
        raise StoreError("there is no pipeline in the store that is to be copied")
    if any(_entries(target.journal)) or any(next(_entries(shard), None) for shard in target.shards):
        raise StoreError("the store that is to be written is not empty: a copy is made to a new one")
    epoch = unpack(journal[b"commit"])[0] if b"commit" in journal else 0
    planned = unpack(journal[b"plan"])["epoch"] if b"plan" in journal else 0
    if planned > epoch and len(source.shards) != len(target.shards):
        raise StoreError(
            f"epoch {planned} was begun and is not finished, and the other store has {len(target.shards)} "
            f"shards, not {len(source.shards)}: run the pipeline once more where it is, or copy to a store "
            f"of {len(source.shards)} shards"
        )
    target.journal.write([(UNFINISHED, pack(source.address.partition("?")[0].rpartition("@")[2]))])
    copied: list[Counter[bytes]] = [Counter() for _ in target.shards]
    done = 0
    for number, shard in enumerate(source.shards):
        for batch in _batches(shard):
            for place, entries in _placed(batch, number, len(source.shards), len(target.shards)).items():
                target.shards[place].write(entries)
                copied[place].update(key[:1] for key, _ in entries)
            done += len(batch)
            tell(done)
    _verify(target, copied)
    target.journal.write(list(journal.items()), [UNFINISHED])
    return Copied(str(unpack(journal[b"pipeline"])), epoch, done, len(target.shards))


def _placed(
    batch: list[tuple[bytes, bytes]], number: int, shards: int, places: int
) -> dict[int, list[tuple[bytes, bytes]]]:
    """Entries of a shard by the shards that they belong to."""
    first, last = number * TABLETS // shards, (number + 1) * TABLETS // shards - 1
    parts = range(first * places // TABLETS, last * places // TABLETS + 1)
    placed: dict[int, list[tuple[bytes, bytes]]] = {}
    for entry in batch:
        key = entry[0]
        if key[:1] in _BY_DIGEST:
            for part in parts:
                placed.setdefault(part, []).append(entry)
            continue
        position = _TABLET.get(key[:1])
        if position is None:
            raise StoreError(f"nobody knows what the entry {key[:40].hex()} of the store is: see store check")
        tablet = key[position] >> 2 if key[:1] == b"R" else key[position]
        placed.setdefault(tablet * places // TABLETS, []).append(entry)
    return placed


def _batches(shard: Shard) -> Iterator[list[tuple[bytes, bytes]]]:
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for entry in _entries(shard):
        batch.append(entry)
        size += len(entry[0]) + len(entry[1])
        if len(batch) >= _ENTRIES or size >= _BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _entries(shard: Shard) -> Iterator[tuple[bytes, bytes]]:
    with shard.snapshot() as snapshot:
        yield from snapshot.scan(b"\x00", _LAST)


def _verify(target: Store, copied: list[Counter[bytes]]) -> None:
    """Counts what is there."""
    for number, (shard, expected) in enumerate(zip(target.shards, copied, strict=True)):
        found = Counter(key[:1] for key, _ in _entries(shard))
        for letter in _BY_DIGEST:  # parts of several shards may have had the same ones
            key = bytes((letter,))
            if 0 < found[key] <= expected[key]:
                expected[key] = found[key]
        if +found != +expected:
            raise StoreError(
                f"shard {number} of the copy has {dict(found)} entries, and {dict(expected)} were written: "
                "somebody else writes there. The copy is not usable; the store that it was made from is"
            )
