"""Parquet files as side tables."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from millwheel.errors import InputError
from millwheel.injectors.arrow_table import import_arrow
from millwheel.injectors.object_file import open_table_file
from millwheel.model.lakehouse import below, place
from millwheel.model.secrets import without_secrets
from millwheel.model.side_table import Rows, SideTable
from millwheel.objects import open_objects


class Parquet(SideTable):
    """The rows of a Parquet file, a folder of them, or a pattern.

    ``path`` is a path or a URL (``s3://bucket/users/``; credentials come from the environment). ``columns``
    are those that are read. Files are read again only where one of them has changed.
    """

    def __init__(self, path: str | os.PathLike[str], *, columns: Sequence[str] | None = None) -> None:
        import_arrow()
        self._path = place(path)
        self._columns = None if columns is None else list(columns)

    def __repr__(self) -> str:
        return f"Parquet({without_secrets(self._path)!r})"

    def token(self) -> Any:
        """Return the names, sizes and times of the files."""
        return sorted(self._files())

    def read(self) -> Rows:
        """Return the rows of all files."""
        columns: dict[str, None] = {}
        rows: list[dict[str, Any]] = []
        for path, _, _ in sorted(self._files()):
            with open_table_file(path, repr(self)) as file:
                table = file.read(columns=self._columns)
            columns |= dict.fromkeys(table.column_names)
            rows += table.to_pylist()
        lacking = [name for name in self._columns or () if name not in columns]
        if lacking:
            raise InputError(f"there is no column {lacking[0]!r}; there are {', '.join(columns)}")
        return Rows(list(columns), rows)

    def _files(self) -> list[tuple[str, int, float]]:
        found = list(self._objects() if "://" in self._path else self._local())
        if not found:
            raise InputError("there is no file: check the path")
        return found

    def _local(self) -> Iterator[tuple[str, int, float]]:
        if os.path.isdir(self._path):
            names = glob.glob(f"{glob.escape(self._path)}/**/*.parquet", recursive=True)
        else:
            names = glob.glob(self._path, recursive=True)
        for name in names:
            if not os.path.basename(name).startswith((".", "_")):
                status = os.stat(name)
                yield name, status.st_size, status.st_mtime

    def _objects(self) -> Iterator[tuple[str, int, float]]:
        parts = urlsplit(self._path)
        if parts.path.endswith(".parquet"):
            folder, _, wanted = parts.path.rpartition("/")
        else:
            folder, wanted = parts.path.rstrip("/"), ""
        url = parts._replace(path=folder).geturl()
        for entry in open_objects(url, error=InputError).list(""):
            if entry.name == wanted or (not wanted and entry.name.endswith(".parquet")):
                yield below(url, entry.name), entry.size, entry.modified
