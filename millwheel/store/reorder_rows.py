"""Buffered records (``in_order=True``) as they are stored: pieces of a tablet's."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from millwheel.model.codec import pack, unpack
from millwheel.model.record import RecordId, decode_json
from millwheel.store.base import Snapshot
from millwheel.store.keyspace import after, waiting_prefix


class Waiters(NamedTuple):
    """A stored piece: records in order of time."""

    streams: list[str]
    keys: list[str]
    timestamps: list[int]
    ids: list[RecordId | None] | None
    late: list[int]
    """The positions of late records that are still to be delivered."""
    values: list[Any] | None
    json: list[bytes] | None

    def to_bytes(self) -> bytes:
        """Encodes it for the store."""
        names = sorted(set(self.streams))
        numbers = [names.index(stream) for stream in self.streams] if len(names) > 1 else None
        times = array("q", self.timestamps).tobytes()
        values = self.values if self.json is None else self.json
        return pack([names, numbers, self.keys, times, self.ids, self.late, self.json is not None, values])

    @staticmethod
    def from_bytes(data: bytes) -> Waiters:
        """The inverse of `to_bytes`."""
        names, numbers, keys, packed_times, ids, late, is_json, values = unpack(data)
        times = array("q")
        times.frombytes(packed_times)
        streams = names * len(keys) if numbers is None else [names[number] for number in numbers]
        return Waiters(
            streams, keys, times.tolist(), ids, late, None if is_json else values, values if is_json else None
        )


def pieces(snapshot: Snapshot, computation: int, tablet: int) -> Iterator[Waiters]:
    """All pieces of a tablet, in order of their first records."""
    prefix = waiting_prefix(computation, tablet)
    for _, data in snapshot.scan(prefix, after(prefix)):
        yield Waiters.from_bytes(data)


def of_key(
    snapshot: Snapshot, computation: int, tablet: int, key: str
) -> Iterator[tuple[int, str, Any, bool]]:
    """A key's buffered records: timestamp, stream, value, if late. Reads its tablet."""
    for found in pieces(snapshot, computation, tablet):
        for place, mine in enumerate(found.keys):
            if mine == key:
                value = found.values[place] if found.values is not None else None
                if found.json is not None:
                    value = decode_json(found.json[place])
                yield found.timestamps[place], found.streams[place], value, place in found.late
