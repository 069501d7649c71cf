"""Records as Parquet files, by stream and day, few and whole."""

from __future__ import annotations

import datetime
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from millwheel.errors import MillWheelError
from millwheel.model.lakehouse import place as place_of
from millwheel.model.record import Record
from millwheel.model.secrets import without_secrets
from millwheel.model.sink import Sink
from millwheel.model.time import DAY
from millwheel.objects import is_object_url
from millwheel.sinks.json_values import json_text
from millwheel.sinks.object_publisher import close as close_objects
from millwheel.sinks.object_publisher import object_publisher, staging
from millwheel.sinks.object_staging import ObjectStaging
from millwheel.sinks.staging import Later, Staging, sync_folder

_EVERY = 30.0  # seconds between files: an hour of epochs leaves a hundred for each stream
_ROWS = 1_000_000  # that are not kept back any longer, however little time has passed
_NO_DAY = "__HIVE_DEFAULT_PARTITION__"


class Parquet(Sink):
    """Writes ``stream=NAME/date=YYYY-MM-DD/part-*.parquet`` below a folder, as Spark and others read it.

    The columns are ``key``, ``timestamp`` (microseconds, UTC) and ``value``, which is JSON text. With
    ``schema`` (names of fields to types of Arrow, as ``{"count": "int64"}``, or a `pyarrow.Schema`) the
    fields of values that are dicts are columns instead; one that is missing is null.

    Tasks leave their rows in a hidden folder. The driver publishes those of committed epochs every
    ``every`` seconds, after ``rows`` rows, and at the end. A file appears whole, with all rows that whole
    epochs have for its stream and day, and is never changed or removed; each record of a committed epoch
    is in one file, whatever crashed. An epoch with several days or streams appears file by file. ``path`` may
    be a URL of object storage (``s3://bucket/prefix``).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Any = None,
        every: float = _EVERY,
        rows: int = _ROWS,
    ) -> None:
        arrow = _import()
        where = place_of(path)
        self._url = where if is_object_url(where) else None
        self._path = Path(where)
        self._objects: ObjectStaging | None = None
        self._every = every
        self._rows = rows
        columns = dict(schema or {}) if not isinstance(schema, arrow.Schema) else None
        fields = list(schema) if columns is None else [_field(arrow, *item) for item in columns.items()]
        self._fields = fields
        taken = {"stream", "key", "timestamp", "date"} & {field.name for field in fields}
        if taken:
            raise MillWheelError(f"Parquet: {', '.join(sorted(taken))} is a column of every file already")
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
            self._objects = staging(self._url, origin, repr(self))
            self._objects.open()
            size = self._rows * _ROW_BYTES
            object_publisher(self._url, repr(self), _tables).begin(origin, epoch, self._every, size)
            return
        _publisher(self._path).begin(origin, epoch, self._every, self._rows)

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        if not records:
            return
        arrow = _import()
        columns: list[Any] = [
            [record.stream for record in records],
            [_text(record.key) for record in records],
            arrow.array([record.timestamp for record in records], arrow.int64()),
        ]
        if not self._fields:
            columns.append([json_text(record.value) for record in records])
        for field in self._fields:
            columns.append(self._column(arrow, field, records))
        arrays = [
            column.cast(field.type) if isinstance(column, arrow.Array) else arrow.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        buffer = io.BytesIO()
        with arrow.ipc.new_stream(buffer, self._schema) as writer:
            writer.write_batch(arrow.record_batch(arrays, schema=self._schema))
        (self._objects or Staging(self._path, repr(self))).put(epoch, shard, buffer.getvalue())

    def _column(self, arrow: Any, field: Any, records: Sequence[Record]) -> Any:
        try:
            return arrow.array([record.value.get(field.name) for record in records], field.type)
        except (AttributeError, arrow.ArrowException, TypeError) as error:
            raise MillWheelError(
                f"Parquet: a value has no field {field.name!r} that is {field.type} ({error}); the schema "
                "is for dicts whose fields have its types"
            ) from error

    def commit(self, epoch: int) -> None:
        if self._url is not None:
            object_publisher(self._url, repr(self), _tables).commit(epoch)
            return
        _publisher(self._path).commit(epoch)

    def close(self) -> None:
        if self._url is not None:
            close_objects(self._url)
            return
        _publisher(self._path).close()


def _tables(batches: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """Return the files of batches, one for each stream and day."""
    arrow = _import()
    from pyarrow import parquet

    table = arrow.concat_tables(arrow.ipc.open_stream(batch).read_all() for batch in batches)
    found = []
    for folder, part in _parts(arrow, table):
        buffer = io.BytesIO()
        parquet.write_table(part, buffer)
        found.append((folder.replace("{", "%7B").replace("}", "%7D") + "/part-{}.parquet", buffer.getvalue()))
    return found


class Publisher:
    """Makes files of staged batches, in the driver.

    1. The files are written below the hidden folder, durably. A crash leaves them to be removed.
    2. The state is saved: through which epoch, and where each file belongs. From here on they are published.
    3. They are moved to their places, and the batches are dropped. After a crash or a full disk the rest is
       moved before anything else is published.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._staging = Staging(folder, f"Parquet({os.fspath(folder)!r})")
        self._later = Later(_EVERY, self._publish_later)
        self._rows = _ROWS
        self._origin = ""
        self._through = 0
        self._committed = 0
        self._published: tuple[int, list[list[str]]] | None = None
        """Through which epoch files are published that are not all in their places yet, and which."""

    def begin(self, origin: str, epoch: int, every: float, rows: int) -> None:
        """Takes over from the last driver, and finishes what it began."""
        with self._later.lock, self._staging.writing():
            self._published = None
            self._later.seconds, self._rows = every, rows
            state = self._staging.take()
            self._move(state.get("moves", []))
            for left in (self._folder / ".staged").glob("*.parquet"):
                left.unlink()
            self._origin, self._committed = origin, epoch
            if state.get("origin") == origin:
                self._through = state["through"]
            else:
                self._staging.drop()
                self._through = epoch
            self._publish()

    def commit(self, epoch: int) -> None:
        """Publishes what an epoch has staged, soon. Where that fails, it stays staged."""
        with self._later.lock, self._staging.writing():
            if epoch <= self._committed:
                return
            self._committed = epoch
            self._later.ask()
            if self._waiting() >= self._rows:
                self._later.cancel()
                self._publish()

    def _waiting(self) -> int:
        """About how many rows are staged."""
        staged = self._staging.batches(self._through, self._committed)
        return sum(item.path.stat().st_size for item in staged) // _ROW_BYTES

    def close(self) -> None:
        """Publishes all that is committed."""
        with self._later.lock, self._staging.writing():
            self._later.cancel()
            if self._origin:
                self._publish()
                self._origin = ""

    def _publish_later(self) -> None:
        with self._staging.writing():
            self._publish()

    def _publish(self) -> None:
        self._finish()
        arrow = _import()
        batches = self._staging.batches(self._through, self._committed)
        if batches:
            table = arrow.concat_tables(
                arrow.ipc.open_stream(item.path.read_bytes()).read_all() for item in batches
            )
            name = f"part-{self._origin[:8]}-{batches[0].epoch:010d}-{batches[-1].epoch:010d}.parquet"
            moves = self._write_all(arrow, table, name)
            self._staging.save({"origin": self._origin, "through": self._committed, "moves": moves})
            self._published = self._committed, moves
        else:
            self._published = self._committed, []
        self._finish()

    def _finish(self) -> None:
        """Moves what is published to its places: also what an attempt that failed has left."""
        if self._published is None:
            return
        through, moves = self._published
        self._move(moves)
        self._staging.save({"origin": self._origin, "through": through, "moves": []})
        self._through = through
        self._staging.drop(through)
        self._published = None

    def _write_all(self, arrow: Any, table: Any, name: str) -> list[list[str]]:
        """Writes the files of a table; all of them, or none stays. Returns where each belongs."""
        moves: list[list[str]] = []
        try:
            for place, part in _parts(arrow, table):
                moves.append([f"{len(moves)}.parquet", f"{place}/{name}"])
                self._write(part, moves[-1][0])
        except OSError:
            for written, _ in moves:
                (self._folder / ".staged" / written).unlink(missing_ok=True)
            raise
        return moves

    def _write(self, table: Any, name: str) -> None:
        from pyarrow import parquet

        path = self._folder / ".staged" / name
        parquet.write_table(table, path)
        with open(path, "rb") as file:
            os.fsync(file.fileno())

    def _move(self, moves: Sequence[Sequence[str]]) -> None:
        for name, place in moves:
            path, target = self._folder / ".staged" / name, self._folder / place
            if path.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
                sync_folder(target.parent)
                sync_folder(target.parent.parent)
        if moves:
            sync_folder(self._folder)


