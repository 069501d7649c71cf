"""The seam between a table and what is packed in it.

A table has the entries of its shard, and rows that pack several entries: the rows of keys in runs
(`row_runs`), the marks of the timer index in bundles (`timer_bundles`). Shard and snapshot ask here which
entries are packed; the format of each packing is known to its own module only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from millwheel.store.keyspace import BUNDLE, TIMER, TIMER_SUFFIX, after
from millwheel.store.postgres import row_runs, timer_bundles
from millwheel.store.postgres.queries import Queries, groups_of
from millwheel.store.postgres.row_runs import Listed, Log, Rows
from millwheel.store.postgres.sessions import ByteArray
from millwheel.store.postgres.timer_bundles import Bundler, Entries, Removal

Fetch = Callable[[str, Sequence[Any]], list[Any]]
"""The rows of a statement with parameters."""


@dataclass
class Split:
    """The changes of a write, by how they are stored."""

    deletes: list[bytes]
    puts: Entries
    new: Entries
    """Entries assumed to be absent."""
    removal: Removal = field(default_factory=Removal)
    """Of marks: the rows to delete are known once their bundles are read."""
    rows: Rows = field(default_factory=dict)
    """The changed rows of keys."""


@dataclass
class Packing:
    """How a shard packs; the journal packs nothing."""

    bundler: Bundler = field(default_factory=Bundler)
    log: Log = field(default_factory=Log)

    def split(self, last: dict[bytes, bytes], deletes: set[bytes]) -> Split:
        """Sorts out the changes that are packed."""
        keys, gone = sorted(last), sorted(deletes.difference(last))
        for names in (keys, gone):
            timer_bundles.refuse_bundles(names)
            row_runs.refuse_runs(names)
        rows: Rows = dict.fromkeys(_cut(gone, row_runs.row_part(gone)))
        rows.update((key, last[key]) for key in _cut(keys, row_runs.row_part(keys)))
        valued = [key for key in keys[timer_bundles.index_part(keys)] if last[key]]
        marks = _cut(gone, timer_bundles.index_part(gone)) + list(filter(timer_bundles.is_mark, valued))
        split = plain(last, keys, gone)
        names = [key for key, _ in split.new]
        bundles = self.bundler.pack(_cut(names, timer_bundles.index_part(names)))
        split.new = [(key, b"") for key in names] + bundles
        split.removal, split.rows = Removal(marks), rows
        return split

    def runs(self, listed: Listed, fetch: Fetch, queries: Queries) -> list[Rows]:
        """The content of runs, the first of them first."""
        return self.log.rows(listed, lambda names: fetch(queries.get_each, (ByteArray(names),)))


def plain(last: dict[bytes, bytes], keys: Iterable[bytes], gone: Iterable[bytes]) -> Split:
    """The changes of some sorted keys, unpacked."""
    # An entry without a value, as in the index of timers, only states its presence: it is never
    # written twice, and need not be looked up first.
    keys = list(keys)
    return Split(
        list(gone),
        [(key, last[key]) for key in keys if last[key]],
        [(key, b"") for key in keys if not last[key]],
    )


def visible(
    entries: Iterator[tuple[bytes, bytes]], start: bytes, stop: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a range of the table, without those that pack others."""
    if timer_bundles.hides(start, stop):
        entries = (entry for entry in entries if not timer_bundles.is_bundle(entry[0]))
    if row_runs.hides(start, stop):
        return (entry for entry in entries if not row_runs.is_run(entry[0]))
    return entries


def look_up(fetch: Fetch, queries: Queries, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    """The values of those keys that exist, but for rows in runs."""
    found = dict(fetch(queries.get_each, (ByteArray(keys),)))
    if not queries.packed:
        return found
    low, high = min(keys), max(keys)
    if low < after(BUNDLE) and high >= TIMER:
        groups = {BUNDLE + key[1:TIMER_SUFFIX] for key in keys if timer_bundles.is_mark(key)}
        if groups:
            wanted = set(keys)
            for key, value in fetch(queries.bundles, groups_of(sorted(groups))):
                if timer_bundles.is_bundle(key):
                    found.update(dict.fromkeys(wanted.intersection(timer_bundles.marks_of(key, value)), b""))
    return dict(visible(iter(found.items()), low, high + b"\x00"))


def _cut(keys: list[bytes], part: slice) -> list[bytes]:
    """Removes a part of some keys, and returns it."""
    found = keys[part]
    del keys[part]
    return found
