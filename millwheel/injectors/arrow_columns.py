"""Fields of Arrow tables as columns, without a Python object for each row.

Keys are places in a dictionary of texts, which a file may have already; numbers are arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millwheel.injectors.arrow_table import import_arrow, plain_column
from millwheel.injectors.units import Unit, factor_of
from millwheel.model.batch import RecordBatch, join
from millwheel.model.field_columns import Coded, Masked
from millwheel.model.keys import By

Numbers = NDArray[Any]
Whole = Callable[[int | None], RecordBatch]
"""Gives the rows of a table as records, or the first ones of them."""

_ROOM = 2**62  # for combinations of keys of several fields


class ArrowColumns:
    """Some columns of a table; see `FieldColumns`; ``whole`` returns its records."""

    def __init__(self, tables: list[Any], timestamps: NDArray[np.int64], whole: list[Whole]) -> None:
        self._tables = tables
        self._whole = whole
        self.timestamps = timestamps

    def __len__(self) -> int:
        return len(self.timestamps)

    def keys(self, extractor: By) -> list[str] | Coded | None:
        found = [self._coded(field) for field in extractor.fields]
        coded = [one for one in found if one is not None]
        if len(coded) < len(found):
            return None
        columns = [names for names, _ in coded]
        codes = coded[0][1]
        if len(coded) > 1:
            for names, more in coded[1:]:
                if (int(codes.max(initial=0)) + 1) * (len(names) + 1) > _ROOM:
                    codes = np.unique(codes, return_inverse=True)[1]
                codes = codes * len(names) + more
            _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
            columns = [[names[place] for place in own[first].tolist()] for names, own in coded]
        texts = extractor.texts(columns)
        return None if texts is None else Coded(texts, codes)

    def _coded(self, name: str) -> tuple[list[Any], Numbers] | None:
        """The distinct values of a column, and the index of each row; None: not a key."""
        arrow = import_arrow()
        column = self._column(name)
        if column is None or column.null_count:
            return None
        kind = column.type.value_type if arrow.types.is_dictionary(column.type) else column.type
        if not (
            arrow.types.is_string(kind) or arrow.types.is_large_string(kind) or arrow.types.is_integer(kind)
        ):
            return None
        if not arrow.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        values = column.dictionary
        if values.null_count or len(values.unique()) < len(values):  # a file's own may be so
            return self._encoded_again(column)
        return values.to_pylist(), column.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    def _encoded_again(self, column: Any) -> tuple[list[Any], Numbers] | None:
        column = column.cast(column.type.value_type).dictionary_encode()
        if column.null_count:
            return None
        return column.dictionary.to_pylist(), column.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    def _column(self, name: str) -> Any:
        """A column as one array; None where there is no such column."""
        arrow = import_arrow()
        if any(name not in table.schema.names for table in self._tables):
            return None
        whole = arrow.chunked_array([table.column(name) for table in self._tables])
        if arrow.types.is_dictionary(whole.type):
            whole = whole.unify_dictionaries()
        else:
            whole = plain_column(arrow, whole)
        found = whole.combine_chunks()
        return found.combine_chunks() if isinstance(found, arrow.ChunkedArray) else found

    def field(self, name: str) -> Masked:
        arrow = import_arrow()
        column = self._column(name)
        if column is None:
            return Masked(np.zeros(len(self), np.int64), np.zeros(len(self), np.bool_), len(self))
        if arrow.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        there = None
        if column.null_count:
            there = column.is_valid().to_numpy(zero_copy_only=False)
        kind = column.type
        if arrow.types.is_null(kind):
            return Masked(np.zeros(len(self), np.int64), there, len(self))
        target = arrow.int64() if arrow.types.is_integer(kind) else None
        if arrow.types.is_float32(kind) or arrow.types.is_float64(kind):
            target = arrow.float64()
        if target is None:
            return Masked(None, there, len(self))
        try:
            numbers = column.fill_null(0).cast(target).to_numpy(zero_copy_only=False)
        except arrow.ArrowInvalid:  # more than 63 bits
            return Masked(None, there, len(self))
        return Masked(numbers, there, len(self))

    def records(self, limit: int | None = None) -> RecordBatch:
        if limit is not None:
            return self._whole[0](limit)
        return join([whole(None) for whole in self._whole])

    def join(self, others: Sequence[ArrowColumns]) -> list[ArrowColumns]:
        found = []
        for _, same in groupby([self, *others], lambda part: str(part._tables[0].schema)):
            parts = list(same)
            found.append(
                ArrowColumns(
                    [table for part in parts for table in part._tables],
                    np.concatenate([part.timestamps for part in parts]),
                    [whole for part in parts for whole in part._whole],
                )
            )
        return found


def columns_of(table: Any, timestamp: str, unit: Unit | None, whole: Whole) -> ArrowColumns | None:
    """The columns of a `pyarrow.RecordBatch`; None if a row must be parsed alone."""
    arrow = import_arrow()
    if len(set(table.schema.names)) < len(table.schema.names) or unit == "iso":
        return None
    column = table.column(timestamp)
    is_time = arrow.types.is_timestamp(column.type)
    column = plain_column(arrow, column)
    if column.null_count or not arrow.types.is_integer(column.type) or not len(column):
        return None
    try:
        times = column.cast(arrow.int64()).to_numpy(zero_copy_only=False)
    except arrow.ArrowInvalid:  # more than 63 bits
        return None
    ends = [int(times.min()), int(times.max())]
    factor = 1 if is_time else factor_of(unit, ends)
    if factor is None or not all(abs(end) * factor < 2**63 for end in ends):
        return None
    return ArrowColumns([table], times if factor == 1 else times * factor, [whole])
