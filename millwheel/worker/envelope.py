"""Envelopes: records packed for one slot, which a carrier moves as opaque bytes.

Records are packed in columns, in the order in which they were sent: one call packs a column of a whole
section. Lines of JSON are sent as they were read, and decoded when a hook reads them. A *frame* is
what one task sends to one slot: low watermarks, sections, and the reports on their way to the driver.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, NamedTuple, cast

from millwheel.model.batch import RecordBatch
from millwheel.model.codec import pack_plain, unpack
from millwheel.model.emitted import Emitted
from millwheel.model.names import WatermarkName
from millwheel.model.record import Record

Bytes = bytes | memoryview
"""Packed here, or a part of what a carrier has delivered."""


class Section(NamedTuple):
    """The records for one consumer, from one stream, in one interval or a part of it."""

    edge: int
    interval: int
    part: int | None
    columns: bytes

    def batch(self) -> tuple[RecordBatch, list[int] | None]:
        """The records, and the counts by key if they are sorted by key.

        Decoded at each call: hooks may change their values, and a step may be run again.
        """
        return unpack_columns(self.columns)


def pack_section(
    edge: int, interval: int, part: int | None, batch: RecordBatch, counts: list[int] | None = None
) -> bytes:
    """Packs a section; with ``counts``, the batch has each key once."""
    return pack_plain([edge, interval, part, pack_columns(batch, counts)])


def unpack_section(data: Bytes) -> Section:
    """The inverse of `pack_section`."""
    return Section(*unpack(data))


class Batch(NamedTuple):
    """Records for a sink, in the order in which they were produced."""

    stream: str
    shard: int
    columns: RecordBatch

    def records(self) -> list[Record]:
        """The records, as a user's own sink takes them."""
        return list(self.columns.records(self.stream))


def pack_batch(stream: str, shard: int, batch: RecordBatch) -> bytes:
    """Packs a batch."""
    return pack_plain([stream, shard, pack_columns(batch)])


def unpack_batch(data: bytes) -> Batch:
    """The inverse of `pack_batch`."""
    stream, shard, columns = unpack(data)
    return Batch(stream, shard, unpack_columns(columns)[0])


_OBJECTS, _LINES, _WINDOWS = 0, 1, 3  # what values are on the wire; 2, of older versions, are lines too


def pack_columns(batch: RecordBatch, counts: list[int] | None = None) -> bytes:
    """Packs records. With ``counts`` they are sorted by key, each key stored once."""
    json, times, windows = batch.json, batch.timestamps, batch.windows
    if windows is not None and windows.keys == batch.keys:
        return pack_plain([batch.keys, b"", batch.ids, _WINDOWS, windows.to_value(), counts])
    data = array("q", times).tobytes() if isinstance(times, list) else times.tobytes()
    values = batch.packed_values() if json is None else b"\n".join(json)
    return pack_plain([batch.keys, data, batch.ids, _OBJECTS if json is None else _LINES, values, counts])


def unpack_columns(data: Bytes) -> tuple[RecordBatch, list[int] | None]:
    """The inverse of `pack_columns`; packed values are decoded."""
    keys, times, ids, form, values, counts = unpack(data)
    if form == _WINDOWS:
        windows = Emitted.from_value(keys, values)
        return RecordBatch(windows.timestamps(), [], ids, keys, windows=windows), counts
    numbers = array("q")
    numbers.frombytes(times)
    if counts is not None:
        keys = list(chain.from_iterable(map(repeat, keys, counts)))
    if form:
        lines = values.split(b"\n") if numbers else []
        return RecordBatch(numbers.tolist(), [], ids, keys, json=lines), counts
    return RecordBatch(numbers.tolist(), unpack(values), ids, keys), counts


_HEAD = 4  # bytes of a frame for the length of its first part


@dataclass
class Frame:
    """A message of one task to one slot.

    Every task sends one to every slot, empty or not, so that a receiver has the frames of all of them
    before it uses their watermarks.
    """

    senders: int
    sender: int
    watermarks: dict[WatermarkName, int]
    sections: dict[int, list[Bytes]] = field(default_factory=dict)
    """By level; those for a later level are forwarded."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    """An injecting task's batches for sinks: the receiver writes them."""
    error: Any = None
    """An exception, pickled to be sent: later tasks do nothing, the driver raises it."""
    unfinished: list[str] = field(default_factory=list)
    """Computations with work left in this epoch: the next one continues it."""
    pending: dict[str, list[Any]] = field(default_factory=dict)
    """By computation of the sender's level: `Outcome.pending` of each interval."""
    newest: dict[WatermarkName, int] = field(default_factory=dict)
    """Of an injecting task, by watermark: the newest timestamp that it read."""

    def to_bytes(self) -> bytes:
        """Encodes it for the carrier."""
        return b"".join(self.to_parts())

    def to_parts(self) -> list[Bytes]:
        """The same in pieces, for a carrier that takes several: the sections last."""
        lengths = {level: list(map(len, sections)) for level, sections in self.sections.items()}
        head = pack_plain(list({**self.__dict__, "sections": lengths}.values()))
        return [len(head).to_bytes(_HEAD, "big"), head, *chain.from_iterable(self.sections.values())]

    @staticmethod
    def from_bytes(data: Bytes) -> Frame:
        """The inverse of `to_bytes`; the sections are not copied."""
        data = memoryview(data)
        end = _HEAD + int.from_bytes(data[:_HEAD], "big")
        frame = Frame(*unpack(data[_HEAD:end]))
        for level, lengths in cast(dict[int, list[int]], frame.sections).items():
            ends = list(accumulate(lengths, initial=end))
            frame.sections[level] = [data[first:last] for first, last in pairwise(ends)]
            end = ends[-1]
        return frame
