"""Aggregates by key and window as arrays: grouping records, and merging.

Pure functions over columns. Values for which NumPy and Python differ (integers of more than 64
bits, integers mixed with floats, texts, NaN) are left to the aggregates' own functions, value by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from millwheel.model import codec as codecs
from millwheel.model.emitted import Results
from millwheel.model.field_columns import Masked
from millwheel.model.folding import Folded, Folding
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.store.window_row import OBJECTS, StoredColumn
from millwheel.worker.key_codes import merged_keys

Numbers = NDArray[Any]
_EXACT: Final = 2**53  # sums of integral floats are exact up to here
_LARGEST: Final = 2**63
_DENSE = 4  # times the records: up to this many groups are counted without sorting


class Column:
    """One aggregate of each key and window: numbers, or a list of accumulators."""

    __slots__ = ("counts", "values")

    def __init__(self, values: Numbers | list[Any], counts: Numbers | None = None) -> None:
        self.values = values
        """int64 or float64; or objects, as the aggregate's own functions take them."""
        self.counts = counts
        """For numbers that are not counts: the number of values in each."""

    def pick(self, places: Numbers) -> Column:
        """The entries at some positions."""
        if isinstance(self.values, list):
            return Column([self.values[place] for place in places.tolist()])
        return Column(self.values[places], None if self.counts is None else self.counts[places])

    def cut(self, mine: slice) -> Column:
        """The entries of a slice."""
        return Column(self.values[mine], None if self.counts is None else self.counts[mine])

    def objects(self, folded: Folded) -> list[Any]:
        """The accumulators, for the aggregate's own functions."""
        if isinstance(self.values, list):
            return self.values
        return self.stored(folded).objects()

    def stored(self, folded: Folded) -> StoredColumn:
        """The column as it is sent and stored."""
        if isinstance(self.values, list):
            return StoredColumn(folded.kind, OBJECTS, codecs.msgpack.encode(self.values), None)
        code = "q" if self.values.dtype == np.int64 else "d"
        counts = None if self.counts is None else self.counts.tobytes()
        return StoredColumn(folded.kind, code, self.values.tobytes(), counts)

    def results(self, folded: Folded) -> Results | list[Any]:
        """What is emitted: as an array where all of it is numbers of one kind."""
        if isinstance(self.values, list):
            return [folded.fold.result(so_far) for so_far in self.values]
        if self.counts is None or (folded.kind != "mean" and self.counts.all()):
            return Results(*narrow(self.values))
        numbers, counts = self.values.tolist(), self.counts.tolist()
        if folded.kind == "mean":  # of integers, with Python's division
            return [n / count if count else None for n, count in zip(numbers, counts, strict=True)]
        return [n if count else None for n, count in zip(numbers, counts, strict=True)]


def column_of(stored: StoredColumn) -> Column:
    """The inverse of `Column.stored`."""
    if stored.code == OBJECTS:
        return Column(stored.objects())
    counts = None if stored.counts is None else np.frombuffer(stored.counts, np.int64)
    return Column(np.frombuffer(stored.data, np.int64 if stored.code == "q" else np.float64), counts)


def narrow(numbers: Numbers) -> tuple[str, bytes]:
    """Numbers as bytes, in the smallest integer type, and the code of the type."""
    if numbers.dtype.kind != "f" and len(numbers):
        low, high = int(numbers.min()), int(numbers.max())
        for code, bound in (("b", 1 << 7), ("h", 1 << 15), ("i", 1 << 31)):
            if -bound <= low and high < bound:
                return code, numbers.astype(code).tobytes()
    return ("d" if numbers.dtype.kind == "f" else "q"), numbers.tobytes()


@dataclass
class Partials:
    """Aggregates of records: by row a key (index into ``keys``), a window, columns."""

    keys: list[str]
    tablets: Numbers
    """By key."""
    records: Numbers
    """The number of records by key, late ones included."""
    places: Numbers
    starts: Numbers
    columns: list[Column]
    fingerprints: Numbers | None = None
    """By key, where they are known."""


@dataclass
class Spread:
    """The windows of records: by entry a record and the start of one of its windows."""

    records: Numbers
    starts: Numbers
    late: int
    dropped: int


def spread(folding: Folding, times: Numbers, before: int) -> Spread:
    """Assigns records to their windows that were open before the epoch (semantics 4).

    A record that is late for all of its windows is dropped; one between two windows is not.
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
    """The same near the ends of time, where a window's end exceeds 64 bits."""
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
    """A record is in a window that begins before `MIN_TIME`."""

    def __init__(self, record: int, start: int) -> None:
        super().__init__(record, start)
        self.record = record
        self.start = start


def numbers_of(values: Sequence[Any] | Masked) -> tuple[Numbers, Numbers | None] | None:
    """A field as numbers, and where it is present; None if Python must evaluate it.

    A second None: present everywhere.
    """
    if isinstance(values, Masked):
        numbers = values.numbers
        return None if numbers is None or _has_nan(numbers) else (numbers, values.there)
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


