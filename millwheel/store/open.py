"""Opens a store by its path or URL."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from millwheel.errors import StoreError
from millwheel.objects import is_object_url
from millwheel.store.base import Store
from millwheel.store.keyspace import check_format
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.memory import MemoryStore
from millwheel.store.unfinished import refuse_unfinished

_POSTGRES = ("postgresql", "postgres")
_WITH_ID = re.compile(r"[?&]id=[0-9a-f]+$")


def open_store(where: str | os.PathLike[str], *, shards: int = 1) -> Store:
    """Opens or makes a store: a path, ``lmdb:///path``, ``postgresql://host/database``,
    ``s3://bucket/prefix`` (``gs://``, ``az://``, ``file:///shared``), or ``memory:``.

    >>> open_store("memory:").address
    'memory:'
    """
    return _open(where, shards=shards)


def open_existing(where: str | os.PathLike[str]) -> Store:
    """Opens a store that is there; one that is not there, or not finished, is an error, and is not made."""
    return _checked(_open(where, existing=True))


def open_to_read(where: str | os.PathLike[str]) -> Store:
    """Opens a store to look at it, also while it is being made or used: nothing is ever written."""
    return _checked(_open(where, readonly=True))


def _checked(store: Store) -> Store:
    """A store whose format this version reads, and no half of a copy; one that is being made has none yet."""
    try:
        with store.journal.snapshot() as snapshot:
            refuse_unfinished(snapshot)
            check_format(snapshot.get(b"format"))
    except BaseException:
        store.close()
        raise
    return store


def _open(
    where: str | os.PathLike[str], *, shards: int = 1, existing: bool = False, readonly: bool = False
) -> Store:
    text = os.fspath(where)
    if not isinstance(text, str) or not text:
        raise StoreError(f"a store is a path or a URL, not {where!r}")
    if text in ("memory:", "memory://"):
        return MemoryStore(shards)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return LmdbStore(text, shards=shards, existing=existing, readonly=readonly)
    if scheme in _POSTGRES:
        return _postgres(text, shards=shards, existing=existing, readonly=readonly)
    if is_object_url(text):
        from millwheel.store.objects.object_store import ObjectStore

        return ObjectStore(text, shards=shards, existing=existing, readonly=readonly)
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
        sync=query.get("sync", ["1"]) != ["0"],
        identity=query.get("id", [None])[0],  # only an address has it: such a store is there, or gone
        existing=existing,
        readonly=readonly,
    )


def _postgres(url: str, *, shards: int, existing: bool, readonly: bool) -> Store:
    try:
        from millwheel.store.postgres.postgres_store import PostgresStore
    except ImportError as error:
        raise StoreError(
            f"a store in PostgreSQL needs psycopg, which cannot be imported ({error}): "
            "pip install 'millwheel-spark[postgres]'"
        ) from error
    return PostgresStore(url, shards=shards, existing=existing, readonly=readonly)


def place_of(address: str) -> str:
    """Where an address leads, whichever store stands there: it has an identity besides.

    >>> place_of("lmdb:///state?sync=1&id=5f2"), place_of("postgresql://db/x?schema=s&id=5f2")
    ('lmdb:///state', 'postgresql://db/x?schema=s')
    """
    if address.partition("://")[0] in _POSTGRES:
        return address.partition("&id=")[0]
    if is_object_url(address):
        return _WITH_ID.sub("", address)
    return address.partition("?")[0]
