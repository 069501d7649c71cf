"""Combining: the records of a key become fewer before they are sent (8.4).

It is done for what one task sends to one consumer at once. Late records are combined one by one, so that
they are late, dropped and counted as they would be without.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from millwheel.errors import PipelineError, shorten
from millwheel.model.codec import pack, unpack
from millwheel.model.combiners import Count, Reduce
from millwheel.model.keys import SKIP
from millwheel.model.pipeline import Node
from millwheel.model.record import Record
from millwheel.worker.envelope import Columns

Failed = Callable[[str, Record, str, Exception | None], None]
"""Told of what a combiner could not combine: the key, a record, what was wrong, the cause. May raise."""


class Combining:
    """One consumer's combiner over what is sent to it from one stream."""

    def __init__(
        self, node: Node, stream: str, before: int, failed: Failed, columns: Columns, *, shared: bool
    ) -> None:
        """``shared``: whether others read the same records, so that the combiner gets copies."""
        self._node = node
        self._stream = stream
        self._before = before
        self._failed = failed
        self._columns = columns
        self._shared = shared
        self._out = Columns([], [], [], None, True)

    def run(self, keys: Sequence[Any]) -> Columns:
        """The records in place of those given, without those that are not for the consumer."""
        ids, timestamps, before = self._columns.ids, self._columns.timestamps, self._before
        if ids is not None and self._node.exactly_once:
            self._refuse_ids(ids)
        positions: defaultdict[Any, list[int]] = defaultdict(list)
        for position, key in enumerate(keys):
            positions[key].append(position)
        positions.pop(SKIP, None)
        late = bool(timestamps) and min(timestamps) < before
        for key, mine in positions.items():
            if late:
                for position in mine:
                    if timestamps[position] < before:
                        self._combine(key, [position])
                mine = [position for position in mine if timestamps[position] >= before]
            if mine:
                self._combine(key, mine)
        return self._out

    def _combine(self, key: str, group: list[int]) -> None:
        try:
            pairs = list(self._pairs(key, group))
        except Exception as error:
            if len(group) > 1 and self._node.errors == "divert":
                for position in group:  # one of them is bad, and it is to go alone
                    self._combine(key, [position])
                return
            what = str(error) if isinstance(error, _Wrong) else f"raised {type(error).__name__}: {error}"
            cause = None if isinstance(error, _Wrong) else error
            self._failed(key, self._record(key, group[0]), what, cause)
            return
        out = self._out
        for value, timestamp in pairs:
            out.keys.append(key)
            out.timestamps.append(timestamp)
            out.values.append(value)

    def _pairs(self, key: str, group: list[int]) -> Iterator[tuple[bytes, int]]:
        """What the combiner gives, checked and packed."""
        times = [self._columns.timestamps[i] for i in group]
        combine = self._node.combine
        assert combine is not None
        if isinstance(combine, Count):
            found: Iterable[Any] = combine.columns(times, ())  # it need not look at what it counts
        elif isinstance(combine, Reduce):
            found = combine.columns(times, [self._objects[i] for i in group])
        else:
            found = combine(key, [self._record(key, i) for i in group])
        oldest, newest = min(times), max(times)
        for pair in found:
            if not isinstance(pair, tuple) or len(pair) != 2 or type(pair[1]) is not int:
                raise _Wrong(f"gave {shorten(pair, 60)}, which is no (value, timestamp)")
            if not oldest <= pair[1] <= newest:
                raise _Wrong(
                    f"gave the timestamp {pair[1]}, and its records are of {oldest} to {newest}: "
                    "outside of them, it could be late or close no window"
                )
            yield pack(pair[0]), pair[1]

    @cached_property
    def _objects(self) -> list[Any]:
        columns = self._columns
        found = columns.objects()
        if self._shared and found is columns.values:
            copied: list[Any] = unpack(pack(found))
            return copied
        return found

    def _record(self, key: str, position: int) -> Record:
        return Record(self._objects[position], self._columns.timestamps[position], key, self._stream)

    def _refuse_ids(self, ids: Sequence[Any]) -> None:
        with_id = next((id for id in ids if id is not None), None)
        if with_id is None:
            return
        raise PipelineError(
            f"computation {self._node.name!r}, stream {self._stream!r}: a record with the ID {with_id!r} "
            "cannot be combined, as nobody could tell later that it came twice; add the computation with "
            "exactly_once=False, which lets records pass that the source sends twice (nothing is lost or "
            "doubled by a failure all the same), or do without combine= or without IDs"
        )


class _Wrong(Exception):
    """What a combiner gave cannot be used."""
