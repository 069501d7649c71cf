"""How the aggregates of `millwheel.agg` fold the records of a window.

Each has an accumulator, ``so_far``, which the state's codec encodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from millwheel.errors import PipelineError, shorten
from millwheel.operators import sketch
from millwheel.operators.fields import Field, FieldOf, reader
from millwheel.operators.value_keys import distinct_key


class OwnAggregate(Protocol):
    """The interface of a user's own aggregate; the codec encodes its accumulators."""

    def create(self) -> Any: ...
    def add(self, so_far: Any, value: Any) -> Any: ...
    def merge(self, a: Any, b: Any) -> Any: ...
    def result(self, so_far: Any) -> Any: ...


class Aggregate:
    """An aggregate of the library: reads a field of each value and folds it."""

    changes_value = False
    """Whether code of a user gets the value itself, and may change it."""
    changes_result = False
    """Whether code of a user makes the result, and may change the accumulator."""
    takes_whole = False
    """Whether the field is optional, and whole values are taken without it."""

    def __init__(self, field: Field | None) -> None:
        self.read: Callable[[Any], Any] | None = None
        """Reads the field; None if whole records are taken."""
        if field is not None or not self.takes_whole:
            self.read = reader(field, f"agg.{type(self).__name__.lower()}")

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that are read by name."""
        return (self.read.name,) if isinstance(self.read, FieldOf) else ()

    @property
    def shown(self) -> str:
        """The kind and the field, if it has a name: what the accumulator is made of."""
        return f"{type(self).__name__.lower()}({', '.join(map(repr, self.names))})"

    def create(self) -> Any:
        """The accumulator without a value."""
        return None

    def add(self, so_far: Any, value: Any, timestamp: int) -> Any:
        """The accumulator with a further record."""
        if self.read is not None:
            value = self.read(value)
            if value is None:
                return so_far
        return self.fold(so_far, value, timestamp)

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        """The accumulator with the field of a further record."""
        raise NotImplementedError

    def merge(self, a: Any, b: Any) -> Any:
        """The accumulator of two sets of records together."""
        raise NotImplementedError

    def result(self, so_far: Any) -> Any:
        """The value to emit."""
        return so_far


class Count(Aggregate):
    """The number of records, or of those with the field."""

    takes_whole = True

    def create(self) -> Any:
        return 0

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        return so_far + 1

    def merge(self, a: Any, b: Any) -> Any:
        return a + b


class _Two(Aggregate):
    """Folds two values with a function of them."""

    def _join(self, a: Any, b: Any) -> Any:
        raise NotImplementedError

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        return value if so_far is None else self._join(so_far, value)

    def merge(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        return self._join(a, b)


class Sum(_Two):
    """The sum; as text while it has more than 64 bits, which codecs cannot encode."""

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        return super().fold(so_far, _number("sum", value), timestamp)

    def _join(self, a: Any, b: Any) -> Any:
        total = _whole(a) + _whole(b)
        return {_LARGE: str(total)} if _is_large(total) else total

    def result(self, so_far: Any) -> Any:
        total = _whole(so_far)
        if _is_large(total):
            raise OverflowError(
                f"agg.sum: the sum {total} has more than 64 bits, which a record cannot carry; sum floats "
                "instead: agg.sum(lambda value: float(...))"
            )
        return total


class Min(_Two):
    """The smallest; NaN is larger than any number."""

    def _join(self, a: Any, b: Any) -> Any:
        return b if b < a or a != a else a


class Max(_Two):
    """The largest; NaN is larger than any number."""

    def _join(self, a: Any, b: Any) -> Any:
        return b if b > a or b != b else a


def nan_last(value: Any) -> tuple[bool, Any]:
    """The sort key of a value: NaN comes after all numbers.

    >>> sorted([2.0, float("nan"), 1.0], key=nan_last)
    [1.0, 2.0, nan]
    """
    return value != value, value


class Reduce(_Two):
    """Folds whole values with a function of two."""

    changes_value = True
    takes_whole = True

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(None)
        self._function = function

    def create(self) -> Any:
        return []

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        return [self._function(so_far[0], value)] if so_far else [value]

    def merge(self, a: Any, b: Any) -> Any:
        return [self._function(a[0], b[0])] if a and b else a or b

    def result(self, so_far: Any) -> Any:
        return so_far[0] if so_far else None


class Mean(Aggregate):
    """The sum and the count; as text while the sum has more than 64 bits."""

    def create(self) -> Any:
        return [0, 0]

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        return [_carried(_total(so_far) + _number("mean", value)), so_far[1] + 1]

    def merge(self, a: Any, b: Any) -> Any:
        return [_carried(_total(a) + _total(b)), a[1] + b[1]]

    def result(self, so_far: Any) -> Any:
        return _total(so_far) / so_far[1] if so_far[1] else None


def _number(what: str, value: Any) -> Any:
    """A value to add; True is 1, alone too."""
    if isinstance(value, str | bytes | list | dict):  # their sums would depend on the order of records
        raise TypeError(
            f"agg.{what}: {shorten(value, 60)} is not a number. Fields of CSV are text: give Files "
            'types={"price": float}; or use a function of the value: '
            f'agg.{what}(lambda v: float(v["price"]))'
        )
    return int(value) if isinstance(value, bool) else value


def _total(so_far: Any) -> Any:
    return int(so_far[0]) if type(so_far[0]) is str else so_far[0]


def _carried(total: Any) -> Any:
    return str(total) if _is_large(total) else total


_LARGE = "an integer of more than 64 bits"


def _is_large(total: Any) -> bool:
    return isinstance(total, int) and not -(1 << 63) <= total < 1 << 64


def _whole(so_far: Any) -> Any:
    return int(so_far[_LARGE]) if type(so_far) is dict and _LARGE in so_far else so_far


class First(Aggregate):
    """The one with the oldest timestamp."""

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        return [timestamp, value] if so_far is None or timestamp < so_far[0] else so_far

    def merge(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        return b if b[0] < a[0] else a

    def result(self, so_far: Any) -> Any:
        return None if so_far is None else so_far[1]


class Last(First):
    """The one with the newest timestamp."""

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        return [timestamp, value] if so_far is None or timestamp >= so_far[0] else so_far

    def merge(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        return b if b[0] >= a[0] else a


class Distinct(Aggregate):
    """The different values, each once."""

    def create(self) -> Any:
        return {}

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        so_far[distinct_key(value)] = None
        return so_far

    def merge(self, a: Any, b: Any) -> Any:
        return {**a, **b}

    def result(self, so_far: Any) -> Any:
        return len(so_far)


class ApproxDistinct(Aggregate):
    """A sketch of the different values."""

    def create(self) -> Any:
        return sketch.EMPTY

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        return sketch.add(so_far, distinct_key(value))

    def merge(self, a: Any, b: Any) -> Any:
        return sketch.merge(a, b)

    def result(self, so_far: Any) -> Any:
        return sketch.estimate(so_far)


class Quantile(Aggregate):
    """All values, sorted at the end."""

    def __init__(self, field: Field, q: float) -> None:
        super().__init__(field)
        if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
            raise PipelineError(f"agg.quantile: q is a number from 0 to 1, such as 0.99, not {q!r}")
        self._q = q

    def create(self) -> Any:
        return []

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        so_far.append(value)
        return so_far

    def merge(self, a: Any, b: Any) -> Any:
        return a + b

    def result(self, so_far: Any) -> Any:
        if not so_far:
            return None
        ordered = sorted(so_far, key=nan_last)
        place = self._q * (len(ordered) - 1)
        low = math.floor(place)
        below, above = ordered[low], ordered[math.ceil(place)]
        if below == above:
            return below
        between = below + (above - below) * (place - low)
        # Between its neighbours, whatever the rounding; from minus infinity there is no way up.
        return min(max(between, below), above) if between == between else below


class Top(Aggregate):
    """The largest values, in order."""

    def __init__(self, field: Field, n: int) -> None:
        super().__init__(field)
        self._n = positive("agg.top: n", n)

    def create(self) -> Any:
        return []

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        if len(so_far) < self._n or nan_last(value) > nan_last(so_far[-1]):
            so_far.append(value)
            so_far.sort(key=nan_last, reverse=True)
            del so_far[self._n :]
        return so_far

    def merge(self, a: Any, b: Any) -> Any:
        return sorted(a + b, key=nan_last, reverse=True)[: self._n]


class Collect(Aggregate):
    """All values, by timestamp; equal ones in order of arrival."""

    takes_whole = True

    def __init__(self) -> None:
        super().__init__(None)

    def create(self) -> Any:
        return []

    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any:
        so_far.append([timestamp, value])
        return so_far

    def merge(self, a: Any, b: Any) -> Any:
        return a + b

    def result(self, so_far: Any) -> Any:
        return [value for _, value in sorted(so_far, key=lambda pair: pair[0])]


class Own(Aggregate):
    """A user's own aggregate, which takes whole values."""

    changes_value = True
    changes_result = True
    takes_whole = True

    def __init__(self, own: OwnAggregate) -> None:
        super().__init__(None)
        self._own = own

    @property
    def shown(self) -> str:
        return type(self._own).__name__

    def create(self) -> Any:
        return self._own.create()

    def add(self, so_far: Any, value: Any, timestamp: int) -> Any:
        return self._own.add(so_far, value)

    def merge(self, a: Any, b: Any) -> Any:
        return self._own.merge(a, b)

    def result(self, so_far: Any) -> Any:
        return self._own.result(so_far)


def as_aggregate(found: object, where: str) -> Aggregate:
    """An aggregate, the library's or a user's; a `PipelineError` if it is neither."""
    if isinstance(found, Aggregate):
        return found
    parts = ("create", "add", "merge", "result")
    missing = [part for part in parts if not callable(getattr(found, part, None))]
    if isinstance(found, type):
        hint = f": give an instance, {found.__name__}()" if not missing else ""
        raise PipelineError(f"{where}: an aggregate is an instance, not the class {found.__name__}{hint}")
    if missing:
        raise PipelineError(
            f"{where}: an aggregate is one of millwheel.agg such as agg.sum('price'), or an object with "
            f"create, add, merge and result; {found!r} has no {', '.join(missing)}"
        )
    return Own(found)  # type: ignore[arg-type]


def positive(what: str, value: object) -> int:
    """A whole number of 1 or more, checked."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PipelineError(f"{what} is a whole number of 1 or more, not {value!r}")
    return value
