"""Compares the files of a store with each other, to find an older copy.

With each of its writes the journal stores the number of writes of each shard until then, and each interval
of a shard has the epoch and the sequencer of its last write. A shard with fewer writes than the journal has
counted is older than the journal; a journal with an older epoch or sequencer than an interval's is older
than the shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from millwheel.errors import StoreError
from millwheel.model.codec import unpack
from millwheel.store.keyspace import INTERVAL, JournalKey, after
from millwheel.store.lmdb.environment import LmdbShard
from millwheel.store.unfinished import refuse_unfinished


def refuse_older_copies(path: Path, journal: LmdbShard, shards: Sequence[LmdbShard]) -> None:
    """Raises a `StoreError` if a file of a store in a folder is older than another."""
    with journal.snapshot() as snapshot:
        refuse_unfinished(snapshot)  # its journal is copied last, and is older until then
    _, noted = journal.writes()
    for number, shard in enumerate(shards):
        known = int.from_bytes(noted[8 * number : 8 * number + 8], "big")
        if shard.writes()[0] < known:
            raise _older(path, shard.path.name, "journal")
    reached = [(shard.path.name, *_reached(shard)) for shard in shards]
    with journal.snapshot() as snapshot:
        commit, plan, driver = snapshot.get_each([JournalKey.COMMIT, JournalKey.PLAN, JournalKey.DRIVER])
    epoch = max(
        unpack(commit)[0] if commit is not None else 0, unpack(plan)["epoch"] if plan is not None else 0
    )
    generation = unpack(driver)[0] if driver is not None else 0
    for name, sequencer, last in reached:
        if last > epoch or sequencer > generation:
            raise _older(path, "journal", name)


def _reached(shard: LmdbShard) -> tuple[int, int]:
    """The newest sequencer and epoch of a shard."""
    with shard.snapshot() as snapshot:
        states = [unpack(value)[:2] for _, value in snapshot.scan(INTERVAL, after(INTERVAL))]
    return max((state[0] for state in states), default=0), max((state[1] for state in states), default=0)


def _older(path: Path, old: str, other: str) -> StoreError:
    return StoreError(
        f"the store {path} is damaged: {old} is older than {other}, so it is a copy of an earlier moment. "
        "Restore the whole folder from one backup, or remove it and start again; do not replace single files"
    )
