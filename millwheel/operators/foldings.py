"""Which windows are kept as columns: it depends on the operator alone.

Tumbling and sliding windows that are emitted once, over counts, sums, minima, maxima and means.
Sessions merge by key; `lateness` and `early` count revisions by key; diverting late records needs each of
them; and the other aggregates keep values. Those have a row for each key.
"""

from __future__ import annotations

from millwheel.model.folding import Folded, Folding, FoldKind
from millwheel.operators.fields import FieldOf
from millwheel.operators.folds import Aggregate, Count, Max, Mean, Min, Sum
from millwheel.operators.windows import Fixed, Sliding

BY_COLUMNS = True
"""False keeps all windows in rows by key: for tests, which compare the two."""

_HUGE = 1 << 62  # ends of windows are computed in 64 bits

_KINDS: dict[type[Aggregate], FoldKind] = {Count: "count", Sum: "sum", Min: "min", Max: "max", Mean: "mean"}


def folding(window: Fixed, stream: str, aggregates: dict[str, Aggregate]) -> Folding | None:
    """The folding of windows that are emitted once; None if they need rows by key."""
    every, offset = (window.every, 0) if isinstance(window, Sliding) else (window.size, window.offset)
    if not BY_COLUMNS or any(type(aggregate) not in _KINDS for aggregate in aggregates.values()):
        return None
    if max(window.size, every, abs(offset)) >= _HUGE:
        return None
    folds = []
    for name, aggregate in aggregates.items():
        read = aggregate.read
        # A name with a dot may be a nested field, which needs the whole value.
        field = read.name if isinstance(read, FieldOf) and "." not in read.name else None
        folds.append(Folded(name, _KINDS[type(aggregate)], read, field, aggregate))
    shown = ", ".join(f"{folded.kind}({_shown(folded)})" for folded in folds)
    return Folding(stream, window.size, every, offset, tuple(folds), f"{window!r}: {shown}")


def _shown(folded: Folded) -> str:
    if folded.read is None:
        return ""
    if isinstance(folded.read, FieldOf):
        return repr(folded.read.name)
    return getattr(folded.read, "__qualname__", type(folded.read).__qualname__)
