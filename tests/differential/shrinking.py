"""Finds the smallest part of a case that still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.differential.case import Case, NodeSpec, SourceSpec, Step
from tests.differential.comparison import Difference, run

_MOST = 400  # runs: a few seconds


def shrink(
    case: Case, without: Sequence[str], error: Difference, attempt: Callable[[Case], None] = run
) -> tuple[list[str], Difference]:
    """Leaves out what is not needed to fail; returns what was left out, and the failure of the rest."""
    gone = list(without)
    runs = 0
    smaller = True
    while smaller and runs < _MOST:
        smaller = False
        parts = case.without(gone).parts()
        size = max(len(parts) // 2, 1)
        while size and runs < _MOST:  # many at once, then fewer, as delta debugging does
            for start in range(0, len(parts), size):
                tried = [*gone, *(part for part in parts[start : start + size] if part not in gone)]
                candidate = case.without(tried)
                if len(tried) == len(gone) or candidate == case.without(gone):
                    continue
                if not candidate.steps or not candidate.nodes:
                    continue
                runs += 1
                try:
                    attempt(candidate)
                except Difference as found:
                    if found.kind != error.kind:
                        continue  # another one: it has a seed of its own
                    gone, error, smaller = tried, found, True
            size //= 2
    return gone, error


def command(seed: int, without: Sequence[str]) -> str:
    """What replays a case."""
    left_out = f" --without {','.join(without)}" if without else ""
    return f"replay it: python -m tests.differential {seed}{left_out}"


def describe(case: Case) -> str:
    """A case for people: what differs from a plain one."""
    lines = [f"seed {case.seed}, {_plain(case.options)}"]
    lines += [_plain(part) for part in (*case.sources, *case.nodes, *case.steps)]
    return "\n  ".join(lines)


def _plain(part: SourceSpec | NodeSpec | Step | object) -> str:
    fields = type(part).__dataclass_fields__  # type: ignore[attr-defined]
    shown = []
    for name, field in fields.items():
        value = getattr(part, name)
        empty = value in ((), {}) or value == field.default
        if not empty:
            many = isinstance(value, tuple) and value and not isinstance(value[0], str)
            text = "\n      ".join(["", *map(_plain, value)]) if many else repr(value)
            shown.append(f"{name}={text}")
    return f"{type(part).__name__}({', '.join(shown)})"
