"""Aggregates by key and window as arrays: grouped from records, and merged with each other.

Pure functions over columns. Whatever NumPy would do otherwise than Python does (integers of more than 64
bits, whole and broken numbers mixed, texts, NaN) is left to the aggregates' own functions, value by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from millwheel.model import codec as codecs
from millwheel.model.folding import Folded, Folding
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.store.windows import OBJECTS, StoredColumn

Numbers = NDArray[Any]
_EXACT: Final = 2**53  # sums of floats that are whole numbers are exact up to here
_LARGEST: Final = 2**63
_DENSE = 4  # times the records: so many places are counted without sorting


class Column:
    """One aggregate of each key and window: numbers, or a list of what is so far."""

    __slots__ = ("counts", "values")

    def __init__(self, values: Numbers | list[Any], counts: Numbers | None = None) -> None:
        self.values = values
        """int64 or float64; or objects, as the aggregate's own functions have them."""
        self.counts = counts
        """Of numbers that are no counts: how many values each was made of."""

    def pick(self, places: Numbers) -> Column:
        """The entries at some places."""
        if isinstance(self.values, list):
            return Column([self.values[place] for place in places.tolist()])
        return Column(self.values[places], None if self.counts is None else self.counts[places])

    def cut(self, mine: slice) -> Column:
        """The entries of a span."""
        return Column(self.values[mine], None if self.counts is None else self.counts[mine])

    def objects(self, folded: Folded) -> list[Any]:
        """What is so far, for the aggregate's own functions."""
        if isinstance(self.values, list):
            return self.values
        return self.stored(folded).objects()

    def stored(self, folded: Folded) -> StoredColumn:
        """The column as it travels, and as it is kept."""
        if isinstance(self.values, list):
            return StoredColumn(folded.kind, OBJECTS, codecs.msgpack.encode(self.values), None)
        code = "q" if self.values.dtype == np.int64 else "d"
        counts = None if self.counts is None else self.counts.tobytes()
        return StoredColumn(folded.kind, code, self.values.tobytes(), counts)

    def results(self, folded: Folded) -> list[Any]:
        """What is emitted."""
        if isinstance(self.values, list):
            return [folded.fold.result(so_far) for so_far in self.values]
        numbers: list[Any] = self.values.tolist()
        if self.counts is None:
            return numbers
        counts: list[int] = self.counts.tolist()
        if folded.kind == "mean":  # of integers, as Python divides them
            return [n / count if count else None for n, count in zip(numbers, counts, strict=True)]
        if 0 not in counts:
            return numbers
        return [n if count else None for n, count in zip(numbers, counts, strict=True)]


def column_of(stored: StoredColumn) -> Column:
    """The inverse of `Column.stored`."""
    if stored.code == OBJECTS:
        return Column(stored.objects())
    counts = None if stored.counts is None else np.frombuffer(stored.counts, np.int64)
    return Column(np.frombuffer(stored.data, np.int64 if stored.code == "q" else np.float64), counts)


@dataclass
class Partials:
    """Aggregates of some records: row by row a key (its place among ``keys``), a window, the columns."""

    keys: list[str]
    tablets: Numbers
    """Of each key."""
    records: Numbers
    """How many records of each key there were, those that came too late among them."""
    places: Numbers
    starts: Numbers
    columns: list[Column]


@dataclass
class Spread:
    """Which windows some records are in: entry by entry a record and the start of one of its windows."""

    records: Numbers
    starts: Numbers
    late: int
    dropped: int


