"""Units of timestamps: conversion to microseconds, and a check of the unit."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from millwheel.errors import InputError
from millwheel.model.field_columns import FieldColumns
from millwheel.model.injector import RecordBatch
from millwheel.model.iso_time import parse_iso
from millwheel.model.time import SECOND

_Batch = TypeVar("_Batch", RecordBatch, RecordBatch | FieldColumns)
Unit = Literal["us", "ms", "s", "iso", "auto"]
UNITS = ("us", "ms", "s", "iso", "auto")
FACTORS = {"us": 1, "ms": 1_000, "s": SECOND}
NAMES = {"us": "microseconds", "ms": "milliseconds", "s": "seconds", "ns": "nanoseconds"}

# For "auto": numbers below these are seconds, milliseconds, microseconds. Each except the first means 1973
# to 5138 in its unit, so that no time of this century is ambiguous.
_BANDS = ((10**11, "s"), (10**14, "ms"), (10**17, "us"))

# Plausible times of data, 2004-11-09 to 2039-09-18 in microseconds. Narrow on purpose: test data
# count from 0 or from a round number, and must not be taken for seconds.
_EARLIEST, _LATEST = 1_100_000_000 * SECOND, 2_200_000_000 * SECOND
_LOOKED_AT = 100  # timestamps: one may be wrong, a hundred cannot be by chance


class BadLine(Exception):
    """A line without a valid record; its text is the reason."""


def check_name(unit: str | None, where: str) -> None:
    """Raises an `InputError` for an unknown unit."""
    if unit is not None and unit not in UNITS:
        raise InputError(f"{where}: unit is one of {', '.join(UNITS)}, not {unit!r}")


def factor_of(unit: Unit | None, times: Sequence[int]) -> int | None:
    """The factor for integers; None if each must be converted alone."""
    if unit is None:
        return 1
    if unit == "auto" and times:
        low, high = _band(min(times)), _band(max(times))
        return FACTORS.get(high) if low == high else None
    return FACTORS.get(unit)


def to_time(value: Any, unit: Unit | None, field: str, *, text: bool) -> int:
    """A timestamp field's value in microseconds, which is also the default unit.

    >>> to_time(1.5, "s", "time", text=False)
    1500000
    >>> to_time("1970-01-01T00:00:01Z", "iso", "time", text=False)
    1000000
    >>> {to_time(time, "auto", "time", text=False) for time in (1611873241, 1611873241000, 1611873241000000)}
    {1611873241000000}
    """
    if unit == "iso":
        moment = _moment(value)
        if moment is None:
            raise BadLine(f"the timestamp field {field!r} is {value!r}, which is not an ISO 8601 time")
        return moment
    number: Any = value
    if isinstance(value, str) and (text or unit == "auto"):
        number = _number(value)
    if isinstance(number, bool) or not isinstance(number, int | float) or _is_endless(number):
        moment = _moment(value)
        if moment is not None and unit == "auto":
            return moment
        hint = "" if moment is None else ', but ISO 8601: give the injector unit="iso"'
        raise BadLine(f"the timestamp field {field!r} is {value!r}, which is not a number{hint}")
    name = _band(number) if unit == "auto" else unit or "us"
    if name == "ns":
        return round(number / 1_000) if isinstance(number, float) else number // 1_000
    time = number * FACTORS[name]
    if _is_endless(time):
        raise BadLine(f"the timestamp field {field!r} is {value!r}, which is out of the range of 64 bits")
    return round(time)


def _band(number: float) -> str:
    return next((unit for limit, unit in _BANDS if abs(number) < limit), "ns")


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _is_endless(number: float) -> bool:
    return isinstance(number, float) and not math.isfinite(number)


def _moment(value: Any) -> int | None:
    """The time of a text in ISO 8601, UTC by default; None if it is not one."""
    try:
        moment = parse_iso(value)
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    since = moment - _UNIX_EPOCH
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds


_UNIX_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def right_unit(times: Sequence[int]) -> str | None:
    """The likely unit of first timestamps, read as microseconds; None: plausible.

    >>> right_unit([1611873241000, 1611873242000]), right_unit([1611873241]), right_unit([0, 5_000_000])
    ('ms', 's', None)
    """
    first = times[:_LOOKED_AT]
    if not first:
        return None
    low, high = min(first), max(first)
    for unit, factor in (("ms", 1_000), ("s", SECOND)):
        if low * factor >= _EARLIEST and high * factor <= _LATEST:
            return unit
    return "ns" if low >= _EARLIEST * 1_000 and high <= _LATEST * 1_000 else None


def check_first(times: Sequence[int], field: str, where: str) -> None:
    """Raises an `InputError` if the first timestamps, without a unit, are not in us."""
    unit = right_unit(times)
    if unit is None:
        return
    number, factor = times[0], {"ns": 1 / 1_000, **FACTORS}[unit]
    meant = _UNIX_EPOCH + datetime.timedelta(microseconds=round(number * factor))
    advice = f'give unit="{unit}"' if unit != "ns" else 'give unit="auto", which accepts them too'
    raise InputError(
        f"{where}: the timestamp field {field!r} begins with {number}, which as microseconds is "
        f"{_year(number)}, and as {NAMES[unit]} {meant:%Y-%m-%d %H:%M}: {advice}; if they are microseconds, "
        'give unit="us"'
    )


def _year(number: int) -> str:
    try:
        return f"{_UNIX_EPOCH + datetime.timedelta(microseconds=number):%Y-%m-%d}"
    except OverflowError:
        return "beyond the year 9999"


def checked(batches: Iterable[_Batch], field: str, where: str) -> Iterator[_Batch]:
    """The same batches, after a check of the first timestamps."""
    looked = False
    for batch in batches:
        if not looked and len(batch):
            check_first([int(time) for time in batch.timestamps[:_LOOKED_AT]], field, where)
            looked = True
        yield batch
