"""Records as rows of a Delta table."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.model.lakehouse import below, client_options, import_delta, place
from millwheel.model.record import Record
from millwheel.model.secrets import environment_secrets, hide, secrets_of, without_secrets
from millwheel.model.sink import Sink
from millwheel.sinks import table_publisher
from millwheel.sinks.arrow_rows import DATE, ArrowRows
from millwheel.sinks.object_staging import ObjectStaging
from millwheel.sinks.staging import Staging
from millwheel.sinks.table_publisher import COMPACT_AFTER, EVERY, ROWS, Options, TablePublisher


class Delta(Sink):
    """Appends records to a Delta table, exactly once; or upserts them by key.

    ``uri`` is a folder or a URL (``s3://bucket/table``; credentials come from the environment). The columns
    are ``key``, ``timestamp``, and ``value`` as JSON text; with ``schema`` (names of fields to types of
    Arrow, as ``{"count": "int64"}``, or a `pyarrow.Schema`) the fields of values that are dicts are columns
    instead. A missing table is created; missing columns are added.

    ``partition_by`` names columns, or ``"date"`` for the day of the timestamp (UTC), which becomes a column.
    With ``upsert_on`` (columns), a row replaces the one with the same values there.

    The rows of committed epochs are one commit of the table: every ``every`` seconds (0: with each epoch),
    after ``rows`` rows, and at the end. Its application transaction is the last epoch. After
    ``compact_after`` commits (0: never) small files are compacted.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        schema: Any = None,
        partition_by: Sequence[str] | str = (),
        upsert_on: Sequence[str] | str = (),
        every: float = EVERY,
        rows: int = ROWS,
        compact_after: int = COMPACT_AFTER,
    ) -> None:
        import_delta()
        self._uri = place(uri)
        self._partition_by = columns("Delta", "partition_by", partition_by)
        self._upsert_on = columns("Delta", "upsert_on", upsert_on)
        self._rows = ArrowRows("Delta", schema, date=DATE in self._partition_by)
        check_columns("Delta", self._rows, self._partition_by, self._upsert_on)
        self._options = Options(every, rows, compact_after)
        self._staging: Any = None

    def __repr__(self) -> str:
        return f"Delta({without_secrets(self._uri)!r})"

    def _table(self) -> DeltaRows:
        return DeltaRows(repr(self), self._uri, self._rows, self._partition_by, self._upsert_on)

    def open(self) -> None:
        self._table().open()

    def begin(self, origin: str, epoch: int) -> None:
        self._staging = staging(self._uri, origin, repr(self))
        publisher = TablePublisher(repr(self), self._table(), self._staging)
        table_publisher.begin(self._uri, publisher, origin, epoch, self._options)

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        if records:
            self._staging.put(epoch, shard, self._rows.encode(records))

    def commit(self, epoch: int) -> None:
        table_publisher.commit(self._uri, epoch)

    def close(self) -> None:
        table_publisher.close(self._uri)


