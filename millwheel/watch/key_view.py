"""One key of one computation: its state, timers, holds and buffered records.

Two reads, for a store of any size; the buffered records of its tablet, if it has any; and of windows
that are kept as columns, the open ones of its tablet.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millwheel.errors import PipelineError, StoreError
from millwheel.model import codec as codecs
from millwheel.model.codec import unpack
from millwheel.model.json_form import plain
from millwheel.model.keys import tablet
from millwheel.model.state_codecs import decoded
from millwheel.model.time import WALL, WATERMARK
from millwheel.store.base import Snapshot, Store
from millwheel.store.keyspace import JournalKey, counters_key
from millwheel.store.reorder_rows import of_key
from millwheel.store.window_row import find_row
from millwheel.worker.timer_index import WAITING, counters_of

_MOST_WAITING = 100  # records of a key that are shown


@dataclass(frozen=True)
class KeyView:
    """The stored data of a key. Times are microseconds since 1970."""

    computation: str
    key: str
    found: bool
    """Whether the key has a row."""
    tablet: int
    shard: int
    state: Any = None
    codec: str | None = None
    """How the state was decoded: ``raw`` if it could not be."""
    bytes: int = 0
    timers: list[dict[str, Any]] = field(default_factory=list)
    """In the order in which they will fire: tag, time, clock."""
    holds: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    """The first buffered records, in order of time: timestamp, stream, value, late."""


def inspect(
    store: Store, computation: str, key: str, codecs_by_name: Mapping[str, codecs.Codec] | None = None
) -> KeyView:
    """Looks up a key; without the codec, state is MessagePack, JSON, or bytes."""
    with store.journal.snapshot() as snapshot:
        numbers = snapshot.get(JournalKey.NUMBERS)
    if numbers is None:
        raise StoreError("the store has no pipeline in it yet")
    known: dict[str, int] = unpack(numbers)
    if computation not in known:
        raise PipelineError(f"there is no computation {computation!r}: there are {', '.join(known)}")
    place = tablet(key, store.tablets)
    shard = place * len(store.shards) // store.tablets
    with store.shards[shard].snapshot() as rows:
        row = find_row(rows, known[computation], key, store.tablets)
        waiting = _waiting(rows, known[computation], place, key)
    if row is None:
        return KeyView(computation, key, False, place, shard, waiting=waiting)
    timers = [{"tag": tag, "time": time, "clock": WATERMARK} for tag, time in row.timers.items()]
    timers += [{"tag": tag, "time": time, "clock": WALL} for tag, time in row.wall.items()]
    holds = [{"tag": tag, "time": time} for tag, time in row.holds.items()]
    codec, state = None, None
    if row.state is not None:
        codec, state = decoded(row.state, (codecs_by_name or {}).get(computation))
    return KeyView(
        computation,
        key,
        True,
        place,
        shard,
        state=plain(state),
        codec=codec,
        bytes=len(row.state or b""),
        timers=sorted(timers, key=_order),
        holds=sorted(holds, key=_order),
        waiting=waiting,
    )


def _waiting(snapshot: Snapshot, number: int, place: int, key: str) -> list[dict[str, Any]]:
    counters = snapshot.get(counters_key(number, place))
    if counters is None or not counters_of(counters)[WAITING]:
        return []
    found = [
        {"timestamp": time, "stream": stream, "value": plain(value), "late": late}
        for time, stream, value, late in itertools.islice(of_key(snapshot, number, place, key), _MOST_WAITING)
    ]
    return sorted(found, key=lambda record: int(record["timestamp"]))


def _order(entry: dict[str, Any]) -> tuple[int, str]:
    return entry["time"], entry["tag"]