_ROW_BYTES = 64  # of a staged row, at the least


def _parts(arrow: Any, table: Any) -> list[tuple[str, Any]]:
    """The table cut by stream and day, with the folder of each part."""
    import pyarrow.compute as compute

    times = table["timestamp"].cast(arrow.int64())
    days = compute.divide(times, DAY)  # towards zero: a time before 1970 may belong to the day before
    days = compute.subtract(days, compute.less(times, compute.multiply(days, DAY)).cast(arrow.int64()))
    table = table.append_column("day", days)
    parts = []
    for stream in table["stream"].unique().to_pylist():
        of_stream = table.filter(compute.equal(table["stream"], stream))
        for day in of_stream["day"].unique().to_pylist():
            part = of_stream.filter(compute.equal(of_stream["day"], day)).drop_columns(["stream", "day"])
            parts.append((f"stream={quote(stream, safe=' ')}/date={_date(day)}", part))
    return parts


def _date(day: int) -> str:
    try:
        return (datetime.date(1970, 1, 1) + datetime.timedelta(day)).isoformat()
    except OverflowError:
        return _NO_DAY


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _field(arrow: Any, name: str, kind: Any) -> Any:
    try:
        return arrow.field(name, arrow.type_for_alias(kind) if isinstance(kind, str) else kind)
    except (ValueError, TypeError) as error:
        raise MillWheelError(
            f"Parquet: the type of {name!r} is {kind!r}, which is none of Arrow's"
        ) from error


def _import() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise MillWheelError(
            f"Parquet needs pyarrow, which cannot be imported ({error}): pip install 'millwheel-spark[arrow]'"
        ) from error
    return pyarrow


_publishers: dict[Path, Publisher] = {}


def _publisher(folder: Path) -> Publisher:
    """This process's publisher of a folder: the sinks of several streams may share one."""
    if folder not in _publishers:
        _publishers[folder] = Publisher(folder)
    return _publishers[folder]
