"""Records as files of JSON lines that grow."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import msgspec
import orjson

from millwheel.errors import MillWheelError
from millwheel.model.lakehouse import place
from millwheel.model.record import Record
from millwheel.model.secrets import without_secrets
from millwheel.model.sink import Sink
from millwheel.objects import is_object_url, open_objects
from millwheel.sinks.json_values import bytes_text, json_text
from millwheel.sinks.object_publisher import close as close_objects
from millwheel.sinks.object_publisher import object_publisher, staging
from millwheel.sinks.object_staging import ObjectStaging
from millwheel.sinks.segments import segments
from millwheel.sinks.staging import Staging

_EVERY = 30.0  # seconds between objects: an hour of epochs leaves a hundred
_FILE_SIZE = 64 << 20  # bytes: a file that Spark reads in one task, and a hundred of which are a list


class JsonLines(Sink):
    """Writes a folder of files that grow: ``part-0000000001.jsonl`` and so on.

    A line is ``{"key": ..., "timestamp": ..., "value": ...}``. Whoever reads the folder sees each record of
    a committed epoch once, whatever crashed: lines are only ever added, at the end of the last file, epoch
    by epoch, and no file is renamed or removed. A last line without its end is being written.

    Tasks leave their lines in a hidden folder; the driver adds them when their epoch is committed, and
    begins a new file after ``file_size`` bytes. A sink that was killed in between adds what is missing
    when the pipeline is started again.

    ``path`` may be a URL of object storage (``s3://bucket/prefix``). Objects cannot grow: there, one with the
    lines of committed epochs is put every ``every`` seconds (0: with each epoch), after ``file_size`` bytes,
    and at the end. It appears whole, and is neither changed nor removed.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, file_size: int = _FILE_SIZE, every: float = _EVERY
    ) -> None:
        where = place(path)
        self._url = where if is_object_url(where) else None
        self._path = Path(where)
        self._file_size = file_size
        self._every = every
        self._objects: ObjectStaging | None = None

    def __repr__(self) -> str:
        return f"JsonLines({without_secrets(self._url or os.fspath(self._path))!r})"

    def open(self) -> None:
        if self._url is not None:
            return
        Staging(self._path, repr(self)).open()

    def begin(self, origin: str, epoch: int) -> None:
        if self._url is not None:
            self._objects = staging(self._url, origin, repr(self))
            self._objects.open()
            publisher = object_publisher(self._url, repr(self), _joined)
            publisher.begin(origin, epoch, self._every, self._file_size)
            return
        segments(self._path).begin(origin, epoch, self._file_size)

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        keys, timestamps = [r.key for r in records], [r.timestamp for r in records]
        self.write_columns(epoch, shard, keys, timestamps, [r.value for r in records])

    def write_columns(
        self, epoch: int, shard: int, keys: Sequence[str], timestamps: Sequence[int], values: Sequence[Any]
    ) -> bool:
        if keys:
            self._staging().put(epoch, shard, _lines(keys, timestamps, values))
        return True

    def _write_json(
        self, epoch: int, shard: int, keys: Sequence[str], timestamps: Sequence[int], lines: Sequence[bytes]
    ) -> bool:
        """Puts a key and a timestamp before values that are JSON already."""
        stamps = {time: b',"timestamp":%d,"value":' % time for time in set(timestamps)}
        try:
            texts = map(_encode, keys)
            parts = zip(repeat(b'{"key":'), texts, map(stamps.__getitem__, timestamps), lines, repeat(b"}\n"))
            data = b"".join(chain.from_iterable(parts))
        except UnicodeEncodeError:  # half a character
            return False
        if keys:
            self._staging().put(epoch, shard, data)
        return True

    def _staging(self) -> Staging | ObjectStaging:
        return self._objects or Staging(self._path, repr(self))

    def commit(self, epoch: int) -> None:
        if self._url is not None:
            object_publisher(self._url, repr(self), _joined).commit(epoch)
            return
        segments(self._path).commit(epoch)

    def close(self) -> None:
        if self._url is not None:
            close_objects(self._url)
            return
        segments(self._path).close()

    def records(self) -> Iterator[Record]:
        """What the folder holds, epoch by epoch."""
        if self._url is not None:
            objects = open_objects(self._url, error=MillWheelError)
            for found in objects.list(""):
                if found.name.startswith("part-"):
                    for line in (objects.get(found.name) or b"").splitlines():
                        entry = orjson.loads(line)
                        yield Record(entry["value"], entry["timestamp"], entry["key"])
            return
        for path in sorted(self._path.glob("part-*.jsonl")):
            with open(path, "rb") as file:
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    entry = orjson.loads(line)
                    yield Record(entry["value"], entry["timestamp"], entry["key"])


def _joined(batches: Sequence[bytes]) -> list[tuple[str, bytes]]:
    return [("part-{}.jsonl", b"".join(batches))]


class _Entry(msgspec.Struct, gc=False):
    """A line; its fields are written as they are, whatever they are."""

    key: Any
    timestamp: Any
    value: Any


_encode_lines = msgspec.json.Encoder().encode_lines
_encode = msgspec.json.Encoder().encode
_SCALARS = {type(None), bool, int, float, str}


def _is_flat(values: Sequence[Any]) -> bool:
    """Whether all values are scalars, or all are objects of scalars: nothing that our JSON has rules for."""
    kinds = set(map(type, values))
    if kinds <= _SCALARS:
        return True
    if kinds != {dict}:
        return False
    names, inner = set(map(type, chain.from_iterable(values))), map(dict.values, values)
    return names <= {str} and set(map(type, chain.from_iterable(inner))) <= _SCALARS


_BEGIN = b'{"' + uuid.uuid4().hex.encode() + b'":'  # how an entry begins, and nothing in it can
_FIRST_FIELD = _BEGIN[2:-2].decode()


def _lines(keys: Sequence[str], timestamps: Sequence[int], values: Sequence[Any]) -> bytes:
    """The lines of all records, by a call for all of them: one for each costs five times as much.

    What msgspec writes as we do it writes at once. For others, orjson writes an array, whose entries are then
    put on lines of their own.
    """
    try:
        if _is_flat(values):
            return _encode_lines(list(map(_Entry, keys, timestamps, values)))
        entries = [
            {_FIRST_FIELD: key, "timestamp": timestamp, "value": value}
            for key, timestamp, value in zip(keys, timestamps, values, strict=True)
        ]
        text = orjson.dumps(entries, default=_other, option=_OPTIONS)
    except (TypeError, UnicodeEncodeError):  # half a character, which UTF-8 cannot hold
        return b"".join(map(_line, keys, timestamps, values))
    return text[1:-1].replace(b"}," + _BEGIN, b"}\n" + _BEGIN).replace(_BEGIN, b'{"key":') + b"\n"


def _line(key: str, timestamp: int, value: Any) -> bytes:
    """One line, by Python's own writer: it escapes the half characters that UTF-8 cannot hold."""
    return json_text({"key": key, "timestamp": timestamp, "value": value}).encode() + b"\n"


_OPTIONS = orjson.OPT_NON_STR_KEYS


def _other(value: Any) -> Any:
    if isinstance(value, bytes):
        return bytes_text(value)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
