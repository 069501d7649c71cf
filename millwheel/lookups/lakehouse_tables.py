"""Delta and Iceberg tables as side tables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors.delta import DeltaLog
from millwheel.model.lakehouse import Catalog, import_delta, import_iceberg, place
from millwheel.model.secrets import hide, without_secrets
from millwheel.model.side_table import Rows, SideTable


class Delta(SideTable):
    """The rows of a Delta table's newest version, read again only if it is new."""

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        import_delta()
        self._uri = place(uri)

    def __repr__(self) -> str:
        return f"Delta({without_secrets(self._uri)!r})"

    def _newest(self) -> tuple[DeltaLog, int]:
        log = DeltaLog(self._uri, repr(self))
        version = log.newest()
        if version is None:
            raise InputError("there is no Delta table: check the path")
        return log, version

    def token(self) -> Any:
        """Return the newest version."""
        return self._newest()[1]

    def read(self) -> Rows:
        """Return the rows of the newest version."""
        log, version = self._newest()
        files = log.files(version, whole=True)
        rows = [row for file in files for batch in log.read(file) for row in batch.to_pylist()]
        return Rows(log.columns(), rows)


class Iceberg(SideTable):
    """The rows of an Iceberg table's current snapshot, read again only if new.

    ``catalog`` is the name of a catalog in pyiceberg's configuration, or its properties.
    """

    def __init__(self, catalog: str | Mapping[str, str], table: str) -> None:
        import_iceberg()
        self._catalog = Catalog(catalog)
        self._table = table

    def __repr__(self) -> str:
        return f"Iceberg({self._catalog.name!r}, {self._table!r})"

    def _load(self) -> Any:
        try:
            return self._catalog.load().load_table(self._table)
        except Exception as error:
            raise InputError(hide(error, self._catalog.secrets()).strip()) from None

    def token(self) -> Any:
        """Return the ID of the current snapshot."""
        snapshot = self._load().current_snapshot()
        return None if snapshot is None else snapshot.snapshot_id

    def read(self) -> Rows:
        """Return the rows of the current snapshot."""
        try:
            table = self._load().scan().to_arrow()
        except Exception as error:
            raise InputError(hide(error, self._catalog.secrets()).strip()) from None
        return Rows(table.column_names, table.to_pylist())
