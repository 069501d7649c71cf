"""Records as rows of an Iceberg table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.model.lakehouse import Catalog, import_iceberg, place
from millwheel.model.record import Record
from millwheel.model.secrets import hide
from millwheel.model.sink import Sink
from millwheel.sinks import table_publisher
from millwheel.sinks.arrow_rows import DATE, ArrowRows
from millwheel.sinks.delta import check_columns, check_schema, columns, newest, staging
from millwheel.sinks.table_publisher import EVERY, ROWS, Options, TablePublisher

logger = logging.getLogger("millwheel")

_NO_RETRY = {"commit.retry.num-retries": "0"}
"""For the client: a commit that it retries would not compare the marker again."""


class Iceberg(Sink):
    """Appends records to an Iceberg table, exactly once; or upserts them by key.

    ``catalog`` is the name of a catalog in pyiceberg's configuration, or its properties
    (``{"type": "rest", "uri": ...}``). ``table`` is ``"namespace.name"``. The columns are ``key``,
    ``timestamp``, and ``value`` as JSON text; with ``schema`` (names of fields to types of Arrow, or a
    `pyarrow.Schema`) the fields of values that are dicts are columns instead. A missing namespace or table
    is created; missing columns are added.

    ``partition_by`` names columns, or ``"date"`` for the day of the timestamp (UTC). With ``upsert_on``
    (columns), a row replaces those with the same values there.

    The rows of committed epochs are one commit of the table: every ``every`` seconds (0: with each epoch),
    after ``rows`` rows, and at the end. The epoch is a property of the table and of the snapshot.
    """

    def __init__(
        self,
        catalog: str | Mapping[str, str],
        table: str,
        *,
        schema: Any = None,
        partition_by: Sequence[str] | str = (),
        upsert_on: Sequence[str] | str = (),
        every: float = EVERY,
        rows: int = ROWS,
    ) -> None:
        import_iceberg()
        self._catalog = Catalog(catalog)
        self._name = table
        if not isinstance(table, str) or "." not in table.strip("."):
            raise MillWheelError(f"Iceberg: the table is named 'namespace.name', not {table!r}")
        self._partition_by = columns("Iceberg", "partition_by", partition_by)
        self._upsert_on = columns("Iceberg", "upsert_on", upsert_on)
        self._rows = ArrowRows("Iceberg", schema)
        named = [name for name in self._partition_by if name != DATE or DATE in self._rows.names]
        check_columns("Iceberg", self._rows, named, self._upsert_on)
        self._options = Options(every, rows, compact_after=0)
        self._staging: Any = None
        self._place = ""  # of the table: its name is that of another table in another catalog

    def __repr__(self) -> str:
        return f"Iceberg({self._catalog.name!r}, {self._name!r})"

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that a task needs: the staging, no credentials of the catalog."""
        return {**self.__dict__, "_catalog": self._catalog.public()}

    def _table(self) -> IcebergRows:
        return IcebergRows(
            repr(self), self._catalog, self._name, self._rows, self._partition_by, self._upsert_on
        )

    def open(self) -> None:
        self._table().open()

    def begin(self, origin: str, epoch: int) -> None:
        table = self._table()
        self._place = table.location()
        self._staging = staging(self._place, origin, repr(self))
        publisher = TablePublisher(repr(self), table, self._staging)
        table_publisher.begin(self._place, publisher, origin, epoch, self._options)

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        if records:
            self._staging.put(epoch, shard, self._rows.encode(records))

    def commit(self, epoch: int) -> None:
        table_publisher.commit(self._place, epoch)

    def close(self) -> None:
        table_publisher.close(self._place)


