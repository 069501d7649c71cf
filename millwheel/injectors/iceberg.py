"""Iceberg tables with appends, as injectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors.table_log import SLACK, DataFile, Log, TableLog
from millwheel.injectors.units import Unit
from millwheel.model.injector import Errors
from millwheel.model.lakehouse import Catalog, import_iceberg
from millwheel.model.secrets import hide
from millwheel.model.time import DAY, MINUTE


class Iceberg(TableLog):
    """Injects the rows of an Iceberg table, and those appended to it, each once.

    ``catalog`` is the name of a catalog in pyiceberg's configuration, or its properties; ``table`` is
    ``"namespace.name"``. A value is a dict of the columns; ``timestamp`` names the one with the event time
    (of a time type, or in ``unit``), ``id`` one with a unique name of a record, if there is one.

    The table is read as it is when the pipeline first starts, then snapshot by snapshot. `millwheel.run`
    reads to the current snapshot at its start; `millwheel.start` follows the table, with a
    watermark that stays ``slack`` behind the newest timestamp. Snapshots that only rewrite rows
    (``replace``) are skipped; one that removes or changes rows is an error.
    """

    def __init__(
        self,
        catalog: str | Mapping[str, str],
        table: str,
        *,
        timestamp: str,
        id: str | None = None,
        unit: Unit | None = None,
        slack: int = SLACK,
        idle_after: int | None = MINUTE,
        errors: Errors = "stop",
        id_retention: int = DAY,
    ) -> None:
        super().__init__(timestamp, id, unit, slack, idle_after, errors, id_retention)
        import_iceberg()
        self._catalog = Catalog(catalog)
        self._table = table

    def __repr__(self) -> str:
        return f"Iceberg({self._catalog.name!r}, {self._table!r})"

    def _open_log(self) -> Log:
        return IcebergLog(self._catalog, self._table, repr(self))


class IcebergLog:
    """The snapshots of an Iceberg table; a version is a sequence number."""

    def __init__(self, catalog: Catalog, table: str, name: str) -> None:
        self._catalog = catalog
        self._table_name = table
        self._name = name
        self._loaded: Any = None
        self._table: Any = None

    def _load(self) -> Any:
        """Return the current table."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            if self._loaded is None:
                self._loaded = self._catalog.load()
            self._table = self._loaded.load_table(self._table_name)
        except NoSuchTableError:
            return None
        except Exception as error:
            raise self._error(error) from None
        return self._table

    def newest(self) -> int | None:
        """Return the sequence number of the current snapshot."""
        table = self._load()
        current = None if table is None else table.current_snapshot()
        if current is None:
            return None
        if table.format_version < 2:
            raise InputError(
                f"{self._name}: it has format version 1, whose snapshots have no numbers: upgrade "
                "it (format-version=2)"
            )
        return int(current.sequence_number)

    def columns(self) -> list[str]:
        """Return the names of the table's columns."""
        table = self._table or self._load()
        return [field.name for field in table.schema().fields]

    def _snapshots(self) -> dict[int, Any]:
        """Return the ancestors of the current snapshot, by sequence number."""
        found: dict[int, Any] = {}
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            found[snapshot.sequence_number] = snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)
        return found

    def _snapshot(self, version: int) -> Any:
        for fresh in (False, True):
            if fresh or self._table is None:
                self._load()
            found = self._snapshots() if self._table is not None else {}
            if version in found:
                return found[version]
        raise InputError(
            f"{self._name}: the snapshot with the sequence number {version} was removed before it was read: "
            "expire snapshots later, or use a new store, which begins with the table as it is"
        )

    def following(self, after: int, through: int) -> list[int]:
        """Return the snapshots after one; none before an expired one can be read."""
        if through > after:
            self._snapshot(through)
        found = self._snapshots() if self._table is not None else {}
        if through > after:
            known = {snapshot.sequence_number for snapshot in self._table.snapshots()}
            gone = set(range(after + 1, min(found))) - known  # others are of other branches
            if gone:
                self._snapshot(min(gone))
        return sorted(number for number in found if after < number <= through)

    def files(self, version: int, *, whole: bool) -> list[DataFile]:
        """Return the files that a snapshot added, or all, the oldest first, by path."""
        snapshot = self._snapshot(version)
        try:
            if whole:
                tasks = list(self._table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
                if any(task.delete_files for task in tasks):
                    raise InputError(
                        f"{self._name}: it has delete files, which are not supported: rewrite them first "
                        "(rewrite_data_files), or inject it with SparkTable"
                    )
                return [self._file(task.file) for task in sorted(tasks, key=lambda task: task.file.file_path)]
            operation = snapshot.summary.operation.value if snapshot.summary else "append"
            if operation == "replace":
                return []
            if operation != "append":
                raise InputError(
                    f"{self._name}: the snapshot {snapshot.snapshot_id} removes or changes rows "
                    f"({operation}), and injected records cannot be retracted: inject tables that only grow "
                    "by appends"
                )
            return sorted(self._file(file) for file in self._added(snapshot))
        except Exception as error:
            raise self._error(error) from None

    def _added(self, snapshot: Any) -> Iterator[Any]:
        from pyiceberg.manifest import ManifestEntryStatus

        for manifest in snapshot.manifests(self._table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                for entry in manifest.fetch_manifest_entry(self._table.io):
                    if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id in (
                        None,
                        snapshot.snapshot_id,
                    ):
                        yield entry.data_file

    def _file(self, file: Any) -> DataFile:
        return DataFile(file.file_path, int(file.record_count), _Whole(file))

    def read(self, file: DataFile) -> Iterator[Any]:
        """Yield the rows of a file, with the current columns of the table."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.table import FileScanTask

        if self._table is None:
            self._load()
        try:
            scan = ArrowScan(self._table.metadata, self._table.io, self._table.schema(), AlwaysTrue())
            yield from scan.to_record_batches([FileScanTask(file.details.file)])
        except FileNotFoundError as error:
            raise InputError(
                f"{self._name}: {file.path} was removed before it was read: expire snapshots later"
            ) from error
        except Exception as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> InputError:
        if isinstance(error, InputError):
            return error
        text = hide(error, self._catalog.secrets()).strip()
        return InputError(f"{self._name}: the table cannot be read ({text}): restore it, and run again")


class _Whole:
    """A data file of pyiceberg, without an order: files are sorted by path."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __lt__(self, other: object) -> bool:
        return False
