"""Values of records in JSON types."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any


def to_plain(value: Any) -> Any:
    """A record's value in JSON types: bytes and keys of any type become text.

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
    """A value as JSON, in ASCII: what UTF-8 cannot encode is escaped."""
    return json.dumps(to_plain(value))


def bytes_text(value: bytes) -> str:
    """Bytes as text, with escapes for what is not UTF-8."""
    return value.decode("utf-8", "backslashreplace")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return bytes_text(key) if isinstance(key, bytes) else json_text(key)
