"""Combining: merges the records of a key before the hook gets them (8.4).

It runs at the receiver, after deduplication and the late policy, in the order of arrival:
so IDs, counts, ``NAME.late`` and ``NAME.errors`` are those of the records as they were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from millwheel.errors import UserCodeError, shorten
from millwheel.model.codec import pack, unpack
from millwheel.model.combiners import Combine, Count, Reduce
from millwheel.model.record import Record
from millwheel.worker.budget import Budget
from millwheel.worker.context import HookContext, ReturnedValue
from millwheel.worker.inbox import Arrivals

MOST = 4_096
"""Records combined at once: many enough for a slow hook, few enough for a budget."""

Diverted = Callable[[Record, Exception], None]
Fresh = Callable[[list[bytes | None], list[str], list[int]], list[int]]
"""Selects the positions with IDs that were never seen, by digests and streams."""


def runner(
    context: HookContext,
    arrivals: Arrivals,
    before: int,
    budget: Budget,
    without_duplicates: Fresh,
    takes_late: Callable[[Record], bool],
    diverted: Diverted,
) -> Callable[[str, list[int]], int]:
    """Makes a function that runs a key's records within the budget; returns how many.

    Duplicates are skipped.
    """
    timestamps, streams, ids, digests = arrivals.timestamps, arrivals.streams, arrivals.ids, arrivals.digests
    only = arrivals.only_stream() is not None
    combining = Combining(context, arrivals, lambda position: timestamps[position] < before, diverted)

    def taken(key: str, position: int) -> bool:
        if timestamps[position] >= before:
            return True
        id = None if ids is None else ids[position]
        record = Record(arrivals.value(position), timestamps[position], key, streams[position], id, True)
        return takes_late(record)

    def run_records(key: str, mine: list[int]) -> int:
        reached = 0
        while reached < len(mine):
            if budget.left <= 0 and budget.is_over():
                break
            piece = mine[reached : reached + MOST]
            reached += len(piece)
            budget.left -= len(piece)
            if digests is not None:
                piece = without_duplicates(digests, streams, piece)
            late = bool(piece) and min(map(timestamps.__getitem__, piece)) < before
            if late:
                piece = [position for position in piece if taken(key, position)]
            if only and piece and not late:
                combining.group(key, piece)
            else:
                combining.run(key, piece)
        return reached

    return run_records


class Combining:
    """Passes a computation its records of one step through its combiner, key by key.

    A group is a run of records of one stream, all late or all on time; late ones are passed one by one. With
    ``errors="divert"`` a group that fails is undone, and its records are retried one by one, from copies.
    """

    def __init__(
        self,
        context: HookContext,
        arrivals: Arrivals,
        is_late: Callable[[int], bool],
        diverted: Diverted,
        between: Callable[[int], None] | None = None,
    ) -> None:
        """``between`` is called with each record's timestamp; records are then in order."""
        combine = context.node.combine
        assert combine is not None
        self._combine: Combine = combine
        self._context = context
        self._arrivals = arrivals
        self._is_late = is_late
        self._diverted = diverted
        self._between = between
        self._divert = context.node.errors == "divert"

    def run(self, key: str, piece: Sequence[int]) -> None:
        """Runs records of a key, in order, without duplicates or records put aside."""
        streams, is_late = self._arrivals.streams, self._is_late
        first = 0
        for number in range(1, len(piece) + 1):
            if number < len(piece):
                one, next_one = piece[number - 1], piece[number]
                if streams[one] == streams[next_one] and not is_late(one) and not is_late(next_one):
                    continue
            self.group(key, piece[first:number])
            first = number

    def group(self, key: str, group: Sequence[int]) -> None:
        """Runs records that may be combined."""
        arrivals = self._arrivals
        if not self._divert:
            self._hooks(self.combined(key, group, None))
            return
        # As they arrived: a combiner may change its input before it or the hook raises.
        packed = [pack(arrivals.value(position)) for position in group]
        error = self._tried(key, group, list(map(unpack, packed)))
        if error is None:
            return
        for position, value in zip(group, packed, strict=True):
            if len(group) > 1:
                error = self._tried(key, [position], [unpack(value)])
            if error is not None:
                self._diverted(self._record(key, position, unpack(value)), error)

    def _tried(self, key: str, group: Sequence[int], values: list[Any]) -> Exception | None:
        """Runs a group; returns its exception after undoing its effects."""
        context = self._context
        saved = context.save()
        try:
            self._hooks(self.combined(key, group, values))
            context.encoded()
        except Exception as error:
            context.restore(saved)
            return error
        return None

    def _hooks(self, records: Iterable[Record]) -> None:
        context = self._context
        hook: Any = context.computation.process_record
        between = self._between
        if between is not None:
            records = sorted(records, key=lambda record: record.timestamp)
        for record in records:
            if between is not None:
                between(record.timestamp)
            context.hand = record
            if (result := hook(record)) is not None:
                raise ReturnedValue(result)

    def combined(self, key: str, group: Sequence[int], values: list[Any] | None) -> list[Record]:
        """The records that replace a group, checked."""
        stream, late = self._arrivals.streams[group[0]], self._is_late(group[0])
        try:
            pairs = list(self._pairs(key, group, values))
        except Exception as error:
            wrong = isinstance(error, _Wrong)
            what = str(error) if wrong else f"raised {type(error).__name__}: {error}"
            record = self._record(key, group[0], None if values is None else values[0])
            raise UserCodeError(
                f"computation {self._context.node.name!r}, stream {stream!r}: the combiner "
                f"{self._combine!r} {what}, for {len(group)} records of the key {shorten(key, 80)} that "
                f"begin with {shorten(record)}",
                computation=self._context.node.name,
                key=key,
                record=record,
                cause=None if wrong else error,
            ) from error
        return [Record(value, timestamp, key, stream, None, late) for value, timestamp in pairs]

    def _pairs(self, key: str, group: Sequence[int], values: list[Any] | None) -> Iterator[tuple[Any, int]]:
        """The combiner's result."""
        arrivals, combine = self._arrivals, self._combine
        times = list(map(arrivals.timestamps.__getitem__, group))
        if isinstance(combine, Count):
            yield from combine.columns(times, ())  # a count does not read values
            return
        if values is None:
            values = [arrivals.value(i) for i in group]
        if isinstance(combine, Reduce):
            found: Iterable[Any] = combine.columns(times, values)
        else:
            found = combine(key, [self._record(key, i, v) for i, v in zip(group, values, strict=True)])
        oldest, newest = min(times), max(times)
        for pair in found:
            if not isinstance(pair, tuple) or len(pair) != 2 or type(pair[1]) is not int:
                raise _Wrong(f"gave {shorten(pair, 60)}, which is no (value, timestamp)")
            if not oldest <= pair[1] <= newest:
                raise _Wrong(
                    f"gave the timestamp {pair[1]}, and its records are of {oldest} to {newest}: "
                    "outside of them, it could be late or close no window"
                )
            yield unpack(pack(pair[0])), pair[1]

    def _record(self, key: str, position: int, value: Any) -> Record:
        """A record as it arrived; with its own value if none is given."""
        arrivals = self._arrivals
        if value is None:
            value = arrivals.value(position)
        timestamp, stream = arrivals.timestamps[position], arrivals.streams[position]
        return Record(value, timestamp, key, stream, arrivals.id(position), self._is_late(position))


class _Wrong(Exception):
    """The combiner's result cannot be used."""
