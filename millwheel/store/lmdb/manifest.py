"""The manifest of a store in a folder: `store.json`, written once, last.

It has the format, the numbers of shards and of tablets, and a unique identity. A process that opens a store
reads it first: without it the folder is not a store yet, and nothing has been written to its files. So a
process that only reads never sees a half-made store, and of two that make one at the same moment, one wins.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from millwheel.disk import sync_folder
from millwheel.errors import StoreError
from millwheel.model.keys import TABLETS

NAME = "store.json"
FORMAT = 2
"""2: rows have a checksum. 1 had none, and its identity was a journal entry."""
FORMAT_OF_MANY = 3
"""3: it has a number of tablets, which is not 64."""


@dataclass(frozen=True)
class Identity:
    """The identity of a store."""

    shards: int
    id: str
    tablets: int = TABLETS


def private_folder(path: Path) -> None:
    """Makes a folder that only this user can read; an existing one is not changed."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, data: bytes) -> Path:
    """Writes a file durably, under a temporary name beside ``path``; returns it."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return part


def signed(value: dict[str, Any]) -> bytes:
    """Encodes a small file: JSON with a checksum in it."""
    return json.dumps({**value, "checksum": _checksum(value)}, sort_keys=True).encode() + b"\n"


def unsigned(data: bytes) -> dict[str, Any] | None:
    """The inverse of `signed`; None if it is damaged."""
    try:
        value = json.loads(data)
        checksum = value.pop("checksum")
        whole = checksum == _checksum(value)
    except (ValueError, AttributeError, KeyError, TypeError):
        return None
    return value if whole else None


def _checksum(value: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(value, sort_keys=True).encode())


def read_identity(folder: Path) -> Identity | None:
    """The identity of the store in a folder; None: no store, or an unfinished one."""
    try:
        data = (folder / NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    value = unsigned(data)
    if value is None:
        raise StoreError(
            f"the store {folder} is damaged: its file {NAME} is not what was written. Restore the whole "
            "folder from a backup, or remove it and start again"
        )
    check_manifest(value, f"the store {folder}", (FORMAT, FORMAT_OF_MANY))
    return identity_in(value)


def check_manifest(value: dict[str, Any], store: str, formats: tuple[int, int]) -> None:
    """Refuses a manifest of another format."""
    if value["format"] not in formats:
        raise StoreError(
            f"{store} has format {value['format']}, and this millwheel reads formats {formats[0]} and "
            f"{formats[1]}: use the millwheel that made it, or a newer one"
        )


def new_identity(shards: int, tablets: int, formats: tuple[int, int]) -> dict[str, Any]:
    """The content of a manifest, in the format without or with a number of tablets."""
    many = {} if tablets == TABLETS else {"tablets": tablets}
    return {"format": formats[bool(many)], "shards": shards, "id": uuid.uuid4().hex, **many}


def identity_in(value: dict[str, Any]) -> Identity:
    """The identity in a manifest."""
    return Identity(value["shards"], value["id"], value.get("tablets", TABLETS))


def decide_identity(folder: Path, shards: int, tablets: int = TABLETS) -> Identity:
    """Completes a store whose files exist; returns its identity, or the faster one's."""
    value = new_identity(shards, tablets, (FORMAT, FORMAT_OF_MANY))
    part = write_private(folder / NAME, signed(value))
    try:
        os.link(part, folder / NAME)  # atomic, and only the first one succeeds
    except FileExistsError:
        pass
    finally:
        part.unlink()
    sync_folder(folder)
    found = read_identity(folder)
    assert found is not None
    return found
