"""Delta tables with appends, as injectors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from millwheel.errors import InputError
from millwheel.injectors.arrow_table import import_arrow
from millwheel.injectors.object_file import open_table_file
from millwheel.injectors.table_log import SLACK, DataFile, Log, TableLog
from millwheel.injectors.units import Unit
from millwheel.model.injector import Errors
from millwheel.model.lakehouse import below, client_options, import_delta, place
from millwheel.model.secrets import environment_secrets, hide, secrets_of, without_secrets
from millwheel.model.time import DAY, MINUTE
from millwheel.objects import open_objects


class Delta(TableLog):
    """Injects the rows of a Delta table, and those appended to it, each once.

    ``uri`` is a folder or a URL (``s3://bucket/table``; credentials come from the environment). A value is a
    dict of the columns; ``timestamp`` names the one with the event time (of a time type, or in ``unit``),
    ``id`` one with a unique name of a record, if there is one.

    The table is read as it is when the pipeline first starts, then version by version. `millwheel.run` reads
    to the newest version at its start; `millwheel.start` follows the table, with a watermark
    that stays ``slack`` behind the newest timestamp. Versions that only rewrite rows (a compaction) are
    skipped; one that removes or changes rows is an error.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
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
        import_delta()
        self._uri = place(uri)

    def __repr__(self) -> str:
        return f"Delta({without_secrets(self._uri)!r})"

    def _open_log(self) -> Log:
        return DeltaLog(self._uri, repr(self))


class DeltaLog:
    """The log of a Delta table: a JSON file for each version with its added files."""

    def __init__(self, uri: str, name: str) -> None:
        self._delta = import_delta()
        self._uri = uri
        self._name = name
        self._place, self._options = client_options(uri)
        self._table: Any = None

    def _load(self, version: int | None = None) -> Any:
        return self._delta.DeltaTable(self._place, version=version, storage_options=self._options or None)

    def newest(self) -> int | None:
        """Return the newest version of the table."""
        try:
            if self._table is None:
                if not self._delta.DeltaTable.is_deltatable(
                    self._place, storage_options=self._options or None
                ):
                    return None
                self._table = self._load()
                self._check(self._table)
            self._table.update_incremental()
            return int(self._table.version())
        except Exception as error:
            raise self._error(error) from None

    def _check(self, table: Any) -> None:
        mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mode != "none":
            raise InputError(
                f"{self._name}: its columns are mapped (delta.columnMapping.mode is {mode}), which is not "
                "supported: inject spark.readStream.format('delta') with SparkStream"
            )

    def columns(self) -> list[str]:
        """Return the names of the table's columns."""
        return list(self._schema().names)

    def _schema(self) -> Any:
        if self._table is None:
            self.newest()
        return import_arrow().schema(self._table.schema().to_arrow())

    def following(self, after: int, through: int) -> list[int]:
        """Return the versions after one: they have no gaps."""
        return list(range(after + 1, through + 1))

    def files(self, version: int, *, whole: bool) -> list[DataFile]:
        """Return the files that a version added, or all, the oldest first, by path."""
        if not whole:
            return sorted(self._added(version))
        try:
            table = self._load(version)
            self._check(table)
            actions = import_arrow().table(table.get_add_actions(flatten=False)).to_pylist()
            deleted = import_arrow().table(table.deletion_vectors()).num_rows
        except Exception as error:
            raise self._error(error) from None
        if deleted:
            raise InputError(
                f"{self._name}: it has deletion vectors, which are not supported: run REORG TABLE "
                "... APPLY (PURGE) first, or inject it with SparkTable"
            )
        actions.sort(key=lambda action: (action["modification_time"], action["path"]))
        return [
            self._file(action["path"], action.get("partition") or action.get("partition_values") or {},
                       action.get("num_records"))
            for action in actions
        ]  # fmt: skip

    def _added(self, version: int) -> Iterator[DataFile]:
        name = f"_delta_log/{version:020d}.json"
        data = self._bytes(name)
        if data is None:
            raise InputError(
                f"{self._name}: the log of version {version} was removed before it was read: read it within "
                "delta.logRetentionDuration, or use a new store, which begins with the table as it is"
            )
        for line in data.splitlines():
            action = json.loads(line)
            if action.get("remove", {}).get("dataChange"):
                raise InputError(
                    f"{self._name}: version {version} removes or changes rows, and injected records cannot "
                    "be retracted: inject tables that only grow by appends"
                )
            add = action.get("add")
            if add is not None and add.get("dataChange", True):
                stats = json.loads(add.get("stats") or "{}")
                yield self._file(unquote(add["path"]), add["partitionValues"], stats.get("numRecords"))

    def _bytes(self, name: str) -> bytes | None:
        if "://" in self._uri:
            return open_objects(self._uri, error=InputError).get(name)
        try:
            with open(f"{self._uri}/{name}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _file(self, path: str, partition: dict[str, Any], rows: int | None) -> DataFile:
        if rows is None:
            rows = int(open_table_file(self._at(path), self._name).metadata.num_rows)
        values = sorted((name, None if value is None else str(value)) for name, value in partition.items())
        return DataFile(path, rows, values)

    def _at(self, path: str) -> str:
        if "://" in path or path.startswith("/"):
            return place(path)
        return below(self._uri, path) if "://" in self._uri else f"{self._uri}/{path}"

    def read(self, file: DataFile) -> Iterator[Any]:
        """Yield the rows of a file, with its partition columns."""
        arrow = import_arrow()
        schema = self._schema()
        try:
            for batch in open_table_file(self._at(file.path), self._name).iter_batches():
                given = dict(file.details)
                arrays, fields = [], []
                for field in schema:
                    if field.name in batch.schema.names:
                        array = batch.column(field.name)
                    else:
                        value = arrow.scalar(given.get(field.name), arrow.string())
                        array = arrow.repeat(value.cast(field.type), batch.num_rows)
                    arrays.append(array)
                    fields.append(field.with_type(array.type).with_nullable(True))
                yield arrow.record_batch(arrays, schema=arrow.schema(fields))
        except Exception as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> InputError:
        if isinstance(error, InputError):
            return error
        text = hide(error, [*environment_secrets(), *secrets_of(self._uri)]).strip()
        return InputError(f"{self._name}: the table cannot be read ({text}): restore it, and run again")
