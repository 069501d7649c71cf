"""Envelopes: records packed for one slot, which a carrier moves as opaque bytes.

Records are packed in columns, grouped by key: one call packs the values of a whole section, and the
receiver need not group them again. A *frame* is what one task sends to one slot: the low watermarks
it knows of, the sections, and the reports on their way to the driver.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple, cast

from millwheel.model.codec import pack, unpack
from millwheel.model.record import Record, RecordId


class Columns(NamedTuple):
    """Records of one stream. ``values`` are packed already, or objects that nobody else holds."""

    keys: list[str]
    timestamps: list[int]
    values: list[Any]
    ids: list[RecordId | None] | None
    packed: bool

    def take(self, order: Sequence[int]) -> bytes:
        """The chosen values as one MessagePack array."""
        values = self.values
        chosen = [values[i] for i in order]
        return array_of(chosen) if self.packed else pack(chosen)

    def objects(self) -> list[Any]:
        """The values themselves; a copy where they are packed."""
        return cast(list[Any], unpack(array_of(self.values))) if self.packed else self.values


def array_of(packed: Sequence[bytes]) -> bytes:
    """A MessagePack array of values that are packed already.

    >>> unpack(array_of([pack(1), pack("two")]))
    [1, 'two']
    """
    n = len(packed)
    if n < 16:
        head = bytes((0x90 | n,))
    elif n < 1 << 16:
        head = b"\xdc" + n.to_bytes(2, "big")
    else:
        head = b"\xdd" + n.to_bytes(4, "big")
    return head + b"".join(packed)


class Section(NamedTuple):
    """The records for one consumer, from one stream, in one interval, grouped by key."""

    edge: int
    interval: int
    keys: list[str]
    counts: list[int]
    timestamps: list[int]
    ids: list[RecordId | None] | None
    values: list[Any]


def pack_section(
    edge: int,
    interval: int,
    keys: list[str],
    counts: list[int],
    timestamps: list[int],
    ids: list[RecordId | None] | None,
    values: bytes,
) -> bytes:
    """A section's bytes; ``values`` come as a MessagePack array."""
    return pack(
        [edge, interval, keys, array("I", counts).tobytes(), array("q", timestamps).tobytes(), ids, values]
    )


def unpack_section(data: bytes) -> Section:
    """The inverse of `pack_section`."""
    edge, interval, keys, counts, timestamps, ids, values = unpack(data)
    return Section(
        edge, interval, keys, _numbers("I", counts), _numbers("q", timestamps), ids, unpack(values)
    )


def pack_batch(stream: str, shard: int, columns: Columns) -> bytes:
    """Records on their way to a sink, in the order in which they were produced."""
    return pack(
        [
            stream,
            shard,
            columns.keys,
            array("q", columns.timestamps).tobytes(),
            columns.ids,
            columns.take(range(len(columns.keys))),
        ]
    )


def unpack_batch(data: bytes) -> tuple[str, int, list[Record]]:
    """The stream, the shard, and the records."""
    stream, shard, keys, timestamps, ids, values = unpack(data)
    columns = zip(
        unpack(values), _numbers("q", timestamps), keys, repeat(stream), ids or repeat(None), repeat(False)
    )
    new = tuple.__new__
    return stream, shard, [new(Record, fields) for fields in columns]


def _numbers(kind: str, data: bytes) -> list[int]:
    numbers = array(kind)
    numbers.frombytes(data)
    return numbers.tolist()


@dataclass
class Frame:
    """What one task sends to one slot. Every task sends one to every slot, empty or not, so that a
    receiver can tell that it has heard of all of them before it believes their watermarks."""

    senders: int
    sender: int
    watermarks: dict[str, int]
    sections: dict[int, list[bytes]] = field(default_factory=dict)
    """By level; those for a later level are passed on."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    """What the injecting task has for sinks: written by its receiver, once nothing can fail before it."""
    error: Any = None
    """An exception, pickled if it is to travel: nobody behind it does any work, the driver raises it."""

    def to_bytes(self) -> bytes:
        """For the carrier."""
        return pack(list(self.__dict__.values()))

    @staticmethod
    def from_bytes(data: bytes) -> Frame:
        """The inverse of `to_bytes`."""
        return Frame(*unpack(data))
