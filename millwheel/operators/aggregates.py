"""Aggregates over the records of a window: ``mw.agg.sum("price")``.

A field is a name, a nested name or a function of a value. A value without the field is not counted, as SQL's
NULL; None counts as missing.
"""

from __future__ import annotations

from millwheel.operators.arguments import operator
from millwheel.operators.fields import Field
from millwheel.operators.folds import (
    Aggregate,
    ApproxDistinct,
    Count,
    Distinct,
    First,
    Last,
    Max,
    Mean,
    Min,
    Quantile,
    Sum,
    Top,
)


@operator("agg")
def count(field: Field | None = None) -> Aggregate:
    """The number of records; with a field, of those that have it."""
    return Count(field)


@operator("agg")
def sum(field: Field) -> Aggregate:
    """The sum of a field."""
    return Sum(field)


@operator("agg")
def min(field: Field) -> Aggregate:
    """The smallest value of a field."""
    return Min(field)


@operator("agg")
def max(field: Field) -> Aggregate:
    """The largest value of a field."""
    return Max(field)


@operator("agg")
def mean(field: Field) -> Aggregate:
    """The arithmetic mean of a field."""
    return Mean(field)


@operator("agg")
def first(field: Field) -> Aggregate:
    """A field of the record with the oldest timestamp that has it."""
    return First(field)


@operator("agg")
def last(field: Field) -> Aggregate:
    """A field of the record with the newest timestamp that has it."""
    return Last(field)


@operator("agg")
def distinct(field: Field) -> Aggregate:
    """The number of different values of a field; exact, so each of them is kept."""
    return Distinct(field)


@operator("agg")
def approx_distinct(field: Field) -> Aggregate:
    """The number of different values of a field, within 2%, in 4 kB at most."""
    return ApproxDistinct(field)


@operator("agg")
def quantile(field: Field, q: float) -> Aggregate:
    """The ``q`` quantile of a field, interpolated; exact, so all values are kept."""
    return Quantile(field, q)


@operator("agg")
def top(field: Field, n: int) -> Aggregate:
    """The ``n`` largest values of a field, largest first."""
    return Top(field, n)
