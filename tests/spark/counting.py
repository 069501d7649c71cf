"""A pipeline that counts records by key, and what tests ask of its output."""

from __future__ import annotations

import millwheel as mw
from tests.computations import Counter


def records(count: int, first: int = 0) -> list[mw.Record]:
    """Ten a second, of five users, every tenth a duplicate of the one before."""
    found = []
    for n in range(first, first + count):
        id = n - 1 if n % 10 == 9 else n
        value = {"user": id % 5, "n": id}
        found.append(mw.Record(value=value, timestamp=id * mw.SECOND // 10, id=id))
    return found


def in_order(found: list[mw.Record]) -> list[tuple[str, int, str]]:
    return sorted((r.key, r.timestamp, repr(r.value)) for r in found)


def counting(injector: mw.Injector) -> tuple[mw.Pipeline, mw.sinks.Collect]:
    p = mw.Pipeline("counting")
    p.inject("in", injector)
    p.add(Counter(), inputs={"in": mw.by("user")}, outputs=["counts"])
    sink = mw.sinks.Collect()
    p.sink("counts", sink)
    return p, sink
