"""Rows of CSV: delimiters, column names, and types of fields."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from millwheel.errors import InputError
from millwheel.injectors.units import BadLine

Types = Mapping[str, Callable[[str], Any]] | Literal["infer"]

_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")  # 007 is a text; values have at most 64 bits
_FLOAT = re.compile(r"-?((0|[1-9]\d*)?\.\d+([eE][+-]?\d+)?|(0|[1-9]\d*)[eE][+-]?\d+)")
_TRUE, _FALSE = {"true", "t", "yes", "1"}, {"false", "f", "no", "0"}


class Layout(NamedTuple):
    """The layout of an injector's CSV files."""

    delimiter: str = ","
    header: tuple[str, ...] | None = None
    """The names of the columns, if the files have no header line."""
    types: Types | None = None

    def check(self) -> None:
        """Raises an `InputError` for an invalid layout."""
        if not isinstance(self.delimiter, str) or len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise InputError(f"Files: delimiter is one character, not {self.delimiter!r}")
        if self.types in (None, "infer"):
            return
        if not isinstance(self.types, Mapping) or not all(map(callable, self.types.values())):
            raise InputError(
                'Files: types is "infer", or a dict of columns and functions of a text such as '
                f'{{"price": float}}, not {self.types!r}'
            )

    def names(self, line: bytes) -> list[str]:
        """The columns, from the first line of a file."""
        if self.header is not None:
            return list(self.header)
        text = line.decode("utf-8-sig", "replace")
        return next(csv.reader([text], delimiter=self.delimiter), [])

    def check_columns(self, header: Sequence[str], path: str) -> None:
        """Raises an `InputError` if a column with a type is missing."""
        for name in self.types or () if self.types != "infer" else ():
            if name not in header:
                raise InputError(
                    f"the file {path} has no column {name!r}, which types= names; it has {', '.join(header)}"
                )

    def rows(self, lines: list[bytes], header: list[str]) -> list[dict[str, Any]] | None:
        """All rows in one call; None if one of them must be parsed alone."""
        try:
            text = b"\n".join(lines).decode()
            if '"' in text or "\r" in text:
                fields = list(csv.reader(text.split("\n"), strict=True, delimiter=self.delimiter))
            else:  # no quotes or other special characters
                fields = [line.split(self.delimiter) for line in text.split("\n")]
            if len(fields) != len(lines) or set(map(len, fields)) - {len(header)}:
                return None
            for at, convert in self._converters(header):
                for row in fields:
                    row[at] = convert(row[at])
        except Exception:  # also of a user's own type
            return None
        return [dict(zip(header, row)) for row in fields]  # noqa: B905 - compared above

    def parse(self, line: bytes, header: list[str]) -> dict[str, Any]:
        """Parses one row; raises a `BadLine` with the reason."""
        try:
            reader = csv.reader(io.StringIO(line.decode()), strict=True, delimiter=self.delimiter)
            fields: list[Any] = next(reader, [])
        except (UnicodeDecodeError, csv.Error) as error:
            raise BadLine(f"the line is not CSV ({error})") from None
        if len(fields) != len(header):
            raise BadLine(f"the line has {len(fields)} fields, the header has {len(header)}")
        for at, convert in self._converters(header):
            try:
                fields[at] = convert(fields[at])
            except Exception as error:
                kind = getattr(self._type(header[at]), "__name__", "type")
                raise BadLine(
                    f"the field {header[at]!r} is {fields[at]!r}, which {kind} cannot convert ({error})"
                ) from None
        return dict(zip(header, fields, strict=True))

    def _type(self, name: str) -> Any:
        return None if self.types is None or self.types == "infer" else self.types.get(name)

    def _converters(self, header: list[str]) -> list[tuple[int, Callable[[str], Any]]]:
        if self.types is None:
            return []
        if self.types == "infer":
            return [(at, infer) for at in range(len(header))]
        return [(at, _converter(self.types[name])) for at, name in enumerate(header) if name in self.types]


def infer(text: str) -> Any:
    """The value that a text looks like; an empty text is None.

    >>> [infer(text) for text in ("7", "-1.5e3", "true", "", "007", "1_000", "nan")]
    [7, -1500.0, True, None, '007', '1_000', 'nan']
    """
    if not text:
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    if text.isascii() and _FLOAT.fullmatch(text):
        return float(text)
    lower = text.lower()
    return lower == "true" if lower in ("true", "false") else text


def _converter(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type's function; for Python's own types, an empty text gives None."""
    if kind is bool:
        return _truth
    if kind in (int, float):
        return lambda text: kind(text) if text else None
    return kind


def _truth(text: str) -> bool | None:
    lower = text.strip().lower()
    if lower in _TRUE or lower in _FALSE:
        return lower in _TRUE
    if not lower:
        return None
    raise ValueError("it is neither true nor false")
