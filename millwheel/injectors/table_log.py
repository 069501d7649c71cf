"""Tables with appends, followed commit by commit: for Delta and Iceberg.

There is one partition. Its rows have an order: those of the table as it was when it was first read (its
*base*), then those that each later version added; in a version file by file, in a file row by row. An offset
is a position in that order, ``[base, version, file, row]``; everything before it is read. So what is
journaled does not grow with the table, and a range gives the same rows again while its files exist.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from millwheel.errors import InputError
from millwheel.injectors.arrow_table import check_columns, import_arrow, to_records
from millwheel.injectors.units import Unit, check_first, check_name
from millwheel.model.field_columns import FieldColumns
from millwheel.model.injector import Errors, FieldNames, Injector, Offset, RecordBatch
from millwheel.model.time import MAX_TIME, MIN_TIME, SECOND

SLACK = 10 * SECOND  # the default for how far rows may be out of order
_PARTITION = "rows"
_BATCH = 20_000  # rows converted to Python values at once
_COLUMN_BATCH = 60_000  # read as columns at once: what is added up at once
_REMEMBERED = 1_000  # versions whose lists of files the driver caches

Batch = TypeVar("Batch", bound=RecordBatch | FieldColumns)


class DataFile(NamedTuple):
    """A file of a table: its path, its number of rows, and data for its reader."""

    path: str
    rows: int
    details: Any


class Log(Protocol):
    """The commits of a table."""

    def newest(self) -> int | None:
        """Return the newest version; None: there is none yet."""

    def files(self, version: int, *, whole: bool) -> list[DataFile]:
        """Return the files that a version added, or all of the table's, in a fixed order."""

    def following(self, after: int, through: int) -> list[int]:
        """Return the versions after one, up to another, in order."""

    def columns(self) -> list[str]:
        """Return the names of the table's columns."""

    def read(self, file: DataFile) -> Iterator[Any]:
        """Yield the rows of a file, as Arrow batches."""


