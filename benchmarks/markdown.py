"""Tables and sentences of docs/performance.md in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import results


def table(head: list[str], rows: Sequence[Sequence[object]]) -> str:
    """A table.

    >>> print(table(["a", "b"], [["x", 1_000]]))
    | a | b |
    |---|---|
    | x | 1,000 |
    """
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(results.text(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def goal(what: str, figure: str, limit: str, passed: bool | None) -> str:
    """A sentence on a goal.

    >>> goal("p50", "8 ms", "at most 10 ms", True)
    'p50: 8 ms (goal: at most 10 ms, reached).'
    """
    outcome = {True: ", reached", False: ", missed", None: ""}[passed]
    return f"{what}: {figure} (goal: {limit}{outcome})."


def without_data(result: dict[str, Any]) -> list[str]:
    """What could not be measured, with the reason."""
    return [f"{name}: {reason}." for name, reason in result.get("absent", {}).items()]
