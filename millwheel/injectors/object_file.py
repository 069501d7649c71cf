"""Parquet files on disks and on object storage, read in pieces."""

from __future__ import annotations

import io
from typing import Any
from urllib.parse import urlsplit

from millwheel.errors import InputError
from millwheel.injectors.arrow_table import import_arrow
from millwheel.objects import explained, open_client

_BUFFER = 1 << 20  # the least bytes of a request, which takes a millisecond


def open_table_file(path: str, name: str) -> Any:
    """Return a `pyarrow.parquet.ParquetFile` of a path or a URL."""
    arrow = import_arrow()
    import pyarrow.parquet

    try:
        if "://" not in path:
            return pyarrow.parquet.ParquetFile(path)
        return pyarrow.parquet.ParquetFile(arrow.PythonFile(open_seekable(path), mode="r"))
    except FileNotFoundError as error:
        raise InputError(
            f"{name}: {path} was removed before it was read: keep removed files for longer than the pipeline "
            "is down (vacuum, expire_snapshots)"
        ) from error


class ObjectFile(io.RawIOBase):
    """An object as a file, for readers that need all methods of a file."""

    def __init__(self, reader: Any, url: str) -> None:
        self._reader = reader
        self._url = url

    def readable(self) -> bool:
        """True: it is readable."""
        return True

    def seekable(self) -> bool:
        """True: it is seekable."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return int(self._reader.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a position, and return it."""
        return int(self._reader.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return the number of bytes."""
        with explained(self._url, InputError):
            data = self._reader.read(len(buffer))
        buffer[: len(data)] = bytes(data)
        return len(data)


def open_seekable(url: str) -> ObjectFile:
    """Return an object as a file that can be read and sought in."""
    import obstore

    parts = urlsplit(url)
    folder, _, name = parts.path.rpartition("/")
    client = open_client(parts._replace(path=folder).geturl(), error=InputError)
    with explained(url, InputError):
        return ObjectFile(obstore.open_reader(client, name, buffer_size=_BUFFER), url)
