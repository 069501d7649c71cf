"""The seal of a store: the state of its files when a driver last closed it.

While it is valid, nothing else need be checked. A store that was not closed, or was written afterwards, is
audited entry by entry. The seal decides nothing alone: one that is damaged or invalid means an audit.
But a file of an older transaction than the seal's is an older copy of it, whatever its contents.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import xxhash

from millwheel.disk import sync_folder
from millwheel.store.lmdb.manifest import signed, unsigned, write_private

NAME = "seal.json"
_CHUNK = 4 << 20  # bytes read at once


class Mark(NamedTuple):
    """One file: its last transaction, and the digest of its bytes."""

    transaction: int
    digest: str


def digest_of(file: int) -> str:
    """The digest of an open file."""
    found = xxhash.xxh3_128()
    place = 0
    while chunk := os.pread(file, _CHUNK, place):
        found.update(chunk)
        place += len(chunk)
    return found.hexdigest()


def read_seal(folder: Path) -> dict[str, Mark]:
    """By environment: its mark; empty if unknown."""
    try:
        value = unsigned((folder / NAME).read_bytes())
    except OSError:
        return {}
    return {name: Mark(*mark) for name, mark in value.items()} if value is not None else {}


def write_seal(folder: Path, marks: dict[str, Mark]) -> None:
    """Replaces the seal, durably."""
    part = write_private(folder / NAME, signed({name: list(mark) for name, mark in marks.items()}))
    os.replace(part, folder / NAME)
    sync_folder(folder)


def remove_seal(folder: Path) -> None:
    """Removes the seal, durably."""
    (folder / NAME).unlink(missing_ok=True)
    sync_folder(folder)
