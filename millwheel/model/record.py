"""Records: (key, value, timestamp) triples with a stream and an ID (paper 3)."""

from __future__ import annotations

import json
from typing import Any

import orjson

RecordId = str | int | bytes


def decode_json(line: bytes) -> Any:
    """Decodes a line that is known to be JSON.

    Python's decoder also accepts numbers that are too large for a float, which were not checked before.
    """
    try:
        return orjson.loads(line)
    except ValueError:
        return json.loads(line)


class Record:
    """One record as a hook or a key extractor gets it. Build it by keywords.

    >>> Record(value={"query": "cat videos"}, timestamp=3_000_000)
    Record(value={'query': 'cat videos'}, timestamp=3000000, key='', stream='', id=None, late=False)

    A record from a line of JSON is decoded when its value is first read: a hook that only counts
    records does not pay for decoding.
    """

    __slots__ = ("_json", "id", "key", "late", "stream", "timestamp", "value")

    value: Any
    timestamp: int
    key: str
    stream: str
    id: RecordId | None
    late: bool
    _json: bytes

    def __init__(
        self,
        value: Any,
        timestamp: int,
        key: str = "",
        stream: str = "",
        id: RecordId | None = None,
        late: bool = False,
    ) -> None:
        self.value = value
        self.timestamp = timestamp
        self.key = key
        self.stream = stream
        self.id = id
        self.late = late

    def __getattr__(self, name: str) -> Any:
        """Computes attributes that a worker leaves out, as most hooks do not read them."""
        if name == "value":
            self.value = value = decode_json(self._json)
            return value
        if name == "id":
            return None
        if name == "late":
            return False
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def fields(self) -> tuple[Any, int, str, str, RecordId | None, bool]:
        """The arguments that build it."""
        return self.value, self.timestamp, self.key, self.stream, self.id, self.late

    def with_value(self, value: Any) -> Record:
        """The same record with another value."""
        return Record(value, self.timestamp, self.key, self.stream, self.id, self.late)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return self.fields() == other.fields()

    def __lt__(self, other: Record) -> bool:
        """Orders by value, timestamp, key: to sort and compare the records of two runs."""
        return self.fields() < other.fields()

    def __hash__(self) -> int:
        return hash(self.fields())

    def __repr__(self) -> str:
        return (
            f"Record(value={self.value!r}, timestamp={self.timestamp!r}, key={self.key!r}, "
            f"stream={self.stream!r}, id={self.id!r}, late={self.late!r})"
        )

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        return Record, self.fields()
