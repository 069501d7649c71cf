"""Copies a pipeline to another store, with all its state.

The numbers of shards and of tablets may differ. Rows, timers, counters and buffered records go to the shard
of their tablet; with another number of tablets they are made anew (`millwheel.store.tools.regroup`). A seen
ID is stored as a digest only: if a shard is split, every part gets all of its IDs, and its log of them, by
which they expire.

First the copy's journal is marked as an unfinished copy; the journal is written last, in one write
that removes the mark. A store with the mark is refused by every process that opens it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from millwheel.errors import StoreError
from millwheel.model.codec import pack, unpack
from millwheel.store.base import Shard, Store, read
from millwheel.store.formats import format_of
from millwheel.store.keyspace import (
    DIGEST,
    ID_LOG,
    LOGGED_TABLET,
    ROW,
    SEEN_ID,
    TABLET_AT,
    JournalKey,
    tablet_byte,
    tablet_near,
    tablet_of,
)
from millwheel.store.tools.regroup import Entry, regrouped, without_intervals
from millwheel.store.unfinished import UNFINISHED, refuse_unfinished

_LAST = b"\xff" * 16  # after every key
_ENTRIES = 5_000  # in one write
_BYTES = 4 << 20
_BY_DIGEST = (SEEN_ID, ID_LOG)

Tell = Callable[[int], None]


@dataclass(frozen=True)
class Copied:
    """The result of a copy."""

    pipeline: str
    epoch: int
    entries: int
    shards: int
    tablets: int


def copy(source: Store, target: Store, tell: Tell = lambda entries: None) -> Copied:
    """Copies a store to an empty one; the caller holds the locks of both.

    ``tell`` is called now and then with the number of entries copied.
    """
    for store in (source, target):
        read(store.journal, refuse_unfinished)
    journal = dict(_entries(source.journal))
    if JournalKey.DRIVER not in journal:
        raise StoreError("there is no pipeline in the store to be copied")
    if any(_entries(target.journal)) or any(next(_entries(shard), None) for shard in target.shards):
        raise StoreError("the target store is not empty: copy to a new one")
    epoch = unpack(journal[JournalKey.COMMIT])[0] if JournalKey.COMMIT in journal else 0
    planned = unpack(journal[JournalKey.PLAN])["epoch"] if JournalKey.PLAN in journal else 0
    if planned > epoch and _shape(source) != _shape(target):
        raise StoreError(
            f"epoch {planned} was begun and is not finished, and the other store has {_shape(target)}, "
            f"not {_shape(source)}: run the pipeline once more where it is, or copy to a store with "
            f"{_shape(source)}"
        )
    target.journal.write([(UNFINISHED, pack(source.address.partition("?")[0].rpartition("@")[2]))])
    copied: list[Counter[bytes]] = [Counter() for _ in target.shards]
    done = 0
    for batch in _batches(_placed(source, target)):
        for place, entries in batch.items():
            target.shards[place].write(_with_logs(target.shards[place], entries))
            copied[place].update(key[:1] for key, _ in entries)
            done += len(entries)
        tell(done)
    _verify(target, copied)
    journal[JournalKey.FORMAT] = pack(format_of(target.tablets))
    if source.tablets != target.tablets:
        _without_tablets(journal)
    target.journal.write(list(journal.items()), [UNFINISHED])
    name = str(unpack(journal[JournalKey.PIPELINE]))
    return Copied(name, epoch, done, len(target.shards), target.tablets)


def _shape(store: Store) -> str:
    return f"{len(store.shards)} shards and {store.tablets} tablets"


def _without_tablets(journal: dict[bytes, bytes]) -> None:
    """Removes the intervals: the next run divides the key space evenly."""
    for key in (JournalKey.LAYOUT, JournalKey.PLAN):
        journal.pop(key, None)
    if JournalKey.COMMIT in journal:
        journal[JournalKey.COMMIT] = without_intervals(journal[JournalKey.COMMIT])


def _placed(source: Store, target: Store) -> Iterator[tuple[int, Entry]]:
    """The entries of the target, each with its shard there."""
    shards, tablets = len(target.shards), target.tablets
    if source.tablets != tablets:
        for tablet, entry in regrouped(source, tablets):
            yield tablet * shards // tablets, entry
    for number, shard in enumerate(source.shards):
        mine = range(
            number * source.tablets // len(source.shards), (number + 1) * source.tablets // len(source.shards)
        )
        parts = range(mine[0] * shards // source.tablets, mine[-1] * shards // source.tablets + 1)
        for key, value in _entries(shard):
            letter = key[:1]
            if letter == SEEN_ID:
                yield from ((part, (key, value)) for part in parts)
            elif letter == ID_LOG:
                tablet = tablet_near(key[LOGGED_TABLET], mine.start) * tablets // source.tablets
                for part in parts:
                    own = range(part * tablets // shards, (part + 1) * tablets // shards)
                    yield part, (_logged(key, min(max(tablet, own[0]), own[-1])), value)
            elif (position := TABLET_AT.get(letter)) is None:
                raise StoreError(
                    f"the entry {key[:40].hex()} of the store is of an unknown kind: see store check"
                )
            elif source.tablets == tablets:
                suffix = key[position:]
                is_row = letter == ROW
                tablet = tablet_of(suffix, tablets) if is_row else tablet_near(suffix[0], mine.start)
                yield tablet * shards // tablets, (key, value)


def _logged(key: bytes, tablet: int) -> bytes:
    """A key of the log of IDs with another tablet."""
    return key[:LOGGED_TABLET] + tablet_byte(tablet) + key[LOGGED_TABLET + 1 :]


def _with_logs(shard: Shard, entries: list[Entry]) -> list[Entry]:
    """The entries, merged with the IDs of a log's entry: shards may share one."""
    logs = sorted({key for key, _ in entries if key[:1] == ID_LOG})
    if not logs:
        return entries
    with shard.snapshot() as snapshot:
        found = {key: value or b"" for key, value in zip(logs, snapshot.get_each(logs), strict=True)}
    for key, value in entries:
        if key[:1] == ID_LOG:
            found[key] += value
    others = [entry for entry in entries if entry[0][:1] != ID_LOG]
    return others + [(key, _once(ids)) for key, ids in found.items()]


