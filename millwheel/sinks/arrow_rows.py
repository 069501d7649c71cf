"""Records as Arrow rows, for lakehouse tables."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.model.extras import import_extra
from millwheel.model.record import Record
from millwheel.model.time import SECOND
from millwheel.sinks.json_values import json_text

DATE = "date"
"""A column with the date of each record's timestamp, for partitioning."""

# The years 1 to 9999: readers and writers of these formats fail for others, or read null.
_FIRST = -62_135_596_800 * SECOND
_LAST = 253_402_300_800 * SECOND - 1


class ArrowRows:
    """Columns: ``key``, ``timestamp``, and ``value`` as JSON or ``schema`` fields.

    It pickles, and is sent with its sink to the tasks.
    """

    def __init__(self, sink: str, schema: Any, *, date: bool = False) -> None:
        arrow = import_arrow(sink)
        self._sink = sink
        if isinstance(schema, arrow.Schema):
            fields = list(schema)
        else:
            fields = [arrow_field(arrow, sink, *item) for item in dict(schema or {}).items()]
        own = {"key", "timestamp"} | ({DATE} if date else set())
        taken = sorted(own & {field.name for field in fields})
        if taken:
            raise MillWheelError(
                f"{sink}: {', '.join(taken)} is already a column of the table: rename the field in schema="
            )
        self._fields = fields
        self._date = date
        self.schema = arrow.schema(
            [
                arrow.field("key", arrow.string(), nullable=False),
                arrow.field("timestamp", arrow.timestamp("us", "UTC"), nullable=False),
                *([arrow.field(DATE, arrow.date32())] if date else []),
                *(fields or [arrow.field("value", arrow.string())]),
            ]
        )

    @property
    def names(self) -> list[str]:
        """The columns' names, in order."""
        return list(self.schema.names)

    def encode(self, records: Sequence[Record]) -> bytes:
        """Return the records as a stream of Arrow's IPC format."""
        arrow = import_arrow(self._sink)
        buffer = io.BytesIO()
        with arrow.ipc.new_stream(buffer, self.schema) as writer:
            writer.write_batch(self._batch(records))
        return buffer.getvalue()

    def encode_parquet(self, records: Sequence[Record]) -> bytes:
        """Return the records as a Parquet file for Spark."""
        arrow = import_arrow(self._sink)
        from pyarrow import parquet

        buffer = io.BytesIO()
        parquet.write_table(arrow.Table.from_batches([self._batch(records)]), buffer)
        return buffer.getvalue()

    def _batch(self, records: Sequence[Record]) -> Any:
        arrow = import_arrow(self._sink)
        times = arrow.array([min(max(record.timestamp, _FIRST), _LAST) for record in records], arrow.int64())
        times = times.cast(arrow.timestamp("us", "UTC"))
        columns: list[Any] = [
            arrow.array([utf8_text(record.key) for record in records], arrow.string()),
            times,
        ]
        if self._date:
            columns.append(times.cast(arrow.date32()))
        if not self._fields:
            columns.append(arrow.array([json_text(record.value) for record in records], arrow.string()))
        columns += [field_column(self._sink, field, records) for field in self._fields]
        return arrow.record_batch(columns, schema=self.schema)


def field_column(sink: str, field: Any, records: Sequence[Record]) -> Any:
    """Return a field of the records' values as an Arrow array.

    Its texts are those of `utf8_text`.
    """
    arrow = import_arrow(sink)
    try:
        values = [record.value.get(field.name) for record in records]
        try:
            return arrow.array(values, field.type)
        except UnicodeEncodeError:
            return arrow.array(_utf8_value(values), field.type)
    except (AttributeError, arrow.ArrowException, TypeError, OverflowError) as error:
        raise MillWheelError(
            f"{sink}: a value has no field {field.name!r} that is {field.type} ({error}): the "
            "schema is for dicts whose fields have its types; convert them with map() before the sink"
        ) from error


def decode(batches: Iterable[bytes]) -> Any:
    """Return one Arrow table with the rows of all batches, in order.

    Batches that an earlier version of the pipeline staged may lack columns: those are null.
    """
    arrow = import_arrow("the sink")
    tables = [arrow.ipc.open_stream(batch).read_all() for batch in batches]
    return arrow.concat_tables(tables, promote_options="default")


def import_arrow(sink: str) -> Any:
    """Return pyarrow; the error has the fix if it is missing."""
    return import_extra(f"{sink} needs", "arrow", "pyarrow", "pyarrow.ipc")


def arrow_field(arrow: Any, sink: str, name: str, kind: Any) -> Any:
    """A column of a schema, by the name of its type or the type itself."""
    try:
        return arrow.field(name, arrow.type_for_alias(kind) if isinstance(kind, str) else kind)
    except (ValueError, TypeError) as error:
        raise MillWheelError(
            f"{sink}: the type of {name!r} is {kind!r}, which is not an Arrow type"
        ) from error


def utf8_text(text: str) -> str:
    """A text that UTF-8 can encode: lone surrogates are replaced."""
    return text.encode("utf-8", "replace").decode()


def _utf8_value(value: Any) -> Any:
    """A value whose texts are those of `utf8_text`."""
    if isinstance(value, str):
        return utf8_text(value)
    if isinstance(value, tuple):
        return tuple(map(_utf8_value, value))
    if isinstance(value, list):
        return [_utf8_value(one) for one in value]
    if isinstance(value, dict):
        return {_utf8_value(name): _utf8_value(one) for name, one in value.items()}
    return value
