"""Combiners: merge records of a key before the hook runs (8.4).

``Pipeline.add(..., combine=...)`` takes a function of a key and some of its records, in their order; it
returns (value, timestamp) pairs, which replace the records. A computation gets only
what its combiner returned, and must give the same result for any grouping of its records.

>>> records = [Record(value="any", timestamp=time) for time in (2_000_000, 2_500_000, 7_000_000)]
>>> Count(1_000_000)("cat videos", records)
[(2, 2500000), (1, 7000000)]
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from millwheel.errors import PipelineError
from millwheel.model.record import Record

Combine = Callable[[str, Sequence[Record]], Iterable[tuple[Any, int]]]
"""A function of a key and its records that returns (value, timestamp) pairs."""


class Reduce:
    """Merges the values of each window with a function: ``Reduce(max, mw.MINUTE)``.

    ``window`` is the width of the windows by which the computation groups, in microseconds, or None if
    time does not matter to it. A window's record has the newest of its timestamps. ``field`` takes an entry
    of each value in place of the value. ``function`` must be independent of the order of its application.
    """

    def __init__(
        self, function: Callable[[Any, Any], Any], window: int | None, *, field: str | None = None
    ) -> None:
        if not callable(function):
            raise PipelineError(f"{type(self).__name__}: a function of two values, not {function!r}")
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window <= 0):
            raise PipelineError(
                f"{type(self).__name__}: the window is a width in microseconds, such as millwheel.SECOND, "
                f"or None; not {window!r}"
            )
        self.function = function
        self.window = window
        self.field = field

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", self.function)
        return f"{type(self).__name__}({name}, {self.window})"

    def __call__(self, key: str, records: Sequence[Record]) -> list[tuple[Any, int]]:
        """The pairs of one key's records."""
        return self.columns([r.timestamp for r in records], [r.value for r in records])

    def columns(self, timestamps: Sequence[int], values: Sequence[Any]) -> list[tuple[Any, int]]:
        """The same for records in columns, which saves an object for each."""
        window, function, field = self.window, self.function, self.field
        found: dict[int, tuple[Any, int]] = {}
        if field is not None:
            values = [value[field] for value in values]
        for time, value in zip(timestamps, values, strict=True):
            place = time // window if window is not None else 0
            so_far = found.get(place)
            if so_far is None:
                found[place] = (value, time)
            else:
                found[place] = (function(so_far[0], value), time if time > so_far[1] else so_far[1])
        return list(found.values())


class Sum(Reduce):
    """Sums the values, or a field of them, by window."""

    def __init__(self, window: int | None, *, field: str | None = None) -> None:
        super().__init__(operator.add, window, field=field)

    def __repr__(self) -> str:
        return f"Sum({self.window})"


class Count(Reduce):
    """Counts the records of each window: the computation gets numbers."""

    def __init__(self, window: int | None) -> None:
        super().__init__(operator.add, window)

    def __repr__(self) -> str:
        return f"Count({self.window})"

    def columns(self, timestamps: Sequence[int], values: Sequence[Any]) -> list[tuple[Any, int]]:
        """The pairs of one key's records in columns."""
        window = self.window
        if window is None:
            return [(len(timestamps), max(timestamps))]
        found: dict[int, int] = {}
        newest: dict[int, int] = {}
        for time in timestamps:
            place = time // window
            found[place] = found.get(place, 0) + 1
            if time > newest.get(place, time - 1):
                newest[place] = time
        return [(count, newest[place]) for place, count in found.items()]
