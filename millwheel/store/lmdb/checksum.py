"""The checksum behind each value of a store in LMDB: four bytes of the key and the value.

The key is in it, so that a value that turns up under another key is found out too.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

SIZE = 4
"""Bytes. Of four billion damages one is not seen; eight would make an index entry a fifth larger."""

digest = xxhash.xxh3_64_digest


def sealed(key: bytes, value: bytes) -> bytes:
    """A value as it is stored."""
    return value + digest(key + value)[:SIZE]


def seal_all(entries: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Entries as they are stored."""
    return [(key, value + digest(key + value)[:4]) for key, value in entries]


def is_whole(key: bytes, stored: bytes) -> bool:
    """Whether a stored value is what was written under its key.

    >>> is_whole(b"k", sealed(b"k", b"value")), is_whole(b"l", sealed(b"k", b"value"))
    (True, False)
    """
    return stored.endswith(digest(key + stored[:-4])[:4])
