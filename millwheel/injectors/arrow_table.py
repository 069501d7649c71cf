"""Tables of Arrow into columns of records: what Parquet files and Spark's DataFrames have in common.

A value is a dict of the columns. What MessagePack does not carry becomes what it does: moments become
microseconds since 1970, days and decimals text, durations and times of day microseconds.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors.units import BadLine, Unit, factor_of, to_time
from millwheel.model.injector import BadInput, RecordBatch
from millwheel.model.time import SECOND


def import_arrow() -> Any:
    """The package pyarrow, or an `InputError` that says how to get it."""
    try:
        import pyarrow
    except ImportError as error:
        raise InputError(
            f"tables need pyarrow, which cannot be imported ({error}): pip install 'millwheel-spark[arrow]'"
        ) from error
    return pyarrow


def check_columns(names: list[str], wanted: Mapping[str, str | None], where: str) -> None:
    """An `InputError` where a column that a record needs is not there."""
    for role, column in wanted.items():
        if column is not None and column not in names:
            raise InputError(
                f"{where} has no column {column!r}, which is to be the {role}; it has {', '.join(names)}"
            )


def to_records(table: Any, timestamp: str, id: str | None, unit: Unit | None) -> RecordBatch:
    """The rows of a `pyarrow.RecordBatch` or table; rows without a timestamp or an ID are bad input.

    ``unit`` is that of a timestamp column of numbers or text; one of a type of time needs none.
    """
    arrow = import_arrow()
    is_time = arrow.types.is_timestamp(table.schema.field(timestamp).type)
    nested = any(arrow.types.is_nested(field.type) for field in table.schema)
    for index, field in enumerate(table.schema):
        column = table.column(index)
        plain = _plain_column(arrow, column)
        if plain is not column:
            table = table.set_column(index, field.name, plain)
    values: list[Any] = table.to_pylist()
    if nested:
        values = [_plain_value(value) for value in values]
    times = [value[timestamp] for value in values]
    ids = None if id is None else [value[id] for value in values]
    plain = set(map(type, times)) <= {int} and set(map(type, ids or ())) <= {str, int}
    factor = 1 if is_time else factor_of(unit, times) if plain and unit != "iso" else None
    if factor is not None and plain:
        return RecordBatch(times if factor == 1 else [time * factor for time in times], values, ids)
    return _row_by_row(values, timestamp, id, "us" if is_time else unit)


def _row_by_row(values: list[Any], timestamp: str, id: str | None, unit: Unit | None) -> RecordBatch:
    timestamps: list[int] = []
    good: list[Any] = []
    ids: list[Any] = []
    bad: list[BadInput] = []
    for value in values:
        try:
            time = to_time(value[timestamp], unit, timestamp, text=False)
            if id is not None and (isinstance(value[id], bool) or not isinstance(value[id], str | int)):
                raise BadLine(f"the ID column {id!r} is {value[id]!r}: an ID is a text or an integer")
        except BadLine as error:
            bad.append(BadInput(str(error), value))
            continue
        timestamps.append(time)
        good.append(value)
        if id is not None:
            ids.append(value[id])
    return RecordBatch(timestamps, good, None if id is None else ids, None, bad)


def _plain_column(arrow: Any, column: Any) -> Any:
    """A column whose values travel; the same one where they do as they are."""
    types, kind = arrow.types, column.type
    # To microseconds first, whatever the unit is: a cast to a number takes the number as it stands.
    if types.is_timestamp(kind):
        return column.cast(arrow.timestamp("us", kind.tz), safe=False).cast(arrow.int64())
    if types.is_duration(kind):
        return column.cast(arrow.duration("us"), safe=False).cast(arrow.int64())
    if types.is_time(kind):
        return column.cast(arrow.time64("us"), safe=False).cast(arrow.int64())
    if types.is_date(kind) or types.is_decimal(kind):
        return column.cast(arrow.string())
    if types.is_dictionary(kind):
        return column.cast(kind.value_type)
    return column


def _plain_value(value: Any) -> Any:
    """What is nested in a row, as `_plain_column` makes it."""
    if isinstance(value, dict):
        return {key: _plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return (moment - _UNIX_EPOCH) // _MICROSECOND
    if isinstance(value, datetime.timedelta):
        return value // _MICROSECOND
    if isinstance(value, datetime.time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * SECOND + value.microsecond
    if isinstance(value, datetime.date | decimal.Decimal):
        return str(value)
    return value


_UNIX_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
