"""Opens a store by its path or URL."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from millwheel.errors import StoreError
from millwheel.model.keys import TABLETS
from millwheel.objects import is_object_url
from millwheel.store.base import Store
from millwheel.store.formats import check_format
from millwheel.store.keyspace import JournalKey
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.memory import MemoryStore
from millwheel.store.unfinished import refuse_unfinished

_POSTGRES = ("postgresql", "postgres")
_WITH_ID = re.compile(r"[?&]id=[0-9a-f]+$")


def open_store(where: str | os.PathLike[str], *, shards: int = 1, tablets: int = TABLETS) -> Store:
    """Opens or makes a store; ``shards`` and ``tablets`` are those of a new one.

    ``where`` is a path, ``lmdb:///path``, ``postgresql://host/database``, ``s3://bucket/prefix`` (``gs://``,
    ``az://``, ``file:///shared``), or ``memory:``.

    >>> open_store("memory:").address
    'memory:'
    """
    return _open(where, shards=shards, tablets=tablets)


def open_existing(where: str | os.PathLike[str]) -> Store:
    """Opens an existing store; a missing or unfinished one is an error."""
    return _checked(_open(where, existing=True))


def open_to_read(where: str | os.PathLike[str]) -> Store:
    """Opens a store read-only, also while it is being made or used."""
    return _checked(_open(where, readonly=True))


def _checked(store: Store) -> Store:
    """Checks the format of a store, and that it is not an unfinished copy."""
    try:
        with store.journal.snapshot() as snapshot:
            refuse_unfinished(snapshot)
            check_format(snapshot.get(JournalKey.FORMAT), store.tablets)
    except BaseException:
        store.close()
        raise
    return store


def _open(
    where: str | os.PathLike[str],
    *,
    shards: int = 1,
    tablets: int = TABLETS,
    existing: bool = False,
    readonly: bool = False,
) -> Store:
    text = os.fspath(where)
    if not isinstance(text, str) or not text:
        raise StoreError(f"a store is a path or a URL, not {where!r}")
    if text in ("memory:", "memory://"):
        return MemoryStore(shards, tablets)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return LmdbStore(text, shards=shards, tablets=tablets, existing=existing, readonly=readonly)
    if scheme in _POSTGRES:
        return _postgres(text, shards=shards, tablets=tablets, existing=existing, readonly=readonly)
    if is_object_url(text):
        from millwheel.store.objects.object_store import ObjectStore

        return ObjectStore(text, shards=shards, tablets=tablets, existing=existing, readonly=readonly)
    if scheme != "lmdb":
        raise StoreError(
            f"there is no store for {scheme}://: use a path, lmdb:///path, postgresql://host/database, "
            "s3://bucket/prefix (gs://, az://, file:///shared) or memory:"
        )
    parts = urlsplit(text)
    if not parts.path:
        raise StoreError(f"the store {text!r} names no path: write lmdb:///path")
    query: dict[str, list[Any]] = parse_qs(parts.query)
    return LmdbStore(
        unquote(parts.netloc + parts.path),
        shards=shards,
        tablets=tablets,
        sync=query.get("sync", ["1"]) != ["0"],
        identity=query.get("id", [None])[0],  # only an address has it: such a store exists, or was removed
        existing=existing,
        readonly=readonly,
    )


def _postgres(url: str, *, shards: int, tablets: int, existing: bool, readonly: bool) -> Store:
    try:
        from millwheel.store.postgres.postgres_store import PostgresStore
    except ImportError as error:
        raise StoreError(
            f"a store in PostgreSQL needs psycopg, which cannot be imported ({error}): "
            "pip install 'millwheel-spark[postgres]'"
        ) from error
    return PostgresStore(url, shards=shards, tablets=tablets, existing=existing, readonly=readonly)


def place_of(address: str) -> str:
    """The location of an address, without the store's identity.

    >>> place_of("lmdb:///state?sync=1&id=5f2"), place_of("postgresql://db/x?schema=s&id=5f2")
    ('lmdb:///state', 'postgresql://db/x?schema=s')
    """
    if address.partition("://")[0] in _POSTGRES:
        return address.partition("&id=")[0]
    if is_object_url(address):
        return _WITH_ID.sub("", address)
    return address.partition("?")[0]
