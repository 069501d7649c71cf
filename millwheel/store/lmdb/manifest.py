"""What a store in a folder is: `store.json`, written once, when all the files beside it are there.

It has the format, the number of shards, and an identity that no other store has. Whoever opens a store reads
it first: without it nothing there is a store yet, and nothing has been written to the files. So a process
that only reads never meets a half-made store, and of two that make one at the same moment, one decides.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from millwheel.errors import StoreError

NAME = "store.json"
FORMAT = 2
"""2: rows have a checksum. 1 had none, and its identity was an entry of the journal."""


@dataclass(frozen=True)
class Identity:
    """Which store it is."""

    shards: int
    id: str


def private_folder(path: Path) -> None:
    """Makes a folder that only this user can read; one that is there stays as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, data: bytes) -> Path:
    """Writes a file, durably, under a temporary name beside ``path``; returns the name."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return part


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def signed(value: dict[str, Any]) -> bytes:
    """A small file: JSON with a checksum in it."""
    return json.dumps({**value, "checksum": _checksum(value)}, sort_keys=True).encode() + b"\n"


def unsigned(data: bytes) -> dict[str, Any] | None:
    """The inverse of `signed`; None where it is damaged."""
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
    """The identity of the store in a folder; None where there is no store, or it is not finished."""
    try:
        data = (folder / NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    value = unsigned(data)
    if value is None:
        raise StoreError(
            f"the store {folder} is damaged: its file {NAME} is not what was written. Restore the whole "
            "folder from a backup, or remove it and start anew"
        )
    if value["format"] != FORMAT:
        raise StoreError(
            f"the store {folder} has format {value['format']}, and this millwheel reads format {FORMAT}: "
            "use the millwheel that made it, or a newer one"
        )
    return Identity(value["shards"], value["id"])


def decide_identity(folder: Path, shards: int) -> Identity:
    """Finishes a store whose files are all there; returns its identity, or that of who was faster."""
    value = {"format": FORMAT, "shards": shards, "id": uuid.uuid4().hex}
    part = write_private(folder / NAME, signed(value))
    try:
        os.link(part, folder / NAME)  # the whole file or nothing, and only the first one
    except FileExistsError:
        pass
    finally:
        part.unlink()
    sync_folder(folder)
    found = read_identity(folder)
    assert found is not None
    return found
