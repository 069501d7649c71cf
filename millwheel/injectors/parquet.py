"""Parquet files into columns of records. A row group is what is read at once."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors.arrow_table import check_columns, import_arrow, to_records
from millwheel.injectors.object_file import open_table_file
from millwheel.injectors.object_path import ObjectPath
from millwheel.injectors.units import Unit, check_first
from millwheel.model.injector import RecordBatch

_ROWS = 20_000  # made into Python values at once


def rows(path: str) -> int:
    """How many rows a file has."""
    return _groups(path, _changed(path))[-1]


def cut(path: str, start: int, records: int) -> int:
    """A row about ``records`` behind ``start``: the end of a row group, unless that is much too far."""
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


@functools.lru_cache(maxsize=1_000)
def _groups(path: str, changed: int) -> tuple[int, ...]:
    """The row that each row group of a file ends before; of an empty file, 0."""
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
        return open_table_file(path.location, f"the Parquet file {path}")
    return parquet.ParquetFile(path)


def _changed(path: str) -> int:
    """When a file was changed; an object never is."""
    return 0 if isinstance(path, ObjectPath) else os.stat(path).st_mtime_ns


def _import() -> tuple[Any, Any]:
    arrow = import_arrow()
    import pyarrow.parquet

    return pyarrow.parquet, arrow
