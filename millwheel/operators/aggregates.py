"""Aggregates over the records of a window: ``mw.agg.sum("price")``.

A field is a name, a nested name or a function of a value. A value without the field is not counted, as SQL's
NULL; None is no value.
"""

from __future__ import annotations

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


def count(field: Field | None = None) -> Aggregate:
    """How many records; with a field, how many that have it."""
    return Count(field)


def sum(field: Field) -> Aggregate:
    """The sum of a field."""
    return Sum(field)


def min(field: Field) -> Aggregate:
    """The smallest value of a field."""
    return Min(field)


def max(field: Field) -> Aggregate:
    """The largest value of a field."""
    return Max(field)


def mean(field: Field) -> Aggregate:
    """The arithmetic mean of a field."""
    return Mean(field)


def first(field: Field) -> Aggregate:
    """A field of the record with the oldest timestamp that has it."""
    return First(field)


def last(field: Field) -> Aggregate:
    """A field of the record with the newest timestamp that has it."""
    return Last(field)


def distinct(field: Field) -> Aggregate:
    """How many different values a field has; exact, so each of them is kept."""
    return Distinct(field)


def approx_distinct(field: Field) -> Aggregate:
    """How many different values a field has, within 2% or so, in 4 kB at most."""
    return ApproxDistinct(field)


def quantile(field: Field, q: float) -> Aggregate:
    """The ``q`` quantile of a field, interpolated between neighbours; exact, so all values are kept."""
    return Quantile(field, q)


def top(field: Field, n: int) -> Aggregate:
    """The ``n`` largest values of a field, largest first."""
    return Top(field, n)
