"""Files whose names ascend: a prefix of any size, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors import parquet
from millwheel.injectors.files import Files
from millwheel.injectors.object_sequence import PARTITION, ObjectSequence
from millwheel.model.field_columns import FieldColumns
from millwheel.model.injector import Offset, RecordBatch
from millwheel.model.time import SECOND

_SLACK = 10 * SECOND  # of a prefix that is followed, by default


class OrderedFiles(Files):
    """Injects the files of a pattern in order of names, each once, and later ones.

    As `Files`, for a prefix or a folder of any number of files whose names ascend, such as
    ``logs/2026/11/16/20-15-00.jsonl.gz``: new ones are found by listing behind the last one that was read.
    The driver knows 2,000 of them at a time, and the store the last one. A file is there whole when it
    appears, is never changed, and is read as a whole by one task. One that appears under a name before the
    last one that was read is not found: `Files` lists all names. The watermark follows the newest
    timestamp, ``slack`` behind.
    """

    in_turn = True

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        *,
        timestamp: str = "",
        slack: int | None = None,
        follow: bool | None = None,
        **options: Any,
    ) -> None:
        if "watermark" in options:
            raise InputError("OrderedFiles: its watermark follows the newest timestamp; leave watermark out")
        super().__init__(pattern, timestamp=timestamp, follow=follow, **options)
        self._lag = slack
        self._sequence = ObjectSequence(self._pattern, may_grow=False)

    def __repr__(self) -> str:
        return f"OrderedFiles({self._pattern!r})"

    def open(self, *, follow: bool) -> None:
        follow = follow if self._follow is None else self._follow
        self.bounded = not follow
        self.slack = self._lag if self._lag is not None or not follow else _SLACK
        self._sequence = ObjectSequence(self._pattern, may_grow=follow)

    def notify(self, wake: Callable[[], None]) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to close."""

    def run_begins(self) -> None:
        self._sequence.begin()

    def poll(self) -> Mapping[str, Offset]:
        return self._sequence.look()

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return self._sequence.low_watermark(offset)

    def commit(self, offsets: Mapping[str, Offset]) -> None:
        self._sequence.committed(offsets.get(PARTITION))

    def lost(self, offsets: Mapping[str, Offset]) -> str | None:
        return "what was read is known by the last name alone, and may be gone"

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        return self._sequence.bound(start, end, records)

    def size(self, partition: str, start: Offset, end: Offset) -> int:
        return self._sequence.size(start, end)

    def _batches(
        self, partition: str, start: Offset, end: Offset, fields: Collection[str] | None
    ) -> Iterable[RecordBatch | FieldColumns]:
        return self._sequence.read(
            start, end, lambda path, size: self._read_path(path, None, self._whole(path, size), fields)
        )

    def _whole(self, path: str, size: int) -> int:
        """The end of a file, in the unit of its format's offsets."""
        return parquet.END if self._form(path) == "parquet" else size