class IcebergRows:
    """An Iceberg table; its marker is a table property, one for each store."""

    def __init__(
        self,
        sink: str,
        catalog: Catalog,
        name: str,
        rows: ArrowRows,
        partition_by: list[str],
        upsert_on: list[str],
    ) -> None:
        self._sink = sink
        self._catalog = catalog
        self._name = name
        self._rows = rows
        self._partition_by = partition_by
        self._upsert_on = upsert_on
        self._loaded: Any = None

    def open(self) -> None:
        """Create the table if it is missing; check the schema of an existing one."""
        try:
            catalog = self._catalog.load()
            if not catalog.table_exists(self._name):
                self._create(catalog)
            table = catalog.load_table(self._name)
            there = table.schema().as_arrow()
            partitions = [field.name for field in table.spec().fields]
        except Exception as error:
            raise self._error(error) from None
        check_schema(self._sink, self._rows, dict(zip(there.names, there.types, strict=True)))
        wanted = [_partition(name, self._rows)[0] for name in self._partition_by]
        if wanted and partitions != wanted:
            raise MillWheelError(
                f"{self._sink}: the table is partitioned by {', '.join(partitions) or 'nothing'}, not by "
                f"{', '.join(wanted)}: leave partition_by out, or write to a new table"
            )

    def _create(self, catalog: Any) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        # Many small commits: manifests are merged as they grow.
        properties = {"commit.manifest-merge.enabled": "true"}
        try:
            with catalog.create_table_transaction(
                self._name, schema=self._rows.schema, properties=properties
            ) as change:
                if self._partition_by:
                    with change.update_spec() as spec:
                        for name in self._partition_by:
                            title, source, transform = _partition(name, self._rows)
                            spec.add_field(source, transform, title)
        except TableAlreadyExistsError:  # another driver made it at the same moment
            logger.debug("%s: the table was created by another driver", self._sink)

    def location(self) -> str:
        """Return where the table's files are."""
        try:
            return self._catalog.with_parameters(place(self._load().location()))
        except Exception as error:
            raise self._error(error) from None

    def _load(self) -> Any:
        if self._loaded is None:
            self._loaded = self._catalog.load()
        return self._loaded.load_table(self._name)

    def marker(self, origin: str) -> int:
        """Return the last epoch of a store whose rows are in the table."""
        try:
            return _marker(self._load(), origin)
        except Exception as error:
            raise self._error(error) from None

    def add(self, rows: Any, origin: str, epoch: int) -> bool:
        """Commit rows and the marker; False: another commit came first, or it is unknown."""
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        try:
            table = self._load()
            if _marker(table, origin) >= epoch:
                return False
            table.metadata = table.metadata.model_copy(
                update={"properties": {**table.metadata.properties, **_NO_RETRY}}
            )
            if self._upsert_on:
                rows = newest(rows, self._upsert_on)
            with table.transaction() as change:
                with change.update_schema() as schema:
                    schema.union_by_name(rows.schema)
                summary = {"millwheel.store": origin, "millwheel.epoch": str(epoch)}
                if self._upsert_on and table.current_snapshot() is not None:
                    self._replace(change, rows, summary)
                else:
                    change.append(rows, snapshot_properties=summary)
                change.set_properties({_property(origin): str(epoch)})
        except (CommitFailedException, CommitStateUnknownException):
            return False
        except Exception as error:
            raise self._error(error) from None
        return True

    def _replace(self, change: Any, rows: Any, summary: dict[str, str]) -> None:
        from pyiceberg.table.upsert_util import create_match_filter

        same = create_match_filter(rows, self._upsert_on)
        change.overwrite(rows, overwrite_filter=same, snapshot_properties=summary)

    def compact(self) -> None:
        """Do nothing: other engines compact it (Spark's ``rewrite_data_files``)."""

    def _error(self, error: Exception) -> MillWheelError:
        if isinstance(error, MillWheelError):
            return error
        text = hide(error, self._catalog.secrets()).strip()
        return MillWheelError(
            f"{self._sink}: the table cannot be written ({text}): check that it exists and is writable, "
            "and run again; nothing is lost"
        )


def _property(origin: str) -> str:
    return f"millwheel.epoch.{origin}"


def _marker(table: Any, origin: str) -> int:
    return int(table.properties.get(_property(origin), 0))


def _partition(name: str, rows: ArrowRows) -> tuple[str, str, Any]:
    """Return the name of a partition field, its column, and its transform."""
    from pyiceberg.transforms import DayTransform, IdentityTransform

    if name == DATE and DATE not in rows.names:
        return "timestamp_day", "timestamp", DayTransform()
    return name, name, IdentityTransform()
