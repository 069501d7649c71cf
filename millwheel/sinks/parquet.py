"""Records as Parquet files, by stream and day."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.model.lakehouse import place as place_of
from millwheel.model.record import Record
from millwheel.model.secrets import without_secrets
from millwheel.model.sink import Sink
from millwheel.objects import is_object_url
from millwheel.sinks import object_publisher
from millwheel.sinks.arrow_rows import arrow_field, field_column, import_arrow, utf8_text
from millwheel.sinks.json_values import json_text
from millwheel.sinks.object_staging import ObjectStaging
from millwheel.sinks.parquet_publisher import EVERY, ROW_BYTES, ROWS, publisher, tables
from millwheel.sinks.staging import Staging


class Parquet(Sink):
    """Writes ``stream=NAME/date=YYYY-MM-DD/part-*.parquet`` below a folder.

    The columns are ``key``, ``timestamp`` (microseconds, UTC) and ``value``, which is JSON text. With
    ``schema`` (names of fields to types of Arrow, as ``{"count": "int64"}``, or a `pyarrow.Schema`) the
    fields of values that are dicts are columns instead; a missing one is null.

    Tasks stage their rows in a hidden folder. The driver publishes those of committed epochs every
    ``every`` seconds, after ``rows`` rows, and at the end. A file appears whole, with all rows that whole
    epochs have for its stream and day, and is never changed or removed; each record of a committed epoch
    is in one file, across crashes. An epoch with several days or streams appears file by file. ``path`` may
    be a URL of object storage (``s3://bucket/prefix``).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Any = None,
        every: float = EVERY,
        rows: int = ROWS,
    ) -> None:
        arrow = import_arrow("Parquet")
        where = place_of(path)
        self._url = where if is_object_url(where) else None
        self._path = Path(where)
        self._objects: ObjectStaging | None = None
        self._every = every
        self._rows = rows
        columns = dict(schema or {}) if not isinstance(schema, arrow.Schema) else None
        fields = (
            list(schema)
            if columns is None
            else [arrow_field(arrow, "Parquet", *item) for item in columns.items()]
        )
        self._fields = fields
        taken = {"stream", "key", "timestamp", "date"} & {field.name for field in fields}
        if taken:
            raise MillWheelError(f"Parquet: {', '.join(sorted(taken))} is already a column of every file")
        self._schema = arrow.schema(
            [
                arrow.field("stream", arrow.string(), nullable=False),
                arrow.field("key", arrow.string(), nullable=False),
                arrow.field("timestamp", arrow.timestamp("us", "UTC"), nullable=False),
                *(fields or [arrow.field("value", arrow.string())]),
            ]
        )

    def __repr__(self) -> str:
        return f"Parquet({without_secrets(self._url or os.fspath(self._path))!r})"

    def open(self) -> None:
        if self._url is not None:
            return
        Staging(self._path, repr(self)).open()

    def begin(self, origin: str, epoch: int) -> None:
        if self._url is not None:
            size = self._rows * ROW_BYTES
            self._objects = object_publisher.begin(
                self._url, repr(self), tables, origin, epoch, self._every, size
            )
            return
        publisher(self._path).begin(origin, epoch, self._every, self._rows)

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        if not records:
            return
        arrow = import_arrow("Parquet")
        columns: list[Any] = [
            [record.stream for record in records],
            [utf8_text(record.key) for record in records],
            arrow.array([record.timestamp for record in records], arrow.int64()),
        ]
        if not self._fields:
            columns.append([json_text(record.value) for record in records])
        for field in self._fields:
            columns.append(field_column("Parquet", field, records))
        arrays = [
            column.cast(field.type) if isinstance(column, arrow.Array) else arrow.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        buffer = io.BytesIO()
        with arrow.ipc.new_stream(buffer, self._schema) as writer:
            writer.write_batch(arrow.record_batch(arrays, schema=self._schema))
        (self._objects or Staging(self._path, repr(self))).put(epoch, shard, buffer.getvalue())

    def commit(self, epoch: int) -> None:
        if self._url is not None:
            object_publisher.commit(self._url, epoch)
            return
        publisher(self._path).schedule.commit(epoch)

    def close(self) -> None:
        if self._url is not None:
            object_publisher.close(self._url)
            return
        publisher(self._path).schedule.close()
