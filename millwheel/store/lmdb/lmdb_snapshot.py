"""Readings of one LMDB environment, with the checksums of values or without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from millwheel.store.base import Range
from millwheel.store.lmdb.checksum import digest, is_whole
from millwheel.store.lmdb.lmdb_errors import DATA
from millwheel.store.lmdb.pages import Damaged

WRITES = b"\x00writes"
"""The entry that counts the writes; sorts before every other."""


class LmdbSnapshot:
    """A read transaction."""

    __slots__ = ("_txn",)

    def __init__(self, txn: Any) -> None:
        self._txn = txn  # opened without buffers: it returns bytes, though the annotations allow more

    def get(self, key: bytes) -> bytes | None:
        return cast(bytes | None, self._txn.get(key))

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._txn.get, keys))

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor() as cursor:
            if not cursor.set_range(start):
                return
            for key, value in cursor:
                if key >= stop:
                    return
                yield key, value

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Does nothing: a read is a memory access here."""


class CheckedSnapshot(LmdbSnapshot):
    """A read transaction of an environment with checksums."""

    __slots__ = ("_path",)

    def __init__(self, txn: Any, path: Path) -> None:
        super().__init__(txn)
        self._path = path

    def get(self, key: bytes) -> bytes | None:
        stored = self._txn.get(key)
        return stored if stored is None else self._value(key, stored)

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = []
        get = self._txn.get
        for key in keys:
            stored = get(key)
            if stored is not None:
                value = stored[:-4]
                if not stored.endswith(digest(key + value)[:4]):
                    raise self._damaged(key)
                stored = value
            found.append(stored)
        return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, stored in super().scan(start, stop):
            value = stored[:-4]
            if not stored.endswith(digest(key + value)[:4]):
                raise self._damaged(key)
            if key != WRITES:
                yield key, value

    def _value(self, key: bytes, stored: bytes) -> bytes:
        if not is_whole(key, stored):
            raise self._damaged(key)
        return stored[:-4]

    def _damaged(self, key: bytes) -> Damaged:
        return Damaged(self._path / DATA, f"the entry {key[:40].hex()} has a wrong checksum")
