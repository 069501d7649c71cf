"""Avro files to columns of records, read and split by block.

Offsets are bytes. A block belongs to the range that its first byte is in: a task finds the first one by the
file's sync marker, 16 random bytes before each block, so a file is split anywhere without being read.
"""

from __future__ import annotations

import datetime
import functools
import io
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from millwheel.errors import InputError
from millwheel.injectors.arrow_table import check_columns, row_by_row
from millwheel.injectors.object_path import ObjectPath
from millwheel.injectors.units import Unit, check_first
from millwheel.model.extras import import_extra
from millwheel.model.injector import RecordBatch
from millwheel.model.plain_values import plain_value

_SYNC = 16  # bytes of a marker
_HEAD = 1 << 16  # bytes of the first read of a header: a schema, as a rule, is smaller
_RECORDS = 20_000  # of one batch


class _Header(NamedTuple):
    """The header of a file: its bytes, its schema's fields, marker and record size."""

    data: bytes
    fields: list[str]
    sync: bytes
    record: int


def cut(path: str, start: int, end: int, records: int) -> int:
    """A position near ``records`` after ``start``; it need not begin a block."""
    target = start + records * header(path).record
    return target if target < end else end


def count(path: str, length: int) -> int:
    """Estimates the number of records in ``length`` bytes."""
    return max(length // header(path).record, 1)


def batches(
    path: str, start: int, end: int, timestamp: str, id: str | None, unit: Unit | None
) -> Iterator[RecordBatch]:
    """The records of the blocks that begin from ``start`` to before ``end``."""
    head = header(path)
    check_columns(head.fields, {"timestamp": timestamp, "ID": id}, f"the Avro file {path}")
    first = len(head.data) if start <= len(head.data) else _block_behind(path, start, end, head.sync)
    if first is None or first >= end:
        return
    looked = start > 0 or unit is not None
    values: list[Any] = []
    for row in _rows(path, head, first, end):
        values.append(row)
        if len(values) >= _RECORDS:
            yield _batch(values, timestamp, id, unit, path, looked)
            values, looked = [], True
    if values:
        yield _batch(values, timestamp, id, unit, path, looked)


def _rows(path: str, head: _Header, first: int, end: int) -> Iterator[Any]:
    fastavro = _import()
    with _open(path, first) as file:
        source = _Joined(head.data, file)
        try:
            for block in fastavro.block_reader(source):
                if first + block.offset - len(head.data) >= end:
                    return
                yield from block
        except InputError:
            raise
        except Exception as error:  # fastavro raises whatever its decoder met
            at = first + source.read_so_far - len(head.data)
            raise _unreadable(path, f"near byte {at:,}: {type(error).__name__}: {error}") from error


def _batch(
    rows: list[Any], timestamp: str, id: str | None, unit: Unit | None, path: str, looked: bool
) -> RecordBatch:
    if not all(isinstance(row, dict) for row in rows):
        raise InputError(f"the Avro file {path} has values that are no records: give it a schema of records")
    is_time = any(isinstance(row.get(timestamp), datetime.datetime) for row in rows)
    found = row_by_row([plain_value(row) for row in rows], timestamp, id, "us" if is_time else unit)
    if not looked and not is_time and found.timestamps:
        check_first(found.timestamps, timestamp, f"the Avro file {path}")
    return found


def _block_behind(path: str, start: int, end: int, sync: bytes) -> int | None:
    """The beginning of the first block at or after a position; None: none by ``end``."""
    at = start - _SYNC
    kept = b""
    with _open(path, at) as file:
        while at < end:
            data = file.read(1 << 20)
            if not data:
                return None
            found: int = (kept + data).find(sync)
            if found >= 0:
                return at - len(kept) + found + _SYNC
            at += len(data)
            kept = (kept + data)[-(_SYNC - 1) :]
    return None


def header(path: str) -> _Header:
    """The header of a file; an `InputError` where it is no Avro."""
    changed = path.tag if isinstance(path, ObjectPath) else os.stat(path).st_mtime_ns
    return _header(path, changed)


@functools.lru_cache(maxsize=1_000)
def _header(path: str, changed: int | str) -> _Header:
    fastavro = _import()
    size = _HEAD
    while True:
        with _open(path, 0) as file:
            data = file.read(size)
        if data[:4] != b"Obj\x01":
            raise _unreadable(path, "it does not begin as Avro does")
        try:
            reader = fastavro.reader(io.BytesIO(data))
            sync = bytes(reader._header["sync"])
        except Exception as error:
            if len(data) == size:  # the schema is larger
                size *= 4
                continue
            raise _unreadable(path, f"its header: {type(error).__name__}: {error}") from error
        schema = reader.writer_schema
        end = data.index(sync) + _SYNC
        fields = [field["name"] for field in schema.get("fields", ())] if isinstance(schema, dict) else []
        return _Header(data[:end], fields, sync, _record_bytes(data[end:]))


def _record_bytes(data: bytes) -> int:
    """The bytes of a record, from the header of a block; 100 without blocks."""
    try:
        found = io.BytesIO(data)
        records, size = _long(found), _long(found)
    except IndexError:
        return 100
    return max((size + _SYNC) // records, 1) if records > 0 else 100


def _long(data: io.BytesIO) -> int:
    """A number as Avro writes it: seven bits a byte, the sign in the last."""
    shift = value = 0
    while True:
        byte = data.read(1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1)


class _Joined(io.RawIOBase):
    """A header, and the blocks from a position in the file."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head = io.BytesIO(head)
        self._rest = rest
        self.read_so_far = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._head.read(size)
        if len(data) < size or size < 0:
            data += self._rest.read(size if size < 0 else size - len(data)) or b""
        self.read_so_far += len(data)
        return data

    def tell(self) -> int:
        return self.read_so_far


def _open(path: str, at: int) -> Any:
    try:
        if isinstance(path, ObjectPath):
            return io.BufferedReader(path.open_piece(at, path.size), 1 << 20)
        file = open(path, "rb")  # noqa: SIM115  it is closed by the caller
        file.seek(at)
        return file
    except OSError as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: str, why: str) -> InputError:
    return InputError(
        f"the Avro file {path} cannot be read ({why}): it may be cut short; replace it by a whole one"
    )


def _import() -> Any:
    return import_extra("Avro needs", "avro", "fastavro", error=InputError)
