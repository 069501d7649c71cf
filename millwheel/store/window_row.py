"""Rows of windows: the keys of one tablet and window, and their aggregates.

Such a row is among the rows of keys, under a suffix that no key has: the tablet, and the start of the
window. It has one timer, the window's end, which counts once for each of its keys. So all that holds for rows
(the timer index, the counters, the cache, checksums, copies) holds for it; `by_key` shows its keys one
by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

import msgspec

from millwheel.errors import StoreError
from millwheel.model import codec as codecs
from millwheel.model.codec import pack_plain, unpack
from millwheel.model.folding import Folding, FoldKind
from millwheel.model.keys import PARTS, key_text, tablet
from millwheel.model.time import MAX_TIME
from millwheel.store.base import Snapshot
from millwheel.store.keyspace import (
    after,
    part_of,
    row_prefix,
    row_suffix,
    rows_range,
    tablet_of,
    tablet_start,
    time_bytes,
    time_of,
)
from millwheel.store.row import Row, decode_row

END: Final = "end"
"""The tag of a window's timer."""

_MARK = b"\xfe"  # in place of a key's text: never a byte of UTF-8, and not that of a long key
_ZEROS = bytes(6)
_PLACE = 2 + len(_ZEROS)  # bytes before it: the tablet in place of the fingerprint, and zeros
_SUFFIX = _PLACE + 1 + 8
_CODES: dict[str, type] = {"q": int, "d": float}
OBJECTS: Final = "o"
"""The code of a column that is not an array: its aggregate's own accumulators."""


class StoredColumn(NamedTuple):
    """One aggregate of each key, as it is stored.

    ``data`` are 64-bit numbers by ``code``, and ``counts`` the number of values in each; a count has no
    ``counts``. For `OBJECTS`, ``data`` is the list of accumulators, in the codec of states.
    """

    kind: str
    code: str
    data: bytes
    counts: bytes | None

    def objects(self) -> list[Any]:
        """The accumulators, for the aggregate's own functions."""
        if self.code == OBJECTS:
            found: list[Any] = codecs.msgpack.decode(self.data)
            return found
        numbers = _numbers(self.code, self.data)
        if self.counts is None:
            return numbers
        counts = _numbers("q", self.counts)
        if self.kind == "mean":
            return [[number if count else 0, count] for number, count in zip(numbers, counts, strict=True)]
        return [number if count else None for number, count in zip(numbers, counts, strict=True)]


class WindowRow(NamedTuple):
    """The content of a window's row."""

    signature: str
    """The signature of the folding that wrote it."""
    start: int
    end: int
    """The window's end, as a time that a watermark can reach."""
    keys: list[str]
    columns: list[StoredColumn]

    def to_bytes(self) -> bytes:
        """The state of the row: MessagePack, the default codec of states."""
        columns = [list(column) for column in self.columns]
        return pack_plain([len(self.keys), self.signature, self.start, self.end, self.keys, columns])

    @staticmethod
    def from_bytes(data: bytes) -> WindowRow:
        """The inverse of `to_bytes`."""
        count, signature, start, end, keys, columns = unpack(data)
        found = WindowRow(signature, start, end, keys, [StoredColumn(*column) for column in columns])
        if count != len(keys):
            raise ValueError(f"the row of a window has {len(keys)} keys, and its header {count}")
        return found


def window_suffix(place: int, start: int, tablets: int) -> bytes:
    """The suffix of a tablet's window within a computation; ``tablets`` in total.

    >>> one = window_suffix(3, -5, 64)
    >>> is_window(one), window_of(one, 64), is_window(row_suffix("key"))
    (True, (3, -5), False)
    """
    return tablet_start(place, tablets) + _ZEROS + _MARK + time_bytes(start)


def is_window(suffix: bytes) -> bool:
    """Whether a suffix is that of a window, and not of a key."""
    return suffix[_PLACE : _PLACE + 1] == _MARK and len(suffix) == _SUFFIX


def window_of(suffix: bytes, tablets: int) -> tuple[int, int]:
    """The tablet and the start of a window."""
    return tablet_of(suffix, tablets), time_of(suffix[_PLACE + 1 :])


def windows_range(computation: int, place: int, tablets: int) -> tuple[bytes, bytes]:
    """The key range of a tablet's windows."""
    prefix = row_prefix(computation) + window_suffix(place, 0, tablets)[: _PLACE + 1]
    return prefix, after(prefix)


def keys_in(state: bytes | None) -> int:
    """The number of keys in a window's row, by its state."""
    return 0 if state is None else _head(state)[0]


