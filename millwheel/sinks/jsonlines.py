"""Records as files of JSON lines that grow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.model.emitted import Emitted
from millwheel.model.lakehouse import place
from millwheel.model.record import Record, decode_json
from millwheel.model.secrets import without_secrets
from millwheel.model.sink import Sink
from millwheel.objects import is_object_url, open_objects
from millwheel.sinks import object_publisher
from millwheel.sinks.line_text import lines_of, window_lines
from millwheel.sinks.object_staging import ObjectStaging
from millwheel.sinks.segments import segments
from millwheel.sinks.staging import Staging

_EVERY = 30.0  # seconds between objects: an hour of epochs leaves a hundred
_FILE_SIZE = 64 << 20  # bytes: a file that Spark reads in one task


class JsonLines(Sink):
    """Writes a folder of files that grow: ``part-0000000001.jsonl`` and so on.

    A line is ``{"key": ..., "timestamp": ..., "value": ...}``. A reader of the folder sees each record of
    a committed epoch once, across crashes: lines are only ever appended to the last file, epoch
    by epoch, and no file is renamed or removed. A last line without its end is being written.

    Tasks stage their lines in a hidden folder; the driver appends them when their epoch is committed, and
    begins a new file after ``file_size`` bytes. A sink that was killed in between appends the rest
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
            self._objects = object_publisher.begin(
                self._url, repr(self), _joined, origin, epoch, self._every, self._file_size
            )
            return
        segments(self._path).begin(origin, epoch, self._file_size)

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        keys, timestamps = [r.key for r in records], [r.timestamp for r in records]
        self.write_columns(epoch, shard, keys, timestamps, [r.value for r in records])

    def write_columns(
        self, epoch: int, shard: int, keys: Sequence[str], timestamps: Sequence[int], values: Sequence[Any]
    ) -> bool:
        if keys:
            self._staging().put(epoch, shard, lines_of(keys, timestamps, values))
        return True

    def _write_windows(self, epoch: int, shard: int, windows: Emitted) -> bool:
        self._staging().put(epoch, shard, window_lines(windows))
        return True

    def _staging(self) -> Staging | ObjectStaging:
        return self._objects or Staging(self._path, repr(self))

    def commit(self, epoch: int) -> None:
        if self._url is not None:
            object_publisher.commit(self._url, epoch)
            return
        segments(self._path).commit(epoch)

    def close(self) -> None:
        if self._url is not None:
            object_publisher.close(self._url)
            return
        segments(self._path).close()

    def records(self) -> Iterator[Record]:
        """The records in the folder, epoch by epoch."""
        if self._url is not None:
            objects = open_objects(self._url, error=MillWheelError)
            for found in objects.list(""):
                if found.name.startswith("part-"):
                    for line in (objects.get(found.name) or b"").splitlines():
                        entry = decode_json(line)
                        yield Record(entry["value"], entry["timestamp"], entry["key"])
            return
        for path in sorted(self._path.glob("part-*.jsonl")):
            with open(path, "rb") as file:
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    entry = decode_json(line)
                    yield Record(entry["value"], entry["timestamp"], entry["key"])


def _joined(batches: Sequence[bytes]) -> list[tuple[str, bytes]]:
    return [("part-{}.jsonl", b"".join(batches))]
