"""Folders in memory that are removed after their process, also if it was killed.

A folder has a file that its process keeps locked; the kernel releases the lock when the process ends, in
any way and in any container. So a folder without a lock has no owner, and the next process that makes one
removes it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger("millwheel")

MEMORY = "/dev/shm"

_PREFIX = "millwheel-"
_OWNER = "owner"


class Scratch:
    """A folder of this process: see `path`."""

    def __init__(self, kind: str, place: str | None = None) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-", dir=place))
            with suppress(FileNotFoundError):  # another process has removed it before it was locked
                self._lock = os.open(self.path / _OWNER, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if os.path.exists(self.path / _OWNER):
                    return
                os.close(self._lock)

    def close(self) -> None:
        """Removes the folder."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def sweep(place: str = MEMORY) -> list[Path]:
    """Removes the folders of processes that ended; returns them."""
    removed = []
    for owner in Path(place).glob(f"{_PREFIX}*/{_OWNER}"):
        try:
            handle = os.open(owner, os.O_RDWR)
        except OSError:  # another user's, or just removed
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(owner.parent, ignore_errors=True)
            removed.append(owner.parent)
        except BlockingIOError:  # its process lives
            pass
        finally:
            os.close(handle)
    if removed:
        logger.info("removed %d folders in %s of processes that were killed", len(removed), place)
    return removed
