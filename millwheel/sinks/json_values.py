"""Values of records as JSON can hold them."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any


def to_plain(value: Any) -> Any:
    """What a record's value may hold, as JSON can: bytes and keys of any kind become text.

    >>> to_plain({1: b"x", "y": (float("nan"),)})
    {'1': 'x', 'y': [None]}
    """
    if isinstance(value, dict):
        return {_key(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, bytes):
        return bytes_text(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def json_text(value: Any) -> str:
    """A value as JSON, in ASCII: what UTF-8 cannot hold is escaped."""
    return json.dumps(to_plain(value))


def bytes_text(value: bytes) -> str:
    """Bytes as text, what is not UTF-8 as escapes."""
    return value.decode("utf-8", "backslashreplace")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return bytes_text(key) if isinstance(key, bytes) else json_text(key)
