"""The aggregate of `top`: the values with the largest field, over all keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millwheel.model.codec import pack
from millwheel.operators.fields import FieldOf
from millwheel.operators.folds import Aggregate, nan_last


class Ranking(Aggregate):
    """The ``n`` values with the largest field; equal ones by the record's key.

    It takes ``[key, value]`` pairs, and keeps [field, key, value] rows in order.
    """

    takes_whole = True

    def __init__(self, field: Callable[[Any], Any], n: int) -> None:
        super().__init__(None)
        self._field = field
        self._n = n

    @property
    def names(self) -> tuple[str, ...]:
        """The field, if it is read by name."""
        return (self._field.name,) if isinstance(self._field, FieldOf) else ()

    def create(self) -> Any:
        return []

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        key, mine = value
        field = self._field(mine)
        if field is None or (len(so_far) == self._n and nan_last(field) < nan_last(so_far[-1][0])):
            return so_far
        return self.merge(so_far, [[field, key, mine]])

    def merge(self, a: Any, b: Any) -> Any:
        rows = sorted(a + b, key=lambda row: (row[1], pack(row[2])))
        rows.sort(
            key=lambda row: nan_last(row[0]), reverse=True
        )  # stable: equal fields stay in order of their keys
        return rows[: self._n]

    def result(self, so_far: Any) -> Any:
        return [value for _, _, value in so_far]
