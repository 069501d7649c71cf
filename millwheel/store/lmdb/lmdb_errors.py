"""Errors of LMDB and of the file system, with advice."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from millwheel.errors import StoreError
from millwheel.store.lmdb.pages import Damaged

DATA = "data.mdb"
"""The file of an environment."""
DRIVER_LOCK = "driver.lock"
"""The file beside the environments that the store's driver keeps locked."""
_DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.PanicError)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns errors of LMDB and the file system into a `StoreError` with advice."""
    try:
        yield
    except _DAMAGE as error:
        raise Damaged(path / DATA, f"LMDB cannot read a page ({error})") from error
    except lmdb.Error as error:
        raise StoreError(_advice(path, str(error))) from error
    except OSError as error:
        raise StoreError(_advice(path, str(error), error.errno)) from error


def holder(path: Path) -> str:
    """The name in the lock file."""
    try:
        return (path / DRIVER_LOCK).read_text().strip() or "another driver"
    except OSError:
        return "another driver"


def _advice(path: Path, text: str, code: int | None = None) -> str:
    if code == errno.ENOSPC or "No space left" in text:
        return (
            f"the store {path} has no room to write ({text}): the disk is full. Nothing of this write is "
            "stored; free some space and run again"
        )
    if code == errno.EIO or "Input/output error" in text:
        # LMDB reports this also for a write that the file system cut short for lack of space.
        return (
            f"the store {path} cannot be written ({text}): the disk is full, or it is failing. Nothing of "
            "this write is stored; free some space, or check the disk, and run again"
        )
    if "already open in this process" in text:
        return (
            f"the store {path.parent} is in use by {holder(path.parent)}: one driver runs a pipeline at a "
            "time; stop that one first, or give this one a store of its own"
        )
    if code in (errno.EACCES, errno.EPERM, errno.EROFS) or "Permission denied" in text:
        return f"the store {path} cannot be written ({text}): choose a folder that this user may write"
    return f"the store {path} cannot be used ({text})"