def spread(folding: Folding, times: Numbers, before: int) -> Spread:
    """Puts records into their windows that the watermark before the epoch has not closed (semantics 4).

    A record that is late for all of its windows is dropped; one that is in none, between two, is not.
    """
    size, every = folding.size, folding.every
    count = len(times)
    if count and not (
        MIN_TIME + size + every + abs(folding.offset) < int(times.min())
        and int(times.max()) < MAX_TIME - size - every - abs(folding.offset)
    ):
        return _spread_slowly(folding, times.tolist(), before)
    into = (times - folding.offset) % every
    last = times - into
    everything = np.arange(count)
    if size == every:
        records, starts = everything, last
    else:
        parts = [
            (mine, last[mine] - back * every)
            for back in range(-(-size // every))
            for mine in (np.flatnonzero(into + back * every < size),)
        ]
        records = np.concatenate([mine for mine, _ in parts])
        starts = np.concatenate([start for _, start in parts])
    late = dropped = 0
    if count and int(times.min()) < before:
        late = int(np.count_nonzero(times < before))
        dropped = int(np.count_nonzero((last + size <= before) & (into < size)))
        open_still = starts + size > before
        records, starts = records[open_still], starts[open_still]
    return Spread(records, starts, late, dropped)


def _spread_slowly(folding: Folding, times: list[int], before: int) -> Spread:
    """The same near the ends of time, where 64 bits do not hold a window's end."""
    records: list[int] = []
    starts: list[int] = []
    late = dropped = 0
    for number, time in enumerate(times):
        mine = folding.starts(time)
        kept = [start for start in mine if start + folding.size > before]
        if kept and kept[0] < -_LARGEST:
            raise BeforeTime(number, kept[0])
        late += time < before
        dropped += bool(mine) and not kept
        records += [number] * len(kept)
        starts += kept
    return Spread(np.array(records, np.int64), np.array(starts, np.int64), late, dropped)


class BeforeTime(Exception):
    """A record is in a window that begins before the first time that 64 bits hold."""

    def __init__(self, record: int, start: int) -> None:
        super().__init__(record, start)
        self.record = record
        self.start = start


def numbers_of(values: Sequence[Any] | Numbers) -> tuple[Numbers, Numbers | None] | None:
    """A field as numbers, and where there are some (None: everywhere); None where Python must look at it."""
    if isinstance(values, np.ndarray):
        return None if values.dtype not in (np.int64, np.float64) or _has_nan(values) else (values, None)
    kinds = set(map(type, values))
    there: Numbers | None = None
    if type(None) in kinds:
        kinds.discard(type(None))
        there = np.array([value is not None for value in values], np.bool_)
        values = [0 if value is None else value for value in values]
    if not kinds <= {int} and kinds != {float}:
        return None
    try:
        found = np.array(values, np.float64 if float in kinds else np.int64)
    except OverflowError:
        return None
    return None if _has_nan(found) else (found, there)


def _has_nan(found: Numbers) -> bool:
    return found.dtype == np.float64 and bool(np.isnan(found).any())


def codes_of(keys: Sequence[str]) -> tuple[list[str], Numbers]:
    """Each key once, in order, and by record the place of its key."""
    names = list(dict.fromkeys(keys))
    places = dict(zip(names, range(len(names)), strict=True))
    return names, np.fromiter(map(places.__getitem__, keys), np.int64, len(keys))


def grouped(places: Numbers, starts: Numbers, folding: Folding) -> tuple[Numbers, Numbers, Numbers]:
    """The groups of equal places and starts: the place of each, its start, and by entry its group."""
    if not len(places):
        return places, starts, places
    first = int(starts.min())
    width = (int(starts.max()) - first) // folding.every + 1
    if width * (int(places.max()) + 1) < _LARGEST and int(starts.max()) - first < _LARGEST:
        windows = (starts - first) // folding.every
    else:  # far apart, at the ends of time
        _, windows = np.unique(starts, return_inverse=True)
        width = int(windows.max()) + 1
    wanted = places * width + windows
    span = int(wanted.max()) + 1
    if span <= _DENSE * len(wanted) + 1024:
        used = np.zeros(span, np.bool_)
        used[wanted] = True
        found = np.flatnonzero(used)
        numbers = np.empty(span, np.int64)
        numbers[found] = np.arange(len(found))
        groups = numbers[wanted]
    else:
        found, groups = np.unique(wanted, return_inverse=True)
    one = np.empty(len(found), np.int64)
    one[groups] = np.arange(len(groups))  # any entry of each group
    return found // width, starts[one], groups


def windows_of(folding: Folding, part: Partials) -> set[tuple[int, int]]:
    """The tablet and the start of each window that a part has something of."""
    _, starts, groups = grouped(part.tablets[part.places].astype(np.int64), part.starts, folding)
    one = np.empty(len(starts), np.int64)
    one[groups] = np.arange(len(groups))
    return set(zip(part.tablets[part.places[one]].tolist(), starts.tolist(), strict=True))


def counted(groups: Numbers, count: int) -> Numbers:
    """How many entries each group has."""
    return np.bincount(groups, minlength=count)[:count]


def is_there(values: Sequence[Any] | Numbers) -> Numbers:
    """Which values of a field are there at all."""
    if isinstance(values, np.ndarray):
        return np.ones(len(values), np.bool_)
    return np.fromiter((value is not None for value in values), np.bool_, len(values))


def picked(column: Numbers | None, places: Numbers) -> Numbers | None:
    """The entries of a column at some places."""
    return None if column is None else column[places]


def folded_numbers(
    kind: str, groups: Numbers, count: int, values: Numbers | None, there: Numbers | None
) -> Column | None:
    """A field's numbers by group; None where a sum may need more than 64 bits."""
    assert values is not None
    if there is not None:
        groups, values = groups[there], values[there]
    found = _reduced(kind, groups, count, values)
    return None if found is None else Column(found, counted(groups, count))


def _reduced(kind: str, groups: Numbers, count: int, values: Numbers) -> Numbers | None:
    """The smallest, the largest, or (also of a mean) the sum of each group's values."""
    if kind in ("min", "max"):
        found: Numbers = np.zeros(count, values.dtype)
        if len(values):
            worst = values.max() if kind == "min" else values.min()
            found[:] = worst
            (np.minimum if kind == "min" else np.maximum).at(found, groups, values)
        return found
    if values.dtype == np.float64:
        return np.bincount(groups, weights=values, minlength=count)[:count]
    most = max(abs(int(values.min())), abs(int(values.max()))) * len(values) if len(values) else 0
    if most < _EXACT:  # as floats, which NumPy adds by group at once
        return np.bincount(groups, weights=values, minlength=count)[:count].astype(np.int64)
    if most >= _LARGEST:
        return None
    found = np.zeros(count, np.int64)
    np.add.at(found, groups, values)
    return found


def merged(folding: Folding, parts: Sequence[Partials]) -> Partials:
    """Partial aggregates as one: each key and window once."""
    if len(parts) == 1:
        return parts[0]
    keys: dict[str, int] = {
        key: place for place, key in enumerate(dict.fromkeys(chain.from_iterable(p.keys for p in parts)))
    }
    tablets, records = np.zeros(len(keys), np.uint8), np.zeros(len(keys), np.int64)
    places = []
    for part in parts:
        own = np.fromiter(map(keys.__getitem__, part.keys), np.int64, len(part.keys))
        tablets[own] = part.tablets
        records[own] += part.records  # a part has each key once
        places.append(own[part.places])
    at, starts, groups = grouped(
        np.concatenate(places), np.concatenate([part.starts for part in parts]), folding
    )
    columns = []
    for number, folded in enumerate(folding.folds):
        try:
            columns.append(_merged(folded, [part.columns[number] for part in parts], groups, len(at)))
        except _Unmerged as error:
            key = list(keys)[int(at[error.group])]
            raise Unmerged(key, int(starts[error.group]), error.cause) from error.cause
    return Partials(list(keys), tablets, records, at, starts, columns)


class Unmerged(Exception):
    """An aggregate's own function could not merge what there is of a key and window."""

    def __init__(self, key: str, start: int, cause: Exception) -> None:
        super().__init__(key, start, cause)
        self.key = key
        self.start = start
        self.cause = cause


class _Unmerged(Exception):
    def __init__(self, group: int, cause: Exception) -> None:
        super().__init__(group, cause)
        self.group = group
        self.cause = cause


def _merged(folded: Folded, parts: Sequence[Column], groups: Numbers, count: int) -> Column:
    values = [part.values for part in parts if isinstance(part.values, np.ndarray)]
    some = [
        part.values.dtype
        for part in parts
        if isinstance(part.values, np.ndarray) and (part.counts is None or part.counts.any())
    ]
    if len(values) == len(parts) and len(set(some)) <= 1:
        kind = some[0] if some else values[0].dtype
        numbers = np.concatenate([value.astype(kind, copy=False) for value in values])
        if folded.kind == "count":
            return Column(_sums(groups, count, numbers))
        counts = np.concatenate([part.counts for part in parts if part.counts is not None])
        there = counts > 0
        found = _reduced(folded.kind, groups[there], count, numbers[there])
        if found is not None:
            return Column(found, _sums(groups, count, counts))
    so_far: list[Any] = [_NOTHING] * count
    entries = (one for part in parts for one in part.objects(folded))
    merge = folded.fold.merge
    for group, one in zip(groups.tolist(), entries, strict=True):
        known = so_far[group]
        try:
            so_far[group] = one if known is _NOTHING else merge(known, one)
        except Exception as error:
            raise _Unmerged(group, error) from error
    return Column(so_far)


_NOTHING: Final = object()


def _sums(groups: Numbers, count: int, counts: Numbers) -> Numbers:
    found = np.zeros(count, np.int64)
    np.add.at(found, groups, counts)
    return found
