"""Lines of text to columns of records: JSON lines, CSV, and custom parsers."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

import orjson

from millwheel.errors import InputError
from millwheel.injectors.csv_rows import Layout
from millwheel.injectors.json_fields import read as read_fields
from millwheel.injectors.json_fields import read_columns
from millwheel.injectors.object_path import ObjectPath
from millwheel.injectors.packed import DAMAGES, is_packed, unpacked
from millwheel.injectors.units import BadLine, Unit, factor_of, to_time
from millwheel.model.field_columns import FieldColumns
from millwheel.model.injector import BadInput, FieldNames, RecordBatch
from millwheel.model.record import Record

if TYPE_CHECKING:
    from millwheel.injectors.line_columns import LineColumns

Parse = Callable[[str], Any]
"""A line without its end to a dict, a `Record`, or None for a line to skip."""

CHUNK = 4 << 20  # bytes read and parsed at once
FEW = 4_096  # bytes of lines of which columns are not worth their fixed cost
LINE = 1 << 16  # bytes of an object requested for one line
_STEP = 1 << 16  # bytes unpacked at once: limits the loss of a truncated file


class _Piece(io.RawIOBase):
    """The bytes of a file from ``start`` to ``end``; later appends are not seen."""

    def __init__(self, path: str, start: int, end: int) -> None:
        self._file = open(path, "rb")  # noqa: SIM115 - closed with this
        self._file.seek(start)
        self._left = end - start
        self._end = end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        if self._left and len(buffer) and not data:
            raise OSError(f"it shrank below its {self._end:,} bytes")
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _raw(path: str, start: int, end: int, first: int | None) -> io.RawIOBase:
    return path.open_piece(start, end, first) if isinstance(path, ObjectPath) else _Piece(path, start, end)


@contextmanager
def open_piece(path: str, start: int, end: int, first: int | None = None) -> Iterator[IO[bytes]]:
    """A piece of a file, unpacked if needed; an `InputError` if it cannot be read.

    ``first`` are the bytes that the caller expects to read, of an object: the size of the first request.
    """
    try:
        with io.BufferedReader(_raw(path, start, end, first), 1 << 20) as plain:
            if is_packed(path):
                with unpacked(path, plain) as packed:
                    yield packed
            else:
                yield plain
    except (OSError, EOFError, zlib.error) as error:
        hint = ": rename it if it is not packed" if str(error).startswith("Not a gzipped") else ""
        raise InputError(f"the file {path} cannot be read ({error}){hint}") from error


class Reader:
    """Converts the lines of one format to batches."""

    def __init__(
        self,
        timestamp: str,
        id: str | None,
        unit: Unit | None,
        form: str,
        parse: Parse | None = None,
        *,
        divert: bool = False,
        layout: Layout = Layout(),  # noqa: B008 - it cannot be changed
    ) -> None:
        self._timestamp = timestamp
        self._id = id
        self._unit = unit
        self._form = form
        self._parse = parse
        self._divert = divert
        self._layout = layout

    def batches(
        self, path: str, start: int, end: int, fields: Collection[str] | None = None
    ) -> Iterator[RecordBatch | FieldColumns]:
        """The records of the lines from ``start`` to ``end``.

        With ``fields``, the other fields of JSON lines may be left undecoded.

        A packed file that is truncated or damaged gives what can be unpacked of it, and then an error, or
        bad input if that is diverted.
        """
        try:
            yield from self._batches(path, start, end, fields)
        except InputError as error:
            if not self._divert or not isinstance(error.__cause__, DAMAGES):
                raise
            yield RecordBatch([], [], bad=[BadInput(str(error), path)])

    def records(self, path: str, start: int, end: int) -> Iterator[RecordBatch]:
        """The same as whole records, all of them."""
        return cast(Iterator[RecordBatch], self.batches(path, start, end))

    def first(self, path: str, end: int) -> int | None:
        """The timestamp of the first record; None if the first line has none."""
        try:
            header = self._header(path, end) if self._form == "csv" else []
            with open_piece(path, 0, end, LINE) as file:
                if self._form == "csv" and self._layout.header is None:
                    file.readline()
                batch = self.batch_of(file.readline(), header, None)
        except InputError:
            return None
        return batch.timestamps[0] if batch.timestamps else None

    def _batches(
        self, path: str, start: int, end: int, fields: Collection[str] | None
    ) -> Iterator[RecordBatch | FieldColumns]:
        header = self._header(path, end) if self._form == "csv" else []
        with open_piece(path, start, end) as file:
            if self._form == "csv" and start == 0 and self._layout.header is None:
                file.readline()
            rest = b""
            for chunk in _chunks(file):
                cut = chunk.rfind(b"\n") + 1
                if not cut:
                    rest += chunk
                    continue
                text = rest + chunk[:cut]
                yield self._columns(text, fields) or self.batch_of(text, header, fields)
                rest = chunk[cut:]
            if rest:
                yield self.batch_of(rest, header, fields)

    def _header(self, path: str, end: int) -> list[str]:
        with open_piece(path, 0, end, LINE) as file:
            header = self._layout.names(b"" if self._layout.header is not None else file.readline())
        self._layout.check_columns(header, path)
        return header

    def _columns(self, text: bytes, fields: Collection[str] | None) -> LineColumns | None:
        """All lines in one call as columns, if possible; None if one needs parsing."""
        if not isinstance(fields, FieldNames) or not fields.columns or len(text) < FEW:
            return None
        if self._form != "jsonl" or self._id is not None or self._unit == "iso" or not _is_plain(text):
            return None
        found = read_columns(text, self._timestamp, fields, fields.optional)
        if found is None:
            return None
        ends = [int(found.timestamps.min()), int(found.timestamps.max())]
        factor = factor_of(self._unit, ends)
        if factor is None or not all(abs(end) * factor < 2**63 for end in ends):
            return None
        if factor != 1:
            found.timestamps *= factor
        return found

    def batch_of(self, text: bytes, header: list[str], fields: Collection[str] | None) -> RecordBatch:
        """The records of whole lines."""
        lines = text.split(b"\n")
        if not lines[-1]:
            lines.pop()
        wanted = fields if self._form == "jsonl" and _is_plain(text) else None
        batch = None if wanted is None else self._fast_fields(lines, wanted)
        if batch is not None:
            return batch  # the common case: without empty lines, which are not JSON either
        count = len(lines)
        lines = [line for line in lines if line and not line.isspace()]
        if wanted is not None and len(lines) < count:
            batch = self._fast_fields(lines, wanted)
        if batch is None and self._form == "jsonl":
            batch = self._fast(lines)
        elif self._form == "csv":
            batch = self._fast_csv(lines, header)
        if batch is not None:
            return batch
        return self._slow(lines, self._parser(header))

    def _fast_fields(self, lines: list[bytes], wanted: Collection[str]) -> RecordBatch | None:
        """All lines in one call, and only some of their fields."""
        if self._unit == "iso":
            return None
        optional = wanted.optional if isinstance(wanted, FieldNames) else frozenset[str]()
        found = read_fields(lines, self._timestamp, self._id, tuple(wanted), optional)
        if found is None:
            return None
        factor = factor_of(self._unit, found.timestamps)
        if factor is None:
            return None
        if factor != 1:
            found.timestamps = [time * factor for time in found.timestamps]
        return found

    def _fast(self, lines: list[bytes]) -> RecordBatch | None:
        """All lines in one call; None if one of them must be parsed alone."""
        field, id = self._timestamp, self._id
        try:
            values = list(map(orjson.loads, lines))
            timestamps = [value[field] for value in values]
            ids = None if id is None else [value[id] for value in values]
        except (ValueError, KeyError, TypeError, IndexError):
            return None
        if set(map(type, timestamps)) - {int} or (ids is not None and set(map(type, ids)) - {str, int}):
            return None
        factor = factor_of(self._unit, timestamps)
        if factor is None:
            return None
        if factor != 1:
            timestamps = [time * factor for time in timestamps]
        return RecordBatch(timestamps, values, ids, json=lines)

    def _fast_csv(self, lines: list[bytes], header: list[str]) -> RecordBatch | None:
        """All rows in one call; None if one of them must be parsed alone."""
        field, id = self._timestamp, self._id
        if self._unit == "iso" or field not in header or (id or field) not in header:
            return None
        values = self._layout.rows(lines, header)
        if values is None:
            return None
        times = [value[field] for value in values]
        ids = None if id is None else [value[id] for value in values]
        try:
            timestamps = list(map(int, times)) if set(map(type, times)) <= {str, int} else None
        except ValueError:
            return None
        factor = None if timestamps is None else factor_of(self._unit, timestamps)
        if timestamps is None or factor is None or set(map(type, ids or ())) - {str, int}:
            return None
        if factor != 1:
            timestamps = [time * factor for time in timestamps]
        return RecordBatch(timestamps, values, ids)

    def _slow(self, lines: list[bytes], parse: Callable[[bytes], Any]) -> RecordBatch:
        """Line by line, so that a bad one is identified."""
        timestamps: list[int] = []
        values: list[Any] = []
        ids: list[Any] = []
        keys: list[str] = []
        bad: list[BadInput] = []
        for line in lines:
            try:
                value = parse(line)
                if value is None and self._parse is not None:
                    continue
                record = value if isinstance(value, Record) else self._record(value)
            except BadLine as error:
                bad.append(BadInput(str(error), line.decode("utf-8", "replace")))
                continue
            timestamps.append(record.timestamp)
            values.append(record.value)
            ids.append(record.id)
            keys.append(record.key)
        with_ids = self._id is not None or any(id is not None for id in ids)
        return RecordBatch(timestamps, values, ids if with_ids else None, keys if any(keys) else None, bad)

    def _record(self, value: Any) -> Record:
        return Record(value, self._time(value), id=self._record_id(value))

    def _parser(self, header: list[str]) -> Callable[[bytes], Any]:
        if self._form == "jsonl":
            return _parse_json
        if self._parse is not None:
            return _by_user(self._parse)

        return lambda line: self._layout.parse(line, header)

    def _time(self, value: Any) -> int:
        if not isinstance(value, dict):
            raise BadLine(f"the line is a {type(value).__name__}, not an object with fields")
        if self._timestamp not in value:
            raise BadLine(f"the record has no timestamp field {self._timestamp!r}")
        return to_time(value[self._timestamp], self._unit, self._timestamp, text=self._form == "csv")

    def _record_id(self, value: Any) -> Any:
        if self._id is None:
            return None
        if self._id not in value:
            raise BadLine(f"the record has no ID field {self._id!r}")
        id = value[self._id]
        if isinstance(id, bool) or not isinstance(id, str | int):
            raise BadLine(f"the ID field {self._id!r} is {id!r}: an ID is a text or an integer")
        return id


def _is_plain(text: bytes) -> bool:
    """Whether every text in it is valid: undecoded values must not fail in a hook."""
    if b"\\" in text and (b"\\ud" in text or b"\\uD" in text):  # perhaps a lone surrogate
        return False
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _chunks(file: IO[bytes], wanted: int = CHUNK) -> Iterator[bytes]:
    """The bytes of a file; of a truncated packed one, all it has, then the error."""
    # A packed file is read in the pieces in which it is unpacked: a longer read that fails returns nothing.
    read = getattr(file, "read1", file.read) if not isinstance(file, io.BufferedReader) else file.read
    while True:
        chunks: list[bytes] = []
        size = 0
        try:
            while size < wanted and (data := read(min(wanted - size, _STEP))):
                chunks.append(data)
                size += len(data)
        except DAMAGES:
            if chunks:
                yield b"".join(chunks)
            raise
        if not chunks:
            return
        yield b"".join(chunks)


def sample(path: str, end: int, size: int) -> bytes:
    """The first ``size`` or more bytes of a file; fewer of a damaged packed one."""
    try:
        with open_piece(path, 0, end, size) as file:
            return next(_chunks(file, size), b"")
    except InputError as error:
        if not isinstance(error.__cause__, DAMAGES):
            raise
        return b""


def _by_user(parse: Parse) -> Callable[[bytes], Any]:
    """The user's own parser; its exceptions become `BadLine`."""

    def parse_line(line: bytes) -> Any:
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise BadLine(f"the line is not UTF-8 ({error})") from None
        try:
            return parse(text.rstrip("\r"))
        except Exception as error:
            raise BadLine(f"the parser raised {type(error).__name__}: {error}") from None

    return parse_line


def _parse_json(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except ValueError as error:
        raise BadLine(f"the line is not JSON ({error})") from None
