"""Any value as JSON has it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

_LONGEST = 20_000  # characters and entries that are shown: enough for people, harmless for a page
_DEEPEST = 20


def plain(value: Any, longest: int = _LONGEST) -> Any:
    """A value as JSON has it, up to a bound: dataclasses as dicts, bytes as text, keys of dicts as text.

    >>> plain({1: (b"x", float("nan"))})
    {'1': ["b'x'", 'nan']}
    """
    return _Plain(longest).of(value)


class _Plain:
    """A value as JSON has it, up to a bound: dataclasses as dicts, bytes as text, keys of dicts as text."""

    def __init__(self, longest: int) -> None:
        self._left = longest

    def of(self, value: Any, depth: int = 0) -> Any:
        """The value, or a text in place of what JSON has not."""
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
