"""Records in columns: the form of many records from injector to sink.

An object for each record costs more than most of the work on it. A batch has the records of one stream,
in order; their destination (edge, interval, tablet, shard) is kept beside it, never in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from millwheel.model.codec import pack, unpack
from millwheel.model.emitted import Emitted
from millwheel.model.record import Record, RecordId, decode_json


class BadInput(NamedTuple):
    """Input that is not a record: the error, and the input itself."""

    message: str
    value: Any


@dataclass(slots=True)
class RecordBatch:
    """Records in columns; by default the key is ``""``, and there is no ID.

    Values have one of four forms: objects that are not shared, MessagePack (``packed``), lines of JSON,
    and the columns of closed windows.
    """

    timestamps: list[int]
    values: list[Any]
    ids: list[RecordId | None] | None = None
    keys: list[str] | None = None
    bad: Sequence[BadInput] = ()
    json: list[bytes] | None = None
    """The lines of JSON of the values, without newlines, to be sent as they are.
    Then ``values`` may be empty."""
    fields: dict[str, list[Any]] | None = None
    """By name: a field of each value, read without decoding the rest."""
    packed: bool = False
    """Whether each of the values is its MessagePack bytes."""
    windows: Emitted | None = None
    """The output of closed windows, with these keys, or their own.
    Then there are no ``values``."""

    def __len__(self) -> int:
        return len(self.timestamps)

    def key_column(self) -> list[str]:
        """The key of each record."""
        return [""] * len(self.timestamps) if self.keys is None else self.keys

    def objects(self) -> list[Any]:
        """The values: copies if they are packed, or only lines of JSON."""
        if self.windows is not None:
            return self.windows.values()
        if self.packed:
            return cast(list[Any], unpack(array_of(self.values)))
        if self.json is not None and not self.values:
            return list(map(decode_json, self.json))
        return self.values

    def value(self, position: int) -> Any:
        """A record's value; a copy if it is packed, or only a line of JSON."""
        if self.windows is not None:
            return self.windows.take([position]).values()[0]
        if self.packed:
            return unpack(self.values[position])
        if self.json is not None and not self.values:
            return decode_json(self.json[position])
        return self.values[position]

    def decoded(self) -> RecordBatch:
        """The batch with its values as objects."""
        if not self.packed and self.windows is None and (self.json is None or self.values):
            return self
        return RecordBatch(self.timestamps, self.objects(), self.ids, self.keys, self.bad, self.json)

    def packed_values(self) -> bytes:
        """The values as one MessagePack array."""
        return array_of(self.values) if self.packed else pack(self.objects())

    def extend(self, other: RecordBatch) -> None:
        """Appends records whose columns are not shared.

        Lines of JSON, fields and packed values are kept if both have them; else values become objects.
        """
        count, more = len(self.timestamps), len(other.timestamps)
        if not more:
            return
        if not count:
            self.packed = other.packed
            self.json = None if other.json is None else []
            self.windows = None if other.windows is None else Emitted(other.windows.names)
            self.fields = None if other.fields is None else {name: [] for name in other.fields}
        if self.json is not None and other.json is not None:
            if len(self.values) == count and len(other.values) == more:
                self.values += other.values
            else:
                self.values = []
            self.json += other.json
        elif self.windows is not None and other.windows is not None:
            if self.keys is self.windows.keys:
                self.keys = list(self.keys)
            self.windows.extend(other.windows)
        elif self.packed and other.packed:
            self.values += other.values
        else:
            self.values = self.objects()
            self.values += other.objects()
            self.json, self.windows, self.packed = None, None, False
        if self.keys is None and other.keys is not None:
            self.keys = [""] * count
        if self.keys is not None:
            self.keys += other.key_column()
        if self.ids is None and other.ids is not None:
            self.ids = [None] * count
        if self.ids is not None:
            self.ids += [None] * more if other.ids is None else other.ids
        if self.fields is not None:
            theirs = other.fields
            if theirs is None or theirs.keys() != self.fields.keys():
                self.fields = None
            else:
                for name, column in self.fields.items():
                    column += theirs[name]
        self.timestamps += other.timestamps

    def take(self, positions: Sequence[int]) -> RecordBatch:
        """The records at some positions, in their order."""

        def taken(column: list[Any]) -> list[Any]:
            return [column[position] for position in positions]

        return RecordBatch(
            taken(self.timestamps),
            taken(self.values) if self.values else [],
            None if self.ids is None else taken(self.ids),
            None if self.keys is None else taken(self.keys),
            (),
            None if self.json is None else taken(self.json),
            None if self.fields is None else {name: taken(column) for name, column in self.fields.items()},
            self.packed,
            None if self.windows is None else self.windows.take(positions),
        )

    def truncate(self, length: int) -> None:
        """Drops the records after ``length`` of a batch that has been appended to."""
        del self.timestamps[length:], self.values[length:]
        for column in (self.ids, self.keys, self.json):
            if column is not None:
                del column[length:]

    def records(self, stream: str = "") -> Iterator[Record]:
        """The records one by one.

        >>> list(RecordBatch([5], ["cat videos"]).records())
        [Record(value='cat videos', timestamp=5, key='', stream='', id=None, late=False)]
        """
        ids = self.ids or [None] * len(self.timestamps)
        columns = zip(self.objects(), self.timestamps, self.key_column(), ids, strict=True)
        return (Record(value, time, key, stream, id) for value, time, key, id in columns)


def join(parts: Sequence[RecordBatch]) -> RecordBatch:
    """The records of several batches of one stream as one batch.

    >>> both = join([RecordBatch([1], ["a"]), RecordBatch([2], [pack("b")], keys=["k"], packed=True)])
    >>> both.timestamps, both.values, both.keys
    ([1, 2], ['a', 'b'], ['', 'k'])
    """
    if len(parts) == 1:
        return parts[0]
    whole = RecordBatch([], [])
    for part in parts:
        whole.extend(part)
    return whole


def array_of(packed: Sequence[bytes]) -> bytes:
    """A MessagePack array of packed values.

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
