"""The output of closed windows as columns; start and end once a window.

Values are made when they are read: as dicts for a consumer, as text for a sink of JSON lines. Until
then a record takes 20 bytes, in a step's checkpoint too, where its value as JSON takes 90.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple

from millwheel.model.codec import pack, unpack
from millwheel.model.time import MAX_TIME

OBJECTS: Final = "o"
"""The code of a column of any values (MessagePack); others are `array`'s."""


class Span(NamedTuple):
    """Consecutive records of one window."""

    start: int
    end: int
    records: int

    @property
    def timestamp(self) -> int:
        """The timestamp of each of them."""
        return min(self.end - 1, MAX_TIME)


class Results(NamedTuple):
    """One result of each record, in a form that is copied when it is read."""

    code: str
    data: bytes

    @staticmethod
    def of(values: Sequence[Any]) -> Results:
        """Any values; raises if one cannot be encoded."""
        return Results(OBJECTS, pack(list(values)))

    def values(self) -> list[Any]:
        """Return the results of all records."""
        if self.code == OBJECTS:
            found: list[Any] = unpack(self.data)
            return found
        numbers = array(self.code)
        numbers.frombytes(self.data)
        return numbers.tolist()


@dataclass(slots=True)
class Emitted:
    """The records of closed windows by span; ``parts`` has their results in turn."""

    names: list[str]
    """The names of the results, after key, start and end."""
    keys: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    parts: list[list[Results]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, keys: list[str], spans: list[Span], results: list[Results]) -> None:
        """Appends records."""
        self.keys += keys
        self.spans += spans
        self.parts.append(results)

    def extend(self, other: Emitted) -> None:
        """Appends the records of another; both have the same names."""
        self.keys += other.keys
        self.spans += other.spans
        self.parts += other.parts

    def timestamps(self) -> list[int]:
        """Return the timestamp of each record."""
        return [time for span in self.spans for time in [span.timestamp] * span.records]

    def columns(self) -> list[list[Any]]:
        """Return the results of all records, result by result."""
        if len(self.parts) == 1:
            return [results.values() for results in self.parts[0]]
        return [
            [value for part in self.parts for value in part[number].values()]
            for number in range(len(self.names))
        ]

    def fields(self) -> dict[str, list[Any]]:
        """Return every field of the values as a column."""
        return {
            "key": self.keys,
            "start": [start for start, _, count in self.spans for start in [start] * count],
            "end": [end for _, end, count in self.spans for end in [end] * count],
            **dict(zip(self.names, self.columns(), strict=True)),
        }

    def values(self) -> list[dict[str, Any]]:
        """Return the values, which are not shared.

        >>> one = Emitted(["n"], ["a"], [Span(0, 10, 1)], [[Results.of([7])]])
        >>> one.values()
        [{'key': 'a', 'start': 0, 'end': 10, 'n': 7}]
        """
        fields = self.fields()
        names = list(fields)
        return [dict(zip(names, row, strict=True)) for row in zip(*fields.values(), strict=True)]

    def by_window(self) -> Iterator[tuple[Span, list[str], list[list[Any]]]]:
        """Each span with its keys and its results, result by result."""
        columns = self.columns()
        first = 0
        for span in self.spans:
            mine = slice(first, first + span.records)
            yield span, self.keys[mine], [column[mine] for column in columns]
            first += span.records

    def take(self, positions: Sequence[int]) -> Emitted:
        """The records at some positions, in their order."""
        places = [number for number, span in enumerate(self.spans) for _ in range(span.records)]
        spans = [
            self.spans[number]._replace(records=len(list(mine)))
            for number, mine in groupby(positions, lambda position: places[position])
        ]
        results = [Results.of([column[position] for position in positions]) for column in self.columns()]
        return Emitted(self.names, [self.keys[position] for position in positions], spans, [results])

    def to_value(self) -> list[Any]:
        """Encodes it for MessagePack, without the keys."""
        return [self.names, self.spans, self.parts]

    @staticmethod
    def from_value(keys: list[str], value: list[Any]) -> Emitted:
        """The inverse of `to_value`."""
        names, spans, parts = value
        return Emitted(
            names,
            keys,
            [Span(*span) for span in spans],
            [[Results(*results) for results in part] for part in parts],
        )