def _once(ids: bytes) -> bytes:
    """Each ID of a log's entry once."""
    return b"".join(dict.fromkeys(ids[start : start + DIGEST] for start in range(0, len(ids), DIGEST)))


def _batches(placed: Iterable[tuple[int, Entry]]) -> Iterator[dict[int, list[Entry]]]:
    """The entries of each shard, some at a time."""
    batch: dict[int, list[Entry]] = {}
    count = size = 0
    for place, entry in placed:
        batch.setdefault(place, []).append(entry)
        count += 1
        size += len(entry[0]) + len(entry[1])
        if count >= _ENTRIES or size >= _BYTES:
            yield batch
            batch, count, size = {}, 0, 0
    if batch:
        yield batch


def _entries(shard: Shard) -> Iterator[tuple[bytes, bytes]]:
    with shard.snapshot() as snapshot:
        yield from snapshot.scan(b"\x00", _LAST)


def _verify(target: Store, copied: list[Counter[bytes]]) -> None:
    """Compares the numbers of entries."""
    for number, (shard, expected) in enumerate(zip(target.shards, copied, strict=True)):
        found = Counter(key[:1] for key, _ in _entries(shard))
        for key in _BY_DIGEST:  # several shards may have had the same ones
            if 0 < found[key] <= expected[key]:
                expected[key] = found[key]
        if +found != +expected:
            raise StoreError(
                f"shard {number} of the copy has {dict(found)} entries, and {dict(expected)} were written: "
                "another process writes there. The copy is not usable; the original is"
            )