class DeltaRows:
    """A Delta table; its marker is an application transaction for each store."""

    def __init__(
        self,
        sink: str,
        uri: str,
        rows: ArrowRows,
        partition_by: list[str],
        upsert_on: list[str],
    ) -> None:
        self._delta = import_delta()
        self._sink = sink
        self._uri, self._storage_options = client_options(uri)
        self._rows = rows
        self._partition_by = partition_by
        self._upsert_on = upsert_on

    def open(self) -> None:
        """Create the table if it is missing; check the schema of an existing one."""
        options = {"storage_options": self._storage_options or None}
        try:
            if not self._delta.DeltaTable.is_deltatable(self._uri, **options):
                self._delta.DeltaTable.create(
                    self._uri, self._rows.schema, mode="ignore", partition_by=self._partition_by, **options
                )
            table = self._load()
            there = dict(zip(_arrow_schema(table).names, _arrow_schema(table).types, strict=True))
            partitions = list(table.metadata().partition_columns)
        except Exception as error:
            raise self._error(error) from None
        check_schema(self._sink, self._rows, there)
        if self._partition_by and partitions != self._partition_by:
            raise MillWheelError(
                f"{self._sink}: the table is partitioned by {', '.join(partitions) or 'nothing'}, not by "
                f"{', '.join(self._partition_by)}: leave partition_by out, or write to a new table"
            )

    def _load(self) -> Any:
        return self._delta.DeltaTable(self._uri, storage_options=self._storage_options or None)

    def marker(self, origin: str) -> int:
        """Return the last epoch of a store whose rows are in the table."""
        try:
            return int(self._load().transaction_version(_application(origin)) or 0)
        except Exception as error:
            raise self._error(error) from None

    def add(self, rows: Any, origin: str, epoch: int) -> bool:
        """Commit rows and the marker; False if another commit has moved the marker."""
        delta = self._delta
        try:
            table = self._load()
            if int(table.transaction_version(_application(origin)) or 0) >= epoch:
                return False
            commit = delta.CommitProperties(
                custom_metadata={"millwheel": origin, "epoch": str(epoch)},
                app_transactions=[delta.Transaction(_application(origin), epoch)],
            )
            if self._upsert_on:
                self._merge(table, newest(rows, self._upsert_on), commit)
            else:
                delta.write_deltalake(
                    table, rows, mode="append", schema_mode="merge", commit_properties=commit
                )
        except delta.exceptions.CommitFailedError:
            return False
        except Exception as error:
            raise self._error(error) from None
        return True

    def _merge(self, table: Any, rows: Any, commit: Any) -> None:
        same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in self._upsert_on)
        merge = table.merge(
            rows, same, source_alias="s", target_alias="t", merge_schema=True, commit_properties=commit
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def compact(self) -> None:
        """Compact small files, partition by partition."""
        try:
            self._load().optimize.compact()
        except Exception as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> MillWheelError:
        if isinstance(error, MillWheelError):
            return error
        text = hide(error, [*environment_secrets(), *secrets_of(self._uri)]).strip()
        return MillWheelError(
            f"{self._sink}: the table cannot be written ({text}): check that it exists and is writable, "
            "and run again; nothing is lost"
        )


def columns(sink: str, option: str, names: Sequence[str] | str) -> list[str]:
    """Return the column names of an option, one or several."""
    found = [names] if isinstance(names, str) else list(names)
    if not all(isinstance(name, str) and name for name in found):
        raise MillWheelError(f"{sink}: {option} takes names of columns, not {names!r}")
    return found


def check_columns(sink: str, rows: ArrowRows, partition_by: list[str], upsert_on: list[str]) -> None:
    """Refuse names of an option that are not columns."""
    for option, names in (("partition_by", partition_by), ("upsert_on", upsert_on)):
        strange = [name for name in names if name not in rows.names]
        if strange:
            raise MillWheelError(
                f"{sink}: {option} names {', '.join(strange)}, which is not one of the columns "
                f"{', '.join(rows.names)}: add it to schema="
            )


def check_schema(sink: str, rows: ArrowRows, there: Mapping[str, Any]) -> None:
    """Refuse columns of a table with another type than the sink's."""
    for field in rows.schema:
        found = there.get(field.name)
        if found is not None and _plain(found) != _plain(field.type):
            raise MillWheelError(
                f"{sink}: the table's column {field.name!r} is {found}, not {field.type}: change schema=, or "
                "write to a new table"
            )


def _plain(kind: Any) -> str:
    """A type without its memory layout, which formats do not keep."""
    return str(kind).replace("large_", "").replace("_view", "").replace("element:", "item:")


def newest(rows: Any, names: Sequence[str]) -> Any:
    """Return the last row of each combination of values in some columns."""
    keys = zip(*(rows[name].to_pylist() for name in names), strict=True)
    last = {key: index for index, key in enumerate(keys)}
    return rows.take(sorted(last.values())) if len(last) < len(rows) else rows


def staging(uri: str, origin: str, sink: str) -> Staging | ObjectStaging:
    """Return the staging of a table: a hidden folder of it, one for each store."""
    if "://" in uri:
        return ObjectStaging(below(uri, f"_millwheel/{origin}"), sink)
    return Staging(Path(uri) / "_millwheel" / origin, sink)


def _application(origin: str) -> str:
    return f"millwheel-{origin}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _arrow_schema(table: Any) -> Any:
    import pyarrow

    return pyarrow.schema(table.schema().to_arrow())
