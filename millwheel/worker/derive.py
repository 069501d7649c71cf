"""Applies the steps of a derived stream to records, at their producer.

Keys, timestamps and order are kept. A record with an ID keeps it; the pieces that `flat_map` makes of one
record, and records that reach a union on different paths, get IDs derived from it, so that a record that
is sent again gives duplicates of all its pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import compress
from typing import Any

from millwheel.errors import shorten
from millwheel.model.batch import RecordBatch
from millwheel.model.codec import pack, pack_plain, unpack
from millwheel.model.derived import Derived, Step
from millwheel.model.keys import SKIP
from millwheel.model.record import Record, RecordId, decode_json
from millwheel.model.side_table import DROPPED, HeldTable, Loaded, Lookup

Failed = Callable[[Record, str, Exception | None], None]
"""Takes a record that a step failed on, the error text, and the cause. May raise."""


def derive(
    derived: Derived,
    parent: int,
    stream: str,
    batch: RecordBatch,
    failed: Failed,
    *,
    alone: bool,
    loaded: Callable[[HeldTable], Loaded] | None = None,
) -> RecordBatch:
    """Returns the records of a derived stream for these records of its parent.

    ``alone``: the objects have no other user, so that a function may change them. ``loaded`` gives the
    version of a side table that they see.
    """
    rows = _Rows(derived, stream, batch, failed, alone=alone)
    for step in derived.steps:
        if step.kind == "lookup":
            assert isinstance(step.function, Lookup)
            assert loaded is not None
            rows.look_up(step, step.function.of(loaded(step.function.table)))
        else:
            rows.apply(step)
    if len(derived.parents) > 1:
        rows.split_ids([parent] * len(rows.index))
    return rows.batch()


class _Rows:
    """Records between steps: ``index`` maps them to the columns they came from."""

    def __init__(
        self, derived: Derived, stream: str, batch: RecordBatch, failed: Failed, *, alone: bool
    ) -> None:
        self._derived = derived
        self._stream = stream
        self._batch = batch
        self._failed = failed
        self._values: list[Any] | None = None
        self._alone = alone
        self._changed = False
        self.index: list[int] = list(range(len(batch)))
        self.keys: list[str] = batch.key_column()
        self.ids: list[RecordId | None] | None = batch.ids

    @property
    def values(self) -> list[Any]:
        """The values, not shared with others."""
        if self._values is None:
            batch = self._batch
            fresh = batch.packed or batch.windows is not None
            fresh = fresh or (batch.json is not None and (self._alone or not batch.values))
            self._values = batch.objects() if fresh else unpack(pack(batch.values))
        return self._values

    def apply(self, step: Step) -> None:
        """Applies one step to all records."""
        if step.kind == "with_key":
            self._values = [[key, value] for key, value in zip(self.keys, self.values, strict=True)]
            self._changed = True
            return
        function = step.function
        assert function is not None
        if step.kind == "key":
            self._rekey(function)
            return
        results = self._each(function, repr(step))
        if step.kind == "map":
            self._values, self._changed = results, True
        elif step.kind == "flat_map":
            self._expand(step, results)
        elif not all(results):
            self._keep([bool(result) for result in results])

    def look_up(self, step: Step, enrich: Callable[[Any], Any]) -> None:
        """Enriches all values by a version of a side table; may drop those without."""
        self._values, self._changed = self._each(enrich, repr(step)), True
        if any(value is DROPPED for value in self._values):
            self._keep([value is not DROPPED for value in self._values])

    def _each(self, function: Callable[[Any], Any], what: str) -> list[Any]:
        """The function's result for each value; records that it fails on are removed."""
        results: list[Any] = []
        good: list[bool] = []
        for position, value in enumerate(self.values):
            try:
                results.append(function(value))
                good.append(True)
            except Exception as error:
                good.append(False)
                self._fail(position, f"{what} raised {type(error).__name__}: {error}", error)
        if not all(good):
            self._keep(good)
        return results

    def _fail(self, position: int, what: str, error: Exception | None = None) -> None:
        """Reports the parent's record, unchanged."""
        batch, i = self._batch, self.index[position]
        value = batch.value(i) if batch.json is None else decode_json(batch.json[i])
        id = None if batch.ids is None else batch.ids[i]
        key = "" if batch.keys is None else batch.keys[i]
        record = Record(value, batch.timestamps[i], key, self._stream, id)
        self._failed(record, what, error)

    def _rekey(self, extractor: Callable[[Record], Any]) -> None:
        keys: list[Any] = []
        for position, value in enumerate(self.values):
            key: Any = SKIP
            try:
                key = extractor(self._record(position, value))
            except Exception as error:
                what = f"the key extractor {extractor!r} raised {type(error).__name__}: {error}"
                self._fail(position, what, error)
            if not isinstance(key, str) and key is not SKIP:
                what = f"returned {shorten(key, 60)}, which is neither a str nor SKIP"
                self._fail(position, f"the key extractor {extractor!r} {what}")
                key = SKIP
            keys.append(key)
        self.keys = keys
        if any(key is SKIP for key in keys):
            self._keep([key is not SKIP for key in keys])

    def _expand(self, step: Step, results: list[Any]) -> None:
        """Replaces each record by its pieces."""
        values: list[Any] = []
        sources: list[int] = []
        numbers: list[int] = []
        for position, pieces in enumerate(results):
            if pieces is None:
                continue
            if isinstance(pieces, str | bytes | dict) or not isinstance(pieces, Iterable):
                self._fail(position, f"{step!r} gave {shorten(pieces, 60)}, which is not a list of values")
                continue
            try:
                found = list(pieces)  # a generator runs, and may fail, here
            except Exception as error:
                self._fail(position, f"{step!r} raised {type(error).__name__}: {error}", error)
                continue
            values += found
            sources += [position] * len(found)
            numbers += range(len(found))
        self._values, self._changed = values, True
        self.index = [self.index[position] for position in sources]
        self.keys = [self.keys[position] for position in sources]
        if self.ids is not None:
            self.ids = [self.ids[position] for position in sources]
            self.split_ids(numbers)

    def split_ids(self, numbers: list[int]) -> None:
        """Makes distinct IDs from one, by a number."""
        if self.ids is not None:
            self.ids = [
                None if id is None else pack_plain([id, number])
                for id, number in zip(self.ids, numbers, strict=True)
            ]

    def _keep(self, flags: list[bool]) -> None:
        """Removes the records whose flag is false."""
        self.index = list(compress(self.index, flags))
        self.keys = list(compress(self.keys, flags))
        if self._values is not None:
            self._values = list(compress(self._values, flags))
        if self.ids is not None:
            self.ids = list(compress(self.ids, flags))

    def _record(self, position: int, value: Any) -> Record:
        time = self._batch.timestamps[self.index[position]]
        id = None if self.ids is None else self.ids[position]
        return Record(value, time, self.keys[position], self._stream, id)

    def batch(self) -> RecordBatch:
        """The records to send: packed, or unchanged if no value has changed."""
        # First: records that cannot be encoded are removed from keys, timestamps and IDs too.
        packed: list[bytes] = self._each(pack, "encoding the value") if self._changed else []
        if self._changed:
            times = [self._batch.timestamps[i] for i in self.index]
            return RecordBatch(times, packed, self.ids, self.keys, packed=True)
        return replace(self._batch.take(self.index), keys=self.keys, ids=self.ids)
