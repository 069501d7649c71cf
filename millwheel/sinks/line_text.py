"""Lines of JSON: those of records, and those of closed windows, from columns."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import orjson

from millwheel.model.emitted import Emitted, Span
from millwheel.sinks.json_values import bytes_text, json_text

PIECE = 2_000
"""Lines joined at once: reusing their memory saves half of the time."""


class _Entry(msgspec.Struct, gc=False):
    """A line; its fields are written as they are."""

    key: Any
    timestamp: Any
    value: Any


_encode_lines = msgspec.json.Encoder().encode_lines
_encode = msgspec.json.Encoder().encode
_SCALARS = {type(None), bool, int, float, str}


def _is_flat(values: Sequence[Any]) -> bool:
    """Whether all values are scalars, or all are objects of scalars."""
    kinds = set(map(type, values))
    if kinds <= _SCALARS:
        return True
    if kinds != {dict}:
        return False
    names, inner = set(map(type, chain.from_iterable(values))), map(dict.values, values)
    return names <= {str} and set(map(type, chain.from_iterable(inner))) <= _SCALARS


_BEGIN = b'{"' + uuid.uuid4().hex.encode() + b'":'  # the unique beginning of an entry
_FIRST_FIELD = _BEGIN[2:-2].decode()


def lines_of(keys: Sequence[str], timestamps: Sequence[int], values: Sequence[Any]) -> bytes:
    """The lines of all records in one call, which is five times cheaper.

    Values that msgspec encodes as we do are encoded by it at once. For others, orjson encodes an array, whose
    entries are then split into lines.
    """
    try:
        if _is_flat(values):
            return _encode_lines(list(map(_Entry, keys, timestamps, values)))
        entries = [
            {_FIRST_FIELD: key, "timestamp": timestamp, "value": value}
            for key, timestamp, value in zip(keys, timestamps, values, strict=True)
        ]
        text = orjson.dumps(entries, default=_other, option=_OPTIONS)
    except (TypeError, UnicodeEncodeError):  # a lone surrogate, which UTF-8 cannot encode
        return b"".join(map(line_of, keys, timestamps, values))
    return text[1:-1].replace(b"}," + _BEGIN, b"}\n" + _BEGIN).replace(_BEGIN, b'{"key":') + b"\n"


def window_lines(windows: Emitted) -> Iterator[bytes]:
    """The lines of closed windows, in pieces, without an object for each value."""
    names = [b"," + _encode(name) + b":" for name in windows.names]
    for span, keys, columns in windows.by_window():
        for first in range(0, span.records, PIECE):
            mine = slice(first, first + PIECE)
            parts = [column[mine] for column in columns]
            yield _joined_lines(span, keys[mine], names, parts) or lines_of(
                keys[mine],
                [span.timestamp] * len(keys[mine]),
                _values(span, keys[mine], windows.names, parts),
            )


def _values(span: Span, keys: list[str], names: list[str], columns: list[list[Any]]) -> list[Any]:
    return [
        {"key": key, "start": span.start, "end": span.end, **dict(zip(names, row, strict=True))}
        for key, *row in zip(keys, *columns, strict=True)
    ]


def _joined_lines(span: Span, keys: list[str], names: list[bytes], columns: list[list[Any]]) -> bytes | None:
    """The lines of a window, joined from texts; None if a result is not a number."""
    if not columns or any(not set(map(type, column)) <= _NUMBERS for column in columns):
        return None
    try:
        texts = _each_text(keys)
        numbers = [_encode(column)[1:-1].split(b",") for column in columns]
    except (UnicodeEncodeError, OverflowError):  # a lone surrogate, or more than 64 bits
        return None
    # {"key":"KEY","timestamp":T,"value":{"key":"KEY","start":S,"end":E,"NAME":RESULT}}, and the next line
    begin, end = b'{"key":"', b"}}\n"
    stamp = b'","timestamp":%d,"value":{"key":"' % span.timestamp
    window = b'","start":%d,"end":%d' % (span.start, span.end)
    constants = [stamp, window + names[0], *names[1:], end + begin]
    varying = [texts, texts, *numbers]
    width = 2 * len(varying)
    parts: list[Any] = [None] * (width * len(keys))
    for number, (own, constant) in enumerate(zip(varying, constants, strict=True)):
        parts[2 * number :: width] = own
        parts[2 * number + 1 :: width] = [constant] * len(keys)
    parts[-1] = end
    return begin + b"".join(parts)


def _each_text(keys: list[str]) -> list[bytes]:
    """Each key as JSON without quotes, in one call if none needs an escape."""
    text = _encode(keys)
    if b"\\" in text:
        return [_encode(key)[1:-1] for key in keys]
    return text[2:-2].split(b'","')


_NUMBERS = {int, float, bool, type(None)}


def line_of(key: str, timestamp: int, value: Any) -> bytes:
    """One line, by Python's json, which escapes lone surrogates."""
    return json_text({"key": key, "timestamp": timestamp, "value": value}).encode() + b"\n"


_OPTIONS = orjson.OPT_NON_STR_KEYS


def _other(value: Any) -> Any:
    if isinstance(value, bytes):
        return bytes_text(value)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
