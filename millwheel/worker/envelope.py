"""Envelopes: records packed for one slot, which a carrier moves as opaque bytes.

Records are packed in columns, in the order in which they were sent: one call packs a column of a whole
section. Lines of JSON travel as they were read, and are decoded when a hook looks at them. A *frame* is
what one task sends to one slot: the low watermarks it knows of, the sections, and the reports on their
way to the driver.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, NamedTuple, cast

from millwheel.model.batch import RecordBatch
from millwheel.model.codec import pack_plain, unpack
from millwheel.model.names import WatermarkName
from millwheel.model.record import Record

Bytes = bytes | memoryview
"""What was packed here, or stands somewhere in what a carrier has brought."""


class Section(NamedTuple):
    """The records for one consumer, from one stream, in one interval or one tablet of it, as sent."""

    edge: int
    interval: int
    tablet: int | None
    columns: bytes

    def batch(self) -> tuple[RecordBatch, list[int] | None]:
        """The records, and how many each key has where they are in order of their keys.

        Anew at each call: hooks may change the values that they get, and a step may be run again.
        """
        return unpack_columns(self.columns)


def pack_section(
    edge: int, interval: int, tablet: int | None, batch: RecordBatch, counts: list[int] | None = None
) -> bytes:
    """A section's bytes; with ``counts``, the batch has each key once."""
    return pack_plain([edge, interval, tablet, pack_columns(batch, counts)])


def unpack_section(data: Bytes) -> Section:
    """The inverse of `pack_section`."""
    return Section(*unpack(data))


class Batch(NamedTuple):
    """Records on their way to a sink, in the order in which they were produced."""

    stream: str
    shard: int
    columns: RecordBatch

    def records(self) -> list[Record]:
        """As a sink of the user's own takes them."""
        return list(self.columns.records(self.stream))


def pack_batch(stream: str, shard: int, batch: RecordBatch) -> bytes:
    """A batch's bytes."""
    return pack_plain([stream, shard, pack_columns(batch)])


def unpack_batch(data: bytes) -> Batch:
    """The inverse of `pack_batch`."""
    stream, shard, columns = unpack(data)
    return Batch(stream, shard, unpack_columns(columns)[0])


def pack_columns(batch: RecordBatch, counts: list[int] | None = None) -> bytes:
    """Records on the wire. With ``counts`` they are in order of their keys, and each key is there once."""
    json, times = batch.json, batch.timestamps
    data = array("q", times).tobytes() if isinstance(times, list) else times.tobytes()
    values = batch.packed_values() if json is None else b"\n".join(json)
    form = 0 if json is None else 2 if batch.own_json else 1
    return pack_plain([batch.keys, data, batch.ids, form, values, counts])


def unpack_columns(data: Bytes) -> tuple[RecordBatch, list[int] | None]:
    """The inverse of `pack_columns`; values that came packed are objects."""
    keys, times, ids, form, values, counts = unpack(data)
    numbers = array("q")
    numbers.frombytes(times)
    if counts is not None:
        keys = list(chain.from_iterable(map(repeat, keys, counts)))
    if form:
        lines = values.split(b"\n") if numbers else []
        return RecordBatch(numbers.tolist(), [], ids, keys, json=lines, own_json=form == 2), counts
    return RecordBatch(numbers.tolist(), unpack(values), ids, keys), counts


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
        return b"".join(self.to_parts())

    def to_parts(self) -> list[Bytes]:
        """The same in pieces, for a carrier that takes several: the sections as they are, behind all else."""
        lengths = {level: list(map(len, sections)) for level, sections in self.sections.items()}
        head = pack_plain(list({**self.__dict__, "sections": lengths}.values()))
        return [len(head).to_bytes(_HEAD, "big"), head, *chain.from_iterable(self.sections.values())]

    @staticmethod
    def from_bytes(data: Bytes) -> Frame:
        """The inverse of `to_bytes`; the sections are where they are, and not copied."""
        data = memoryview(data)
        end = _HEAD + int.from_bytes(data[:_HEAD], "big")
        frame = Frame(*unpack(data[_HEAD:end]))
        for level, lengths in cast(dict[int, list[int]], frame.sections).items():
            ends = list(accumulate(lengths, initial=end))
            frame.sections[level] = [data[first:last] for first, last in pairwise(ends)]
            end = ends[-1]
        return frame
