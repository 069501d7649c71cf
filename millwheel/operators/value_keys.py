"""Values as keys of a dict: equal values have equal keys, for any type."""

from __future__ import annotations

from typing import Any

from millwheel.model.codec import pack

_NAN = b"n"


def distinct_key(value: Any) -> Any:
    """A hashable form of a value that the codec can encode.

    >>> distinct_key(1) == distinct_key("1"), distinct_key([1]) == distinct_key([1])
    (False, True)
    """
    kind = type(value)
    if kind is str or kind is int:
        return value
    if kind is float:
        return _NAN if value != value else _number(value)
    if kind is bool:
        return int(value)
    if kind is bytes:
        return b"b" + value
    return b"m" + pack(_ordered(value))


def _ordered(value: Any) -> Any:
    """One form for all equal values: entries of a dict in one order."""
    if isinstance(value, dict):
        entries = [[_ordered(key), _ordered(entry)] for key, entry in value.items()]
        return ["d", sorted(entries, key=pack)]
    if isinstance(value, list | tuple):
        return ["l", [_ordered(entry) for entry in value]]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return _number(value)
    return value


def _number(value: float) -> int | float:
    """The integer that equals a float, if MessagePack can encode it."""
    return int(value) if value.is_integer() and -(2.0**63) <= value < 2.0**64 else value
