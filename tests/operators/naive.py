"""Queries over windows, written naively: the batch that operators are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import millwheel as mw
from tests.operators.feeding import Row, by_key

Result = Callable[[list[Row]], dict[str, Any]]
"""What a query gives for the records of one window."""


def fixed(found: list[Row], result: Result, size: int, every: int, offset: int = 0) -> list[dict[str, Any]]:
    results = []
    for key, mine in sorted(by_key(found).items()):
        for start in range(offset - 50 * every, 1_000, every):
            inside = [row for row in mine if start <= row[2] < start + size]
            if inside:
                results.append({"key": key, "start": start, "end": start + size, **result(inside)})
    return results


def sessions(found: list[Row], result: Result, gap: int) -> list[dict[str, Any]]:
    results = []
    for key, mine in sorted(by_key(found).items()):
        groups: list[list[Row]] = []
        for row in sorted(mine, key=lambda row: row[2]):
            if groups and row[2] < groups[-1][-1][2] + gap:
                groups[-1].append(row)
            else:
                groups.append([row])
        for group in groups:
            results.append({"key": key, "start": group[0][2], "end": group[-1][2] + gap, **result(group)})
    return results


WINDOWS: dict[str, tuple[mw.windows.Window, Any]] = {
    "tumbling": (mw.windows.tumbling(10), lambda *query: fixed(*query, 10, 10)),
    "tumbling, offset": (mw.windows.tumbling(10, offset=3), lambda *query: fixed(*query, 10, 10, 3)),
    "sliding": (mw.windows.sliding(10, 4), lambda *query: fixed(*query, 10, 4)),
    "sliding, with gaps": (mw.windows.sliding(5, 12), lambda *query: fixed(*query, 5, 12)),
    "session": (mw.windows.session(6), lambda *query: sessions(*query, 6)),
}
REVISIONS: dict[str, dict[str, int]] = {
    "once": {},
    "with lateness": {"lateness": 20},
    "early": {"early": 7},
    "both": {"lateness": 20, "early": 7},
}
