"""Files of JSON lines or CSV, plain or gzip: log folders that may gain files, and files that may grow.

A file is a partition, its offset a position in bytes, always at the beginning of a line. The driver looks
at names, sizes and line ends; tasks read.
"""

from __future__ import annotations

import glob as globbing
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from millwheel.errors import InputError
from millwheel.injectors import birth, lines
from millwheel.model.injector import Errors, Injector, Offset, RecordBatch
from millwheel.model.record import Record
from millwheel.model.time import DAY, MAX_TIME, MIN_TIME, SECOND

Watermark = Literal["complete", "events", "monotonic", "created"] | Callable[[str, int], int]

_STRATEGIES = ("complete", "events", "monotonic", "created")

_FOLLOWED_SLACK = 10 * SECOND  # of a folder that is followed, where the user says nothing
_TAIL = 1 << 16  # bytes looked at for the last line end of a file that may still grow
_SAMPLE = 1 << 16  # bytes that the length of a line is guessed from
_GZIP_RATIO = 6  # logs shrink about this much; it sizes epochs, nothing else


class Files(Injector):
    """Injects the lines of the files that match a pattern.

    ``timestamp`` names the field with the event time, in ``unit`` (``us``, ``ms``, ``s``, or ``iso`` for
    text such as 2011-01-27T22:34:01Z); ``id`` a field whose value names a record, if there is one.

    ``watermark`` says what the low watermark follows:

    * ``complete``: a file holds it until it is read to its end. Right whatever the order of the lines;
      windows close when the files are read. The default where a run ends by itself.
    * ``events``: the newest timestamp of each unfinished file, ``slack`` behind. The default where a
      folder is followed, and where ``slack`` is given.
    * ``monotonic``: as ``events``, of files whose timestamps never go back: no slack.
    * ``created``: the creation time of the oldest unfinished file (Fig. 10).
    * a function of (path, offset) that says it explicitly; it must pickle.

    ``follow`` waits for more files and more lines; by default `millwheel.start` follows and
    `millwheel.run` reads what is there when it begins.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        *,
        timestamp: str,
        id: str | None = None,
        format: Literal["jsonl", "csv"] | None = None,
        unit: lines.Unit = "us",
        watermark: Watermark | None = None,
        slack: int | None = None,
        follow: bool | None = None,
        errors: Errors = "stop",
        id_retention: int = DAY,
    ) -> None:
        if watermark is not None and watermark not in _STRATEGIES and not callable(watermark):
            raise InputError(
                f"Files: watermark is {', '.join(_STRATEGIES)} or a function of (path, offset), "
                f"not {watermark!r}"
            )
        if slack is not None and watermark not in (None, "events"):
            raise InputError(f"Files: slack goes with watermark='events', not with {watermark!r}")
        if format not in (None, "jsonl", "csv"):
            raise InputError(f"Files: format is jsonl or csv, not {format!r}")
        if unit not in lines.UNITS:
            raise InputError(f"Files: unit is one of {', '.join(lines.UNITS)}, not {unit!r}")
        self._pattern = os.path.abspath(os.fspath(pattern))
        self._timestamp = timestamp
        self._id = id
        self._format = format
        self._unit = unit
        self._watermark = watermark or ("events" if slack is not None else None)
        self._wanted_slack = slack
        self._follow = follow
        self.errors = errors
        self.id_retention = id_retention
        self._ends: dict[str, int] = {}
        self._read: dict[str, int] = {}
        self._births: dict[str, int] = {}
        self._line_length: int | None = None

    def __repr__(self) -> str:
        return f"Files({self._pattern!r})"

    def open(self, *, follow: bool) -> None:
        follow = follow if self._follow is None else self._follow
        self.bounded = not follow
        if self._watermark is None:
            self._watermark = "events" if follow else "complete"
        self.in_turn = self._watermark not in ("events", "monotonic")
        if self._watermark == "monotonic":
            self.slack = 0
        if self._watermark == "events":
            self.slack = _FOLLOWED_SLACK if self._wanted_slack is None else self._wanted_slack
        self._ends.clear()

    def poll(self) -> Mapping[str, Offset]:
        if self.bounded and self._ends:
            return self._ends
        found = sorted(path for path in globbing.glob(self._pattern, recursive=True) if os.path.isfile(path))
        if not found and self.bounded:
            raise InputError(
                f"no file matches {self._pattern}: mend the pattern, or follow it (follow=True) "
                "to wait for files"
            )
        for path in found:
            self._ends[path] = self._end(path)
        return {path: end for path, end in self._ends.items() if end}

    def _end(self, path: str) -> int:
        """How far a file may be read now: to its end, or to the last whole line of one that may grow."""
        size = os.stat(path).st_size
        known = max(self._ends.get(path, 0), self._read.get(path) or 0)
        if size < known:
            raise InputError(
                f"the file {path} shrank from {known:,} to {size:,} bytes: lines that were read are gone; "
                "append to a log, or move it away and begin a new one under another name"
            )
        if size == known or self.bounded or _is_gzip(path):
            return size
        with open(path, "rb") as file:
            position = size
            while position > known:
                begin = max(known, position - _TAIL)
                file.seek(begin)
                last = file.read(position - begin).rfind(b"\n")
                if last >= 0:
                    return begin + last + 1
                position = begin
        return known

    def low_watermark(self, partition: str, offset: Offset) -> int:
        if offset is not None and offset >= self._ends.get(partition, 0):
            return MAX_TIME  # at its end a file holds nothing (Fig. 10)
        if callable(self._watermark):
            return self._watermark(partition, offset or 0)
        if self._watermark == "created":
            if partition not in self._births:
                self._births[partition] = birth.birth_time(partition)
            return self._births[partition]
        return MIN_TIME

    def commit(self, offsets: Mapping[str, Offset]) -> None:
        self._read.update(offsets)

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        if _is_gzip(partition):
            return end  # it can only be read as a whole; what is appended to it is a piece of its own
        target = (start or 0) + records * self._length(partition)
        if target >= end:
            return end
        with open(partition, "rb") as file:
            file.seek(target)
            file.readline()
            return min(file.tell(), end)

    def size(self, partition: str, start: Offset, end: Offset) -> int:
        ratio = _GZIP_RATIO if _is_gzip(partition) else 1
        bytes_in_range: int = end - (start or 0)
        return max(bytes_in_range * ratio // self._length(partition), 1)

    def _length(self, path: str) -> int:
        if self._line_length is None:
            with lines.open_piece(path, 0, self._ends.get(path) or os.stat(path).st_size) as file:
                sample = file.read(_SAMPLE)
            self._line_length = max(len(sample) // max(sample.count(b"\n"), 1), 1)
        return self._line_length

    def read_batches(self, partition: str, start: Offset, end: Offset) -> Iterable[RecordBatch]:
        form = self._format or ("csv" if _stem(partition).endswith(".csv") else "jsonl")
        reader = lines.Reader(self._timestamp, self._id, self._unit, form)
        return reader.batches(partition, start or 0, end)

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[Record]:
        for batch in self.read_batches(partition, start, end):
            ids = batch.ids or [None] * len(batch.values)
            for value, time, id in zip(batch.values, batch.timestamps, ids, strict=True):
                yield Record(value, time, id=id)


def _is_gzip(path: str) -> bool:
    return path.endswith(".gz")


def _stem(path: str) -> str:
    return path.removesuffix(".gz").lower()
