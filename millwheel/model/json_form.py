"""Any value in JSON types."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

_LONGEST = 20_000  # characters and entries that are shown
_DEEPEST = 20


def plain(value: Any, longest: int = _LONGEST) -> Any:
    """A value in JSON types, up to a limit: dicts for dataclasses, text for bytes.

    >>> plain({1: (b"x", float("nan"))})
    {'1': ["b'x'", 'nan']}
    """
    return _Plain(longest).of(value)


class _Plain:
    """Converts a value to JSON types, up to a limit."""

    def __init__(self, longest: int) -> None:
        self._left = longest

    def of(self, value: Any, depth: int = 0) -> Any:
        """The value, or a text for what JSON lacks."""
        self._left -= 1
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else repr(value)
        if isinstance(value, str):
            return self._cut(value)
        if self._left <= 0 or depth > _DEEPEST:
            return "…"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {each.name: getattr(value, each.name, None) for each in dataclasses.fields(value)}
            return {"@type": type(value).__name__, **self.of(fields, depth + 1)}
        if isinstance(value, Mapping):
            plain: dict[str, Any] = {}
            for name, part in value.items():
                if self._left <= 0:
                    plain["…"] = f"{len(value) - len(plain):,} more"
                    break
                plain[self._cut(name if isinstance(name, str) else repr(name))] = self.of(part, depth + 1)
            return plain
        if isinstance(value, list | tuple | set | frozenset):
            items: list[Any] = []
            for part in value:
                if self._left <= 0:
                    items.append(f"… {len(value) - len(items):,} more")
                    break
                items.append(self.of(part, depth + 1))
            return items
        return self._cut(repr(value[: self._left] if isinstance(value, bytes) else value))

    def _cut(self, text: str) -> str:
        text = text.encode("utf-8", "backslashreplace").decode()
        if len(text) > self._left:
            text = text[: max(self._left, 0)] + "…"
        self._left -= len(text)
        return text