def grouped(places: Numbers, starts: Numbers, folding: Folding) -> tuple[Numbers, Numbers, Numbers]:
    """Groups equal keys and starts: both of each group, and each entry's group."""
    if not len(places):
        return places, starts, places
    first = int(starts.min())
    width = (int(starts.max()) - first) // folding.every + 1
    if width * (int(places.max()) + 1) < _LARGEST and int(starts.max()) - first < _LARGEST:
        windows = (starts - first) // folding.every
    else:  # far apart, near the ends of time
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
    one[groups] = np.arange(len(groups))  # one entry of each group
    return found // width, starts[one], groups


def cells(folding: Folding, tablets: Numbers, starts: Numbers, among: int) -> Numbers:
    """A number for each tablet of ``among`` and window, by window, then tablet."""
    if not len(starts):
        return starts
    first, last = int(starts.min()), int(starts.max())
    if last - first < _LARGEST:
        windows = (starts - first) // folding.every
        span = (last - first) // folding.every
    else:
        found, windows = np.unique(starts, return_inverse=True)
        span = len(found)
    # NumPy sorts numbers of 16 bits without comparing them; a span of this size has no more.
    bits = among.bit_length() - 1
    if span < 1 << 16 - bits:
        return windows.astype(np.uint16) << bits | tablets
    if span < 1 << 63 - bits:
        return windows * among + tablets
    _, windows = np.unique(starts, return_inverse=True)
    return windows * among + tablets


def windows_of(folding: Folding, part: Partials, among: int) -> set[tuple[int, int]]:
    """The tablet and the start of each window in a part."""
    tablets = part.tablets[part.places]
    found = cells(folding, tablets, part.starts, among)
    if not len(found):
        return set()
    if found.dtype == np.uint16 and len(found) > 1 << 12:
        one = np.full(1 << 16, -1, np.int64)
        one[found] = np.arange(len(found))
        one = one[one >= 0]
    else:
        one = np.unique(found, return_index=True)[1]
    return set(zip(tablets[one].tolist(), part.starts[one].tolist(), strict=True))


def counted(groups: Numbers, count: int) -> Numbers:
    """The number of entries of each group."""
    return np.bincount(groups, minlength=count)[:count]


def is_there(values: Sequence[Any] | Masked) -> Numbers:
    """Which values of a field are present."""
    if isinstance(values, Masked):
        return np.ones(values.records, np.bool_) if values.there is None else values.there
    return np.fromiter((value is not None for value in values), np.bool_, len(values))


def picked(column: Numbers | None, places: Numbers) -> Numbers | None:
    """The entries of a column at some positions."""
    return None if column is None else column[places]


def folded_numbers(
    kind: str, groups: Numbers, count: int, values: Numbers | None, there: Numbers | None
) -> Column | None:
    """A field's numbers by group; None if a sum may exceed 64 bits."""
    assert values is not None
    if there is not None:
        groups, values = groups[there], values[there]
    found = _reduced(kind, groups, count, values)
    return None if found is None else Column(found, counted(groups, count))


def _reduced(kind: str, groups: Numbers, count: int, values: Numbers) -> Numbers | None:
    """The minimum, the maximum, or (also for a mean) the sum of each group."""
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
    if most < _EXACT:  # as floats, which NumPy sums by group in one call
        return np.bincount(groups, weights=values, minlength=count)[:count].astype(np.int64)
    if most >= _LARGEST:
        return None
    found = np.zeros(count, np.int64)
    np.add.at(found, groups, values)
    return found


def merged(folding: Folding, parts: Sequence[Partials]) -> Partials:
    """Merges partial aggregates: each key and window once."""
    if len(parts) == 1:
        return parts[0]
    keys, first_of, own = merged_keys([part.keys for part in parts], [part.fingerprints for part in parts])
    tablets = np.concatenate([part.tablets for part in parts])[first_of]
    records = np.zeros(len(keys), np.int64)
    places = []
    first = 0
    for part in parts:
        mine = own[first : first + len(part.keys)]
        first += len(part.keys)
        records[mine] += part.records  # a part has each key once
        places.append(mine[part.places])
    at, starts, groups = grouped(
        np.concatenate(places), np.concatenate([part.starts for part in parts]), folding
    )
    columns = []
    for number, folded in enumerate(folding.folds):
        try:
            columns.append(_merged(folded, [part.columns[number] for part in parts], groups, len(at)))
        except _Unmerged as error:
            key = keys[int(at[error.group])]
            raise Unmerged(key, int(starts[error.group]), error.cause) from error.cause
    return Partials(keys, tablets, records, at, starts, columns)


class Unmerged(Exception):
    """An aggregate's own function failed to merge a key and window."""

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