class TableLog(Injector):
    """Injects the rows of a table, and those appended to it, each once.

    A subclass supplies the `Log`.
    """

    in_turn = True

    def __init__(
        self,
        timestamp: str,
        id: str | None,
        unit: Unit | None,
        slack: int,
        idle_after: int | None,
        errors: Errors,
        id_retention: int,
    ) -> None:
        check_name(unit, type(self).__name__)
        self._timestamp = timestamp
        self._id = id
        self._unit = unit
        self._wanted_slack = slack
        self.idle_after = idle_after
        self.errors = errors
        self.id_retention = id_retention
        self._opened: Log | None = None
        self._read: Offset = None
        self._end: Offset = None
        self._known: dict[tuple[int, bool], list[DataFile]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_known": {}}

    def _log(self) -> Log:
        """Return the table's log; opened once in a process."""
        if self._opened is None:
            self._opened = self._open_log()
        return self._opened

    def _open_log(self) -> Log:
        raise NotImplementedError

    def open(self, *, follow: bool) -> None:
        self.bounded = not follow
        self.slack = self._wanted_slack if follow else None
        self._read = self._end = None
        log = self._log()
        if log.newest() is None:
            if self.bounded:
                raise InputError(
                    f"{self!r}: there is no such table: fix its name, or follow it to wait for it"
                )
        else:
            check_columns(log.columns(), {"timestamp": self._timestamp, "ID": self._id}, repr(self))

    def run_begins(self) -> None:
        self._end = None

    def poll(self) -> Mapping[str, Offset]:
        if self._end is None or not self.bounded:
            newest = self._log().newest()
            if newest is None:
                return {_PARTITION: None}
            base = newest if self._read is None and self._end is None else (self._read or self._end)[0]
            self._end = [base, newest + 1, 0, 0]
        return {_PARTITION: self._end}

    def why_empty(self) -> str:
        return f"{self!r} is empty"

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return MAX_TIME if self.bounded and offset is not None and offset == self._end else MIN_TIME

    def commit(self, offsets: Mapping[str, Offset]) -> None:
        self._read = offsets.get(_PARTITION, self._read)
        if self._read is not None:
            self._known = {at: files for at, files in self._known.items() if at[0] >= self._read[1]}

    def lost(self, offsets: Mapping[str, Offset]) -> str | None:
        return "versions of the table may have been removed since they were read"

    def _pieces(self, start: Offset, end: Offset) -> Iterator[tuple[int, int, DataFile, int, int]]:
        """Yield the pieces of files in a range: version, number, file, first row, end."""
        base, last, number, row = end
        first, skip, begin = (base, 0, 0) if start is None else start[1:]
        through = last if number or row else last - 1
        for version in self._versions(base, first, through):
            for index, file in enumerate(self._files(version, base)):
                if (version, index) < (first, skip) or (version, index) > (last, number):
                    continue
                from_row = begin if (version, index) == (first, skip) else 0
                to_row = row if (version, index) == (last, number) else file.rows
                if from_row < to_row:
                    yield version, index, file, from_row, to_row

    def _versions(self, base: int, first: int, last: int) -> list[int]:
        """Return the versions from one to another; the base is the first one."""
        later = self._log().following(max(first - 1, base), last)
        return [base, *later] if first <= base else later

    def _files(self, version: int, base: int) -> list[DataFile]:
        at = version, version == base
        if at not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.pop(next(iter(self._known)))
            self._known[at] = self._log().files(version, whole=version == base)
        return self._known[at]

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        left = records
        for version, index, _, begin, stop in self._pieces(start, end):
            if stop - begin > left:
                return [end[0], version, index, begin + left]
            left -= stop - begin
        return end

    def size(self, partition: str, start: Offset, end: Offset) -> int:
        return sum(stop - begin for _, _, _, begin, stop in self._pieces(start, end))

    def read_batches(self, partition: str, start: Offset, end: Offset) -> Iterable[RecordBatch]:
        return self._batches(start, end, _BATCH, self._records)

    def read_fields(
        self, partition: str, start: Offset, end: Offset, fields: Collection[str]
    ) -> Iterable[RecordBatch | FieldColumns]:
        if self._id is None and isinstance(fields, FieldNames) and fields.columns:
            return self._batches(start, end, _COLUMN_BATCH, functools.partial(self._columns, fields))
        return self.read_batches(partition, start, end)

    def _records(self, rows: Any) -> RecordBatch:
        return to_records(rows, self._timestamp, self._id, self._unit)

    def _columns(self, fields: FieldNames, rows: Any) -> RecordBatch | FieldColumns:
        """Columns of rows, without IDs; records if a row must be parsed alone."""
        from millwheel.injectors.arrow_columns import columns_of  # with NumPy

        def whole(limit: int | None) -> RecordBatch:
            return self._records(rows[:limit])

        wanted = [name for name in (self._timestamp, *fields) if name in rows.schema.names]
        found = columns_of(rows.select(list(dict.fromkeys(wanted))), self._timestamp, self._unit, whole)
        return whole(None) if found is None else found

    def _batches(
        self, start: Offset, end: Offset, most: int, read: Callable[[Any], Batch]
    ) -> Iterator[Batch]:
        checked = self._unit is not None or start is not None
        for _, _, file, begin, stop in self._pieces(start, end):
            at = 0
            for batch in self._log().read(file):
                piece = batch[max(begin - at, 0) : max(stop - at, 0)]
                at += batch.num_rows
                for offset in range(0, piece.num_rows, most):
                    found = read(piece[offset : offset + most])
                    if not checked and len(found) and not _is_time(batch, self._timestamp):
                        first = list(map(int, found.timestamps[:100]))
                        check_first(first, self._timestamp, f"the table {self!r}")
                    checked = True
                    yield found
            if at < stop:
                raise InputError(f"{self!r}: {file.path} has {at:,} rows, not {stop:,}: it was changed")


def _is_time(batch: Any, name: str) -> bool:
    arrow = import_arrow()
    return bool(arrow.types.is_timestamp(batch.schema.field(name).type))
