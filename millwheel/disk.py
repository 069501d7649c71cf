"""Durable writes to a local disk."""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_all(file: FileIO, data: bytes) -> None:
    """Writes all data unbuffered: after a full disk nothing is written later."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
