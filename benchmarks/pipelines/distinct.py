"""Keys that come once, each with a little state."""

from __future__ import annotations

import millwheel as mw


class Counter(mw.Computation):
    """Counts a key's records."""

    def process_record(self, record: mw.Record) -> None:
        if not self.state:
            self.count("keys")
        self.state["count"] = self.state.get("count", 0) + 1
        self.state["last"] = record.timestamp


def make(number: int) -> mw.Record:
    """A record of a key that no other record has."""
    return mw.Record(key=f"user-{number}", value=number, timestamp=number)


def pipeline(keys: int) -> mw.Pipeline:
    """Keys into state, and nothing out: what is measured is what state costs."""
    p = mw.Pipeline("memory")
    p.inject("users", mw.injectors.Generator(make, count=keys, partitions=2))
    p.add(Counter(), inputs={"users": mw.by_key})
    return p
