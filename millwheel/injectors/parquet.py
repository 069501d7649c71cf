"""Parquet files to columns of records, read by row group."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors.arrow_table import check_columns, import_arrow, to_records
from millwheel.injectors.object_path import ObjectPath
from millwheel.injectors.units import Unit, check_first
from millwheel.model.batch import join
from millwheel.model.field_columns import FieldColumns
from millwheel.model.injector import RecordBatch

END = 1 << 48
"""The end of a table whose rows were not counted; its size in bytes may be added."""

_ROWS = 20_000  # converted to Python values at once
_COLUMN_ROWS = 60_000  # read as columns at once: what is added up at once


def rows(path: str) -> int:
    """The number of rows of a file."""
    return _groups(path, _changed(path))[-1]


def cut(path: str, start: int, records: int) -> int:
    """A row near ``records`` after ``start``: a row group's end if not too far."""
    target = start + records
    for end in _groups(path, _changed(path)):
        if end >= target:
            return end if end <= start + 2 * records else target
    return target


def batches(
    path: str, start: int, end: int, timestamp: str, id: str | None, unit: Unit | None
) -> Iterator[RecordBatch]:
    """The records of the rows from ``start`` to ``end``."""
    parquet, arrow = _import()
    try:
        with _open(parquet, path) as file:
            check_columns(
                file.schema_arrow.names, {"timestamp": timestamp, "ID": id}, f"the Parquet file {path}"
            )
            kind = file.schema_arrow.field(timestamp).type
            looked = start > 0 or unit is not None or arrow.types.is_timestamp(kind)
            first = 0
            for group in range(file.metadata.num_row_groups):
                last = first + file.metadata.row_group(group).num_rows
                if first < end and last > start:
                    skip, stop = max(start - first, 0), min(end, last) - first
                    for batch in file.iter_batches(_ROWS, row_groups=[group]):
                        piece = batch[max(skip, 0) : max(stop, 0)]
                        skip, stop = skip - batch.num_rows, stop - batch.num_rows
                        if piece.num_rows:
                            found = to_records(piece, timestamp, id, unit)
                            if not looked and found.timestamps:
                                check_first(found.timestamps, timestamp, f"the Parquet file {path}")
                                looked = True
                            yield found
                first = last
    except (OSError, arrow.ArrowException) as error:
        raise InputError(f"the Parquet file {path} cannot be read ({error})") from error


def columns(
    path: str, start: int, end: int, timestamp: str, unit: Unit | None, fields: Sequence[str]
) -> Iterator[RecordBatch | FieldColumns]:
    """The same rows, without IDs, as columns of fields if possible, else records."""
    parquet, arrow = _import()
    from millwheel.injectors.arrow_columns import columns_of  # with NumPy

    def whole(first: int, last: int, limit: int | None) -> RecordBatch:
        last = last if limit is None else min(last, first + limit)
        return join(list(batches(path, first, last, timestamp, None, unit)))

    try:
        with _open(parquet, path) as file:
            schema = file.schema_arrow
            check_columns(schema.names, {"timestamp": timestamp}, f"the Parquet file {path}")
            wanted = {name for name in (timestamp, *fields) if name in schema.names}
            if any("." in name for name in wanted):  # which would be one inside another
                yield from batches(path, start, end, timestamp, None, unit)
                return
            looked = start > 0 or unit is not None or arrow.types.is_timestamp(schema.field(timestamp).type)
            first = 0
            for group in range(file.metadata.num_row_groups):
                last = first + file.metadata.row_group(group).num_rows
                if first < end and last > start:
                    at = first
                    for batch in file.iter_batches(_COLUMN_ROWS, row_groups=[group], columns=sorted(wanted)):
                        own = max(start, at), min(end, at + batch.num_rows)
                        piece = batch[max(own[0] - at, 0) : max(own[1] - at, 0)]
                        at += batch.num_rows
                        if not piece.num_rows:
                            continue
                        rows = functools.partial(whole, *own)
                        found = columns_of(piece, timestamp, unit, rows)
                        if found is not None and not looked:
                            check_first(
                                found.timestamps[:100].tolist(), timestamp, f"the Parquet file {path}"
                            )
                            looked = True
                        yield rows(None) if found is None else found
                first = last
    except (OSError, arrow.ArrowException) as error:
        raise InputError(f"the Parquet file {path} cannot be read ({error})") from error


@functools.lru_cache(maxsize=1_000)
def _groups(path: str, changed: int | str) -> tuple[int, ...]:
    """The end row of each row group of a file; 0 for an empty file."""
    parquet, arrow = _import()
    try:
        with _open(parquet, path) as file:
            metadata = file.metadata
    except (OSError, arrow.ArrowException) as error:
        raise InputError(f"the Parquet file {path} cannot be read ({error})") from error
    ends = [0]
    for group in range(metadata.num_row_groups):
        ends.append(ends[-1] + metadata.row_group(group).num_rows)
    return tuple(ends)


def _open(parquet: Any, path: str) -> Any:
    if isinstance(path, ObjectPath):
        return parquet.ParquetFile(import_arrow().PythonFile(path.open_seekable(), mode="r"))
    return parquet.ParquetFile(path)


def _changed(path: str) -> int | str:
    """When a file was changed, or an object's ETag."""
    return path.tag if isinstance(path, ObjectPath) else os.stat(path).st_mtime_ns


def _import() -> tuple[Any, Any]:
    arrow = import_arrow()
    import pyarrow.parquet

    return pyarrow.parquet, arrow
