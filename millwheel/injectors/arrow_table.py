"""Arrow tables to columns of records: for Parquet files and Spark's DataFrames.

A value is a dict of the columns. Types that MessagePack lacks are converted: timestamps to
microseconds since 1970, dates and decimals to text, durations and times of day to microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors.units import BadLine, Unit, factor_of, to_time
from millwheel.model.extras import import_extra
from millwheel.model.injector import BadInput, RecordBatch
from millwheel.model.plain_values import plain_value


def import_arrow() -> Any:
    """The package pyarrow; an `InputError` with the fix if it is missing."""
    return import_extra("tables need", "arrow", "pyarrow", error=InputError)


def check_columns(names: list[str], wanted: Mapping[str, str | None], where: str) -> None:
    """Raises an `InputError` if a column that a record needs is missing."""
    for role, column in wanted.items():
        if column is not None and column not in names:
            raise InputError(
                f"{where} has no column {column!r}, which is the {role}; it has {', '.join(names)}"
            )


def to_records(table: Any, timestamp: str, id: str | None, unit: Unit | None) -> RecordBatch:
    """The rows of an Arrow table; rows without a timestamp or an ID are bad input.

    ``unit`` is that of a timestamp column of numbers or text; a column of a time type needs none.
    """
    arrow = import_arrow()
    is_time = arrow.types.is_timestamp(table.schema.field(timestamp).type)
    nested = any(arrow.types.is_nested(field.type) for field in table.schema)
    for index, field in enumerate(table.schema):
        column = table.column(index)
        plain = plain_column(arrow, column)
        if plain is not column:
            table = table.set_column(index, field.name, plain)
    values: list[Any] = table.to_pylist()
    if nested:
        values = [plain_value(value) for value in values]
    times = [value[timestamp] for value in values]
    ids = None if id is None else [value[id] for value in values]
    plain = set(map(type, times)) <= {int} and set(map(type, ids or ())) <= {str, int}
    factor = 1 if is_time else factor_of(unit, times) if plain and unit != "iso" else None
    if factor is not None and plain:
        return RecordBatch(times if factor == 1 else [time * factor for time in times], values, ids)
    return row_by_row(values, timestamp, id, "us" if is_time else unit)


def row_by_row(values: list[Any], timestamp: str, id: str | None, unit: Unit | None) -> RecordBatch:
    """The rows as records; those without a timestamp or an ID are bad input."""
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


def plain_column(arrow: Any, column: Any) -> Any:
    """A column in types that MessagePack has; the same one if it is already."""
    types, kind = arrow.types, column.type
    # To microseconds first, whatever the unit: a cast to an integer does not convert.
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
