"""Envelopes: records packed for one slot, which a carrier moves as opaque bytes.

Records are packed in columns, in the order in which they were sent: one call packs a column of a whole
section. Lines of JSON travel as they were read, and are decoded when a hook looks at them. A *frame* is
what one task sends to one slot: the low watermarks it knows of, the sections, and the reports on their
way to the driver.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, NamedTuple, cast

from millwheel.model.codec import pack, pack_plain, unpack
from millwheel.model.names import WatermarkName
from millwheel.model.record import Record, RecordId, decode_json

Bytes = bytes | memoryview
"""What was packed here, or stands somewhere in what a carrier has brought."""


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
    counts: list[int] | None = None
    """Where the records are in order of their keys: how many each key has. Then ``keys`` has each once."""
    times: bytes | None = None
    """The timestamps as they travel, where they are needed for nothing else; there are no others then."""

    def packed_values(self) -> bytes:
        """The values as one MessagePack array."""
        return array_of(self.values) if self.packed else pack(self.values)

    def dealt(self, places: Sequence[int], count: int) -> list[Columns]:
        """The records by place, of which there are so many; those with a higher place are for nobody."""

        def deal(column: Sequence[Any] | None) -> Sequence[Any]:
            return [None] * count if column is None else _dealt(column, places, count)

        return [
            Columns(keys, timestamps, values, ids, self.packed, json)
            for keys, timestamps, values, ids, json in zip(
                deal(self.keys),
                deal(self.timestamps),
                deal(self.values) if self.json is None else [[]] * count,
                deal(self.ids),
                deal(self.json),
                strict=True,
            )
        ]

    def objects(self) -> list[Any]:
        """The values themselves; a copy where they are packed."""
        if self.fields is not None:
            assert self.json is not None
            return list(map(decode_json, self.json))
        return cast(list[Any], unpack(array_of(self.values))) if self.packed else self.values


def _dealt(column: Sequence[Any], places: Sequence[int], count: int) -> list[list[Any]]:
    dealt: list[list[Any]] = [[] for _ in range(count + 1)]
    deque(
        map(list.append, map(dealt.__getitem__, places), column), maxlen=0
    )  # no line of Python for a record
    return dealt[:count]


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
    """The records for one consumer, from one stream, in one interval or one tablet of it, as they were sent.

    Either ``packed`` values are there, or the ``json`` that they are to be decoded from. A step that is run
    again decodes them again: hooks may change the values that they get.
    """

    edge: int
    interval: int
    tablet: int | None
    keys: list[str]
    timestamps: list[int]
    ids: list[RecordId | None] | None
    packed: bytes | None
    json: list[bytes] | None
    counts: list[int] | None = None
    """Where the records are in order of their keys: how many each key has, one key after the other."""

    def values(self) -> list[Any] | None:
        """The values, anew at each call."""
        return None if self.packed is None else cast(list[Any], unpack(self.packed))

    def by_tablet(self, tablets: Sequence[int]) -> list[Section]:
        """A section for each tablet, of one that is for several: the tablets of its records are given."""
        positions: dict[int, list[int]] = {}
        for position, tablet in enumerate(tablets):
            positions.setdefault(tablet, []).append(position)
        values = self.values()
        return [
            self._replace(
                tablet=tablet,
                keys=[self.keys[i] for i in mine],
                timestamps=[self.timestamps[i] for i in mine],
                ids=None if self.ids is None else [self.ids[i] for i in mine],
                packed=None if values is None else pack([values[i] for i in mine]),
                json=None if self.json is None else [self.json[i] for i in mine],
            )
            for tablet, mine in positions.items()
        ]


def pack_section(edge: int, interval: int, tablet: int | None, columns: Columns) -> bytes:
    """A section's bytes."""
    json = columns.json
    values = columns.packed_values() if json is None else b"\n".join(json)
    times = array("q", columns.timestamps).tobytes() if columns.times is None else columns.times
    return pack_plain(
        [edge, interval, tablet, columns.keys, times, columns.ids, json is not None, values, columns.counts]
    )


def unpack_section(data: Bytes) -> Section:
    """The inverse of `pack_section`."""
    edge, interval, tablet, keys, timestamps, ids, is_json, values, *more = unpack(data)
    counts = more[0] if more else None  # a checkpoint of an earlier version has none
    if counts is not None:
        keys = list(chain.from_iterable(map(repeat, keys, counts)))
    times = _numbers("q", timestamps)
    if is_json:
        return Section(edge, interval, tablet, keys, times, ids, None, values.split(b"\n"), counts)
    return Section(edge, interval, tablet, keys, times, ids, values, None, counts)


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
            columns.packed_values(),
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


_HEAD = 4  # bytes of a frame's parts that say how long the first one is


@dataclass
class Frame:
    """What one task sends to one slot. Every task sends one to every slot, empty or not, so that a
    receiver can tell that it has heard of all of them before it believes their watermarks."""

    senders: int
    sender: int
    watermarks: dict[WatermarkName, int]
    sections: dict[int, list[Bytes]] = field(default_factory=dict)
    """By level; those for a later level are passed on."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    """What the injecting task has for sinks: written by its receiver, once nothing can fail before it."""
    error: Any = None
    """An exception, pickled if it is to travel: nobody behind it does any work, the driver raises it."""
    unfinished: list[str] = field(default_factory=list)
    """Computations that have not done all of the epoch: the next one continues it."""
    pending: dict[str, list[Any]] = field(default_factory=dict)
    """By computation of the sender's level: see `Outcome.pending`, for each interval of the sender's."""
    newest: dict[WatermarkName, int] = field(default_factory=dict)
    """Of an injecting task, beside the watermarks: the newest timestamp that it read for each."""

    def to_bytes(self) -> bytes:
        """For the carrier."""
        return pack_plain(list(self.__dict__.values()))

    @staticmethod
    def from_bytes(data: bytes) -> Frame:
        """The inverse of `to_bytes`."""
        return Frame(*unpack(data))

    def to_parts(self) -> list[Bytes]:
        """For a carrier that takes several things: the sections as they are, behind all else."""
        lengths = {level: list(map(len, sections)) for level, sections in self.sections.items()}
        head = pack_plain(list({**self.__dict__, "sections": lengths}.values()))
        return [len(head).to_bytes(_HEAD, "big"), head, *chain.from_iterable(self.sections.values())]

    @staticmethod
    def from_parts(data: memoryview) -> Frame:
        """The inverse of `to_parts`, laid end to end; the sections are where they are, and not copied."""
        end = _HEAD + int.from_bytes(data[:_HEAD], "big")
        frame = Frame(*unpack(data[_HEAD:end]))
        for level, lengths in cast(dict[int, list[int]], frame.sections).items():
            ends = list(accumulate(lengths, initial=end))
            frame.sections[level] = [data[first:last] for first, last in pairwise(ends)]
            end = ends[-1]
        return frame
