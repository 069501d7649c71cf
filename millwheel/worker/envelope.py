"""Envelopes: records packed for one slot, which a carrier moves as opaque bytes.

Records are packed in columns, in the order in which they were sent: one call packs a column of a whole
section. Lines of JSON travel as they were read, and are decoded when a hook looks at them. A *frame* is
what one task sends to one slot: the low watermarks it knows of, the sections, and the reports on their
way to the driver.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from millwheel.model.codec import pack, pack_plain, unpack
from millwheel.model.record import Record, RecordId, decode_json


class Columns(NamedTuple):
    """Records of one stream. ``values`` are packed already, or objects that nobody else holds.

    Where there are ``fields``, there are no ``values`` but those that ``json`` can be decoded to.
    """

    keys: list[str]
    timestamps: list[int]
    values: list[Any]
    ids: list[RecordId | None] | None
    packed: bool
    json: list[bytes] | None = None
    """Where every value came as a line of JSON: the lines."""
    fields: dict[str, list[Any]] | None = None
    """By name: a field of each value, read without decoding the rest."""

    def take(self, order: Sequence[int]) -> bytes:
        """The chosen values as one MessagePack array."""
        values = self.values
        chosen = [values[i] for i in order]
        return array_of(chosen) if self.packed else pack(chosen)

    def objects(self) -> list[Any]:
        """The values themselves; a copy where they are packed."""
        if self.fields is not None:
            assert self.json is not None
            return list(map(decode_json, self.json))
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
    """The records for one consumer, from one stream, in one interval, as they were sent.

    Either ``packed`` values are there, or the ``json`` that they are to be decoded from. A step that is run
    again decodes them again: hooks may change the values that they get.
    """

    edge: int
    interval: int
    keys: list[str]
    timestamps: list[int]
    ids: list[RecordId | None] | None
    packed: bytes | None
    json: list[bytes] | None

    def values(self) -> list[Any] | None:
        """The values, anew at each call."""
        return None if self.packed is None else cast(list[Any], unpack(self.packed))


def pack_section(
    edge: int, interval: int, keys: list[str], columns: Columns, order: Sequence[int] | None
) -> bytes:
    """A section's bytes: the chosen records, or all of them. ``keys`` stand beside the columns."""
    timestamps, ids, json = columns.timestamps, columns.ids, columns.json
    if order is not None:
        keys = [keys[i] for i in order]
        timestamps = [timestamps[i] for i in order]
        ids = None if ids is None else [ids[i] for i in order]
    values: Any
    if json is not None:
        values = b"\n".join(json if order is None else [json[i] for i in order])
    else:
        values = columns.take(range(len(keys)) if order is None else order)
    return pack_plain([edge, interval, keys, array("q", timestamps).tobytes(), ids, json is not None, values])


def unpack_section(data: bytes) -> Section:
    """The inverse of `pack_section`."""
    edge, interval, keys, timestamps, ids, is_json, values = unpack(data)
    times = _numbers("q", timestamps)
    if is_json:
        return Section(edge, interval, keys, times, ids, None, values.split(b"\n"))
    return Section(edge, interval, keys, times, ids, values, None)


class Batch(NamedTuple):
    """Records on their way to a sink, in the order in which they were produced."""

    stream: str
    shard: int
    keys: list[str]
    timestamps: list[int]
    ids: list[RecordId | None] | None
    values: list[Any]

    def records(self) -> list[Record]:
        """As a sink of the user's own takes them."""
        ids = self.ids or [None] * len(self.keys)
        return [
            Record(value, time, key, self.stream, id)
            for value, time, key, id in zip(self.values, self.timestamps, self.keys, ids, strict=True)
        ]


def pack_batch(stream: str, shard: int, columns: Columns) -> bytes:
    """A batch's bytes."""
    return pack_plain(
        [
            stream,
            shard,
            columns.keys,
            array("q", columns.timestamps).tobytes(),
            columns.ids,
            columns.take(range(len(columns.keys))),
        ]
    )


def unpack_batch(data: bytes) -> Batch:
    """The inverse of `pack_batch`."""
    stream, shard, keys, timestamps, ids, values = unpack(data)
    return Batch(stream, shard, keys, _numbers("q", timestamps), ids, unpack(values))


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
        return pack_plain(list(self.__dict__.values()))

    @staticmethod
    def from_bytes(data: bytes) -> Frame:
        """The inverse of `to_bytes`."""
        return Frame(*unpack(data))
