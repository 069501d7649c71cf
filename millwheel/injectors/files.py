"""Files of a folder that appear, grow, and are rotated: text or Parquet.

A file is a partition, its offset a position in bytes, always at the beginning of a line, or the number of
a row of a table. A partition's name identifies the file across renames: see
`file_identity`. The driver reads names, sizes and line ends; tasks read the lines.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar, cast

from millwheel.errors import InputError
from millwheel.injectors import avro, creation_time, lines, parquet, units
from millwheel.injectors.csv_rows import Layout, Types
from millwheel.injectors.file_identity import Identity
from millwheel.injectors.folder import TABLES, Folder
from millwheel.injectors.inotify import Watch
from millwheel.injectors.object_folder import ObjectFolder
from millwheel.injectors.object_path import ObjectPath
from millwheel.injectors.packed import is_packed, stem
from millwheel.model.field_columns import FieldColumns
from millwheel.model.injector import Errors, FieldNames, Injector, Offset, RecordBatch
from millwheel.model.lakehouse import place
from millwheel.model.time import DAY, MAX_TIME, MIN_TIME, SECOND
from millwheel.objects import is_object_url

Format = Literal["jsonl", "csv", "lines", "parquet", "avro"]
_FORMATS = ("jsonl", "csv", "lines", "parquet", "avro")
Watermark = Literal["complete", "events", "monotonic", "created"] | Callable[[str, int], int]

_STRATEGIES = ("complete", "events", "monotonic", "created")

Result = TypeVar("Result")

_FOLLOWED_SLACK = 10 * SECOND  # the default for a folder that is followed
_SAMPLE = 1 << 16  # bytes from which the length of a line is estimated
_LONG_LINE = 2_000  # bytes
_DAMAGED_LINE = 100  # bytes: assumed for a packed file that cannot be unpacked
_GZIP_RATIO = 6  # typical for logs; used for the size of epochs only


class Files(Injector):
    """Injects the lines, or the rows, of the files that match a pattern.

    ``format`` is ``jsonl``, ``csv``, ``parquet`` or ``avro``, by default from the file's name, or ``lines``:
    then ``parse`` is a function of a line (a ``str``) that returns a dict, a `Record`, or None for a line
    without a record. A line for which it raises is bad input.

    A file that was renamed within the pattern is the same file. One that shrank, or begins with other
    bytes than when it was read, is an error.

    ``timestamp`` names the field with the event time, in ``unit`` (``us``, ``ms``, ``s``, ``iso`` for text
    such as 2011-01-27T22:34:01Z, or ``auto``, which decides for each value); ``id`` a field with a unique
    name of a record, if there is one. Without ``unit`` they are microseconds, and a file whose first
    timestamps are clearly in another unit is an error that names it.

    The fields of CSV are text, unless ``types`` is given: ``{"price": float}`` (``int``, ``float``, ``bool``,
    for which an empty field is None, or a function of a text), or ``"infer"``, value by value.
    ``delimiter`` separates fields, ``header`` names the columns of files without a header line.

    ``watermark`` is what the low watermark follows:

    * ``complete``: a file holds it until it is read to its end. Right for any order of the lines;
      windows close when the files are read. The default of a run that ends by itself.
    * ``events``: the newest timestamp of each unfinished file, less ``slack``; of one that is not begun,
      the timestamp of its first line. The default if a folder is followed, or ``slack`` is given.
    * ``monotonic``: like ``events``, for files whose timestamps never go back: no slack.
    * ``created``: the creation time of the oldest unfinished file (Fig. 10).
    * a function of (path, offset) that returns it; it must pickle.

    ``follow`` waits for more files and more lines; by default `millwheel.start` follows and
    `millwheel.run` reads what is there at its start.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        *,
        timestamp: str = "",
        id: str | None = None,
        format: Format | None = None,
        parse: lines.Parse | None = None,
        unit: units.Unit | None = None,
        types: Types | None = None,
        delimiter: str = ",",
        header: Sequence[str] | None = None,
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
        if format not in (None, *_FORMATS):
            raise InputError(f"Files: format is one of {', '.join(_FORMATS)}, not {format!r}")
        if (format == "lines") != callable(parse):
            raise InputError('Files: format="lines" and parse= (a function of a line) are given together')
        if not timestamp and parse is None:
            raise InputError("Files: timestamp names the field with the event time")
        units.check_name(unit, "Files")
        if isinstance(header, str | bool):
            raise InputError(f'Files: header is a list of names such as ["time", "price"], not {header!r}')
        self._layout = Layout(delimiter, None if header is None else tuple(header), types)
        self._layout.check()
        if self._layout != Layout() and format not in (None, "csv"):
            raise InputError(f"Files: types=, delimiter= and header= are for CSV, not for {format!r}")
        self._remote = is_object_url(os.fspath(pattern)) and not os.fspath(pattern).startswith("file:")
        self._pattern = os.fspath(pattern) if self._remote else os.path.abspath(place(pattern))
        self._timestamp = timestamp
        self._id = id
        self._format = format
        self._unit = unit
        self._watermark = watermark or ("events" if slack is not None else None)
        self._wanted_slack = slack
        self._follow = follow
        self.errors = errors
        self.id_retention = id_retention
        self._parse = parse
        self.folder = self._make_folder(may_grow=False)
        self._births: dict[str, int] = {}
        self._heads: dict[str, int] = {}
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
        self.folder = self._make_folder(may_grow=follow)

    def _make_folder(self, *, may_grow: bool) -> Folder | ObjectFolder:
        if self._remote:
            return ObjectFolder(self._pattern, self._form, may_grow=may_grow)
        return Folder(self._pattern, self._form, may_grow=may_grow, named=self._layout.header is None)

    def notify(self, wake: Callable[[], None]) -> bool:
        self.close()
        if self.bounded or isinstance(self.folder, ObjectFolder):
            return False
        try:
            self.folder.watch = Watch(self._pattern, wake)
        except OSError:  # it does not exist yet, or is not local: it is polled
            return False
        return True

    def close(self) -> None:
        if isinstance(self.folder, ObjectFolder):
            return
        watch, self.folder.watch = self.folder.watch, None
        if watch is not None:
            watch.close()

    def poll(self) -> Mapping[str, Offset]:
        return self.folder.look()

    def why_empty(self) -> str:
        return f"no file matches {self._pattern}"

    def _form(self, path: str) -> str:
        if self._format is not None:
            return self._format
        name = stem(path).lower()
        return next((form for form in ("csv", "parquet", "avro") if name.endswith("." + form)), "jsonl")

    def low_watermark(self, partition: str, offset: Offset) -> int:
        file = self.folder.files.get(partition)
        if offset is not None and offset >= (file.end if file is not None else 0):
            return MAX_TIME  # a file that is read to its end does not hold (Fig. 10)
        if callable(self._watermark):
            return self._watermark(self._path(partition), offset or 0)
        if self._watermark == "created":
            if self._remote:
                return file.changed if file is not None else MIN_TIME
            if partition not in self._births:
                self._births[partition] = creation_time.birth_time(self._path(partition))
            return self._births[partition]
        if self.slack is not None and not offset:
            return self._head(partition)
        return MIN_TIME

    def _head(self, partition: str) -> int:
        """The watermark of a file that is not begun: that of its first line."""
        if partition not in self._heads:
            file = self.folder.files.get(partition)
            first = None
            if file is not None and self._form(file.path) not in TABLES:
                first = self._reader(file.path).first(file.path, file.end)
            self._heads[partition] = MIN_TIME if first is None else max(first - (self.slack or 0), MIN_TIME)
        return self._heads[partition]

    def _path(self, partition: str) -> str:
        file = self.folder.files.get(partition)
        if file is not None:
            return file.path
        if isinstance(self.folder, ObjectFolder):
            return ObjectPath.of(partition, self.folder.parameters)
        return Identity.parse(partition).path

    def commit(self, offsets: Mapping[str, Offset]) -> None:
        for partition, offset in offsets.items():
            self.folder.committed(partition, offset)

    def lost(self, offsets: Mapping[str, Offset]) -> str | None:
        paths = list(self.folder.paths())
        if self._remote:
            gone = [name for name in offsets if self._path(name) not in paths]
        else:
            gone = [name for name in offsets if Identity.parse(name).find(paths) is None]
        if not gone:
            return None
        which = self._path(gone[0])
        more = f" and {len(gone) - 1:,} more" if len(gone) > 1 else ""
        return f"{which}{more} was read, and was removed or packed since: restore it"

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        return self._at_path(partition, start, lambda path: self._cut(path, start, end, records))

    def _cut(self, path: str, start: Offset, end: Offset, records: int) -> Offset:
        if self._form(path) == "parquet":
            cut = parquet.cut(path, start or 0, records)
            return cut if cut < min(end, parquet.rows(path)) else end
        if self._form(path) == "avro":
            return avro.cut(path, start or 0, end, records)
        if is_packed(path):
            return end  # it can only be read as a whole; an appended part is a piece of its own
        target = (start or 0) + records * self._length(path, end)
        if target >= end:
            return end
        with lines.open_piece(path, target, end, lines.LINE) as file:
            return min(target + len(file.readline()), end)

    def size(self, partition: str, start: Offset, end: Offset) -> int:
        path = self._path(partition)
        length: int = end - (start or 0)
        if self._form(path) == "parquet":
            return max(length - parquet.END if end >= parquet.END else length, 1)
        if self._form(path) == "avro":
            return avro.count(path, length)
        ratio = _GZIP_RATIO if is_packed(path) else 1
        return max(length * ratio // self._length(path, end), 1)

    def _length(self, path: str, end: int) -> int:
        if self._line_length is None:
            sample = lines.sample(path, end, _SAMPLE)
            if not sample:
                return _DAMAGED_LINE
            length = len(sample) // max(sample.count(b"\n"), 1)
            # An epoch is limited in records: a long one counts as several, or it would be gigabytes.
            self._line_length = min(max(length, 1), _LONG_LINE)
        return self._line_length

    def read_batches(self, partition: str, start: Offset, end: Offset) -> Iterable[RecordBatch]:
        return cast(Iterable[RecordBatch], self._batches(partition, start, end, None))

    def read_fields(
        self, partition: str, start: Offset, end: Offset, fields: Collection[str]
    ) -> Iterable[RecordBatch | FieldColumns]:
        return self._batches(partition, start, end, fields)

    def _batches(
        self, partition: str, start: Offset, end: Offset, fields: Collection[str] | None
    ) -> Iterable[RecordBatch | FieldColumns]:
        def begin(path: str) -> Iterator[RecordBatch | FieldColumns]:
            batches = iter(self._read_path(path, start, end, fields))
            first = list(itertools.islice(batches, 1))  # which opens the file
            return itertools.chain(first, batches)

        yield from self._at_path(partition, start, begin)

    def _at_path(self, partition: str, start: Offset, use: Callable[[str], Result]) -> Result:
        """Calls a function that opens a file by its path.

        Calls it again if the file was renamed meanwhile.
        """
        path = self._now_at(partition, start)
        while True:
            before = path
            try:
                found = use(path)
            except InputError:
                if (path := self._now_at(partition, start)) == before:
                    raise
            else:
                if (path := self._now_at(partition, start)) == before:
                    return found

    def _read_path(
        self, path: str, start: Offset, end: Offset, fields: Collection[str] | None
    ) -> Iterable[RecordBatch | FieldColumns]:
        if self._form(path) == "parquet":
            if isinstance(fields, FieldNames) and fields.columns and self._id is None:
                return parquet.columns(path, start or 0, end, self._timestamp, self._unit, fields)
            return parquet.batches(path, start or 0, end, self._timestamp, self._id, self._unit)
        if self._form(path) == "avro":
            return avro.batches(path, start or 0, end, self._timestamp, self._id, self._unit)
        batches = self._reader(path).batches(path, start or 0, end, fields)
        is_first = not start and self._unit is None and self._timestamp
        return units.checked(batches, self._timestamp, f"the file {path}") if is_first else batches

    def _reader(self, path: str) -> lines.Reader:
        divert = self.errors == "divert"
        form = self._form(path)
        return lines.Reader(
            self._timestamp, self._id, self._unit, form, self._parse, divert=divert, layout=self._layout
        )

    def _now_at(self, partition: str, start: Offset) -> str:
        """The current path of a file, which may have been renamed since the plan."""
        if isinstance(self.folder, ObjectFolder):
            return ObjectPath.of(partition, self.folder.parameters)
        identity = Identity.parse(partition)
        path = identity.find(self.folder.paths())
        if path is not None:
            return path
        if not start and os.path.exists(identity.path):
            return identity.path  # nothing of it is committed: it may have been fixed
        raise InputError(
            f"the file {identity.path} was removed, or changed in a part that was read already, before it "
            f"was read to its end, and nothing that matches {self._pattern} is it: restore it (this is the "
            f"host {socket.gethostname()}; on a cluster, every executor must see the files)"
        )