def find_row(snapshot: Snapshot, computation: int, key: str, tablets: int) -> Row | None:
    """A key's row; for one in windows, the row that it would have by itself."""
    data = snapshot.get(row_prefix(computation) + row_suffix(key))
    if data is not None:
        return decode_row(data)
    found = _Keys(only=key)
    for _, value in snapshot.scan(*windows_range(computation, tablet(key, tablets), tablets)):
        found.add(value)
    return found.rows().get(key)


def by_key(entries: Iterable[tuple[bytes, bytes]], prefix: bytes) -> Iterator[tuple[str, Row]]:
    """Every key's row in order; those of windows at the end of their part."""
    found, place = _Keys(), -1
    for entry, value in entries:
        suffix = entry[len(prefix) :]
        if part_of(suffix) != place:
            yield from found.rows().items()
            found, place = _Keys(), part_of(suffix)
        if is_window(suffix):
            found.add(value)
            continue
        row = decode_row(value)
        key = row.key if row.key is not None else key_text(suffix[8:])
        found.discard(key)
        yield key, row
    yield from found.rows().items()


OTHER_FORM: Final = (
    "computation {!r}: the store has open windows of it that another operator wrote: its windows, its "
    "aggregates or their fields differ from this one's. Give the operator another name, or run the old "
    "pipeline until its windows are closed"
)
"""The message if `other_form` is True, for a computation."""


def other_form(snapshot: Snapshot, computation: int, folding: Folding | None) -> bool:
    """Whether a shard has a computation's state that this folding cannot read."""
    prefix = row_prefix(computation)
    first = next(snapshot.scan(prefix, after(prefix)), None)
    while first is not None:
        suffix = first[0][len(prefix) :]
        row = decode_row(first[1])
        state = row.state
        if is_window(suffix):
            signature = None if state is None else WindowRow.from_bytes(state).signature
            if folding is None or signature != folding.signature:
                return True
        elif folding is not None and state is not None and windows_in(state, row.timers, folding) is None:
            return True
        # One row of each kind in a part is a sufficient sample.
        if is_window(suffix):
            behind = after(first[0][: len(prefix) + _PLACE + 1])
        else:
            behind = rows_range(computation, part_of(suffix), PARTS)[1]
        first = next(snapshot.scan(behind, after(prefix)), None) if behind < after(prefix) else None
    return False


def windows_in(state: bytes, timers: Mapping[str, int], folding: Folding) -> dict[int, list[Any]] | None:
    """The windows in a row by key of an earlier version; None: another's state."""
    try:
        found = codecs.msgpack.decode(state)
    except Exception:  # written with another codec
        return None
    fits = isinstance(found, dict) and all(
        type(start) is int
        and (start - folding.offset) % folding.every == 0
        and isinstance(so_far, list)
        and len(so_far) == len(folding.folds)
        and all(_is_of(folded.kind, one) for folded, one in zip(folding.folds, so_far, strict=True))
        for start, so_far in found.items()
    )
    if not fits or (found and timers.get(END) != min(min(found) + folding.size, MAX_TIME)):
        return None
    return cast(dict[int, list[Any]], found)


def _is_of(kind: FoldKind, so_far: Any) -> bool:
    """Whether an accumulator may be of an aggregate of this kind."""
    if kind == "count":
        return type(so_far) is int
    if kind == "mean":
        return isinstance(so_far, list) and len(so_far) == 2 and type(so_far[1]) is int
    if isinstance(so_far, dict):  # a sum of more than 64 bits is stored as a text in a dict
        return kind == "sum" and len(so_far) == 1 and isinstance(next(iter(so_far.values())), str)
    return not isinstance(so_far, list | bytes)


class _Keys:
    """Keys with their windows: {start: accumulators}, and the end of the first one."""

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        self._states: dict[str, dict[int, list[Any]]] = {}
        self._ends: dict[str, int] = {}

    def add(self, value: bytes) -> None:
        """Adds the row of a window."""
        state = decode_row(value).state
        if state is None:
            raise StoreError("the row of a window is empty: see store check")
        row = WindowRow.from_bytes(state)
        if self._only is not None and self._only not in row.keys:
            return
        columns = [column.objects() for column in row.columns]
        for key, *so_far in zip(row.keys, *columns, strict=True):
            self._states.setdefault(key, {})[row.start] = so_far
            self._ends[key] = min(self._ends.get(key, row.end), row.end)

    def discard(self, key: str) -> None:
        self._states.pop(key, None)

    def rows(self) -> dict[str, Row]:
        return {
            key: Row(codecs.msgpack.encode(state), {END: self._ends[key]}, {}, {}, None)
            for key, state in self._states.items()
        }


_Raw = msgspec.Raw
_head = msgspec.msgpack.Decoder(tuple[int, _Raw, _Raw, _Raw, _Raw, _Raw]).decode


def _numbers(code: str, data: bytes) -> list[Any]:
    numbers = array(code)
    numbers.frombytes(data)
    return numbers.tolist()
