"""Warnings of fields that consumers name and no first record of a stream has."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable
from typing import Any

from millwheel.worker.unseen_fields import FIRST

logger = logging.getLogger("millwheel")

Place = tuple[str, str, str]
"""Computation, stream, field."""


class FieldWarnings:
    """Adds up what the processes report; a field is warned of once in a run."""

    def __init__(self) -> None:
        self._without: dict[Place, int] = {}
        self._names: dict[Place, list[str]] = {}
        self._seen: set[Place] = set()
        self.texts: dict[Place, str] = {}

    def add(self, news: Iterable[list[Any]]) -> None:
        """Adds a report: [consumer, stream, field, records without it, fields]."""
        for consumer, stream, field, records, names in news:
            self._add((consumer, stream, field), records, names)

    def _add(self, place: Place, records: int, names: list[str]) -> None:
        if place in self._seen:
            return
        if not records:
            self._seen.add(place)
            return
        self._without[place] = self._without.get(place, 0) + records
        if names:
            self._names[place] = names
        if self._without[place] >= FIRST:
            self._seen.add(place)
            self.texts[place] = _text(place, self._without[place], self._names.get(place, []))
            logger.warning("%s", self.texts[place])


def _text(place: Place, records: int, names: list[str]) -> str:
    consumer, stream, field = place
    near = difflib.get_close_matches(field, names, 1)
    there = f"; there are {', '.join(names)}" if names else "; the values have no fields"
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    first = f"none of the first {records:,} records of {stream!r} has the field {field!r}"
    return f"{consumer}: {first}{there}{hint}"
