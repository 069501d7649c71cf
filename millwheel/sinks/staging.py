"""Staging: a hidden folder for batches until the driver publishes them.

    .staged/0000000012-00000003     the output of shard 3 in epoch 12, complete or absent
    .staged/state                   the published state, replaced atomically

Batches of an epoch that is not committed are written again when the epoch is run again.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from millwheel.disk import sync_folder, write_all
from millwheel.errors import FencedError, MillWheelError

logger = logging.getLogger("millwheel")


class Staged(NamedTuple):
    """The output of one shard in one epoch."""

    epoch: int
    shard: int
    path: Path

    def read(self) -> bytes:
        """Return its content."""
        return self.path.read_bytes()

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.path.stat().st_size


class Staging:
    """Durable batches by (epoch, shard): tasks put, the driver reads and drops."""

    def __init__(self, folder: Path, sink: str = "the sink") -> None:
        self.folder = folder
        self._sink = sink
        self._place = folder / ".staged"
        self._owner = ""

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Adds the sink, its folder and the fix to errors of writing."""
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            advice = "free some space on its disk" if full else "check that it exists and is writable"
            reason = error.strerror or error
            raise MillWheelError(
                f"{self._sink}: the sink's folder {self.folder} cannot be written ({reason}): {advice}, "
                "and run again; nothing is lost"
            ) from error

    def open(self) -> None:
        """Makes the folder; raises if it is not writable."""
        with self.writing():
            self._place.mkdir(parents=True, exist_ok=True)
            probe = self._place / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()

    def put(self, epoch: int, shard: int, data: bytes | Iterable[bytes]) -> None:
        """Puts a batch, whole or in pieces; that of an earlier attempt is overwritten."""
        with self.writing():
            write_whole(self._place / f"{epoch:010d}-{shard:08d}", data)

    def batches(self, after: int, through: int) -> list[Staged]:
        """The batches of some epochs, in order."""
        return sorted(item for item in self._all() if after < item.epoch <= through)

    def size(self) -> int:
        """Return the staged bytes."""
        return sum(item.size for item in self._all())

    def drop(self, through: int | None = None) -> None:
        """Removes the batches of epochs that were published (None: of all epochs)."""
        for item in self._all():
            if through is None or item.epoch <= through:
                item.path.unlink(missing_ok=True)

    def _all(self) -> Iterator[Staged]:
        for entry in os.scandir(self._place):
            epoch, mark, shard = entry.name.partition("-")
            if mark and epoch.isdecimal() and shard.isdecimal():
                yield Staged(int(epoch), int(shard), Path(entry.path))

    def state(self) -> dict[str, Any]:
        """The last saved state; empty at first."""
        try:
            found: dict[str, Any] = json.loads((self._place / "state").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def take(self) -> dict[str, Any]:
        """Makes this driver the only one that may save; returns the last saved state."""
        self.sweep()
        state = self.state()
        self._owner = uuid.uuid4().hex
        write_whole(self._place / "state", json.dumps({**state, "owner": self._owner}).encode())
        return state

    def sweep(self) -> None:
        """Removes half-written files of killed writers."""
        for entry in list(os.scandir(self._place)):
            if entry.name.startswith("."):
                Path(entry.path).unlink(missing_ok=True)

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the state, durably; refuses a driver that was taken over."""
        if self.state().get("owner") != self._owner:
            raise FencedError(f"another driver writes to {self.folder} now: this one stops")
        write_whole(self._place / "state", json.dumps({**state, "owner": self._owner}).encode())


class Later:
    """Calls a function once, some time after the first request.

    The function runs with `lock` held, which callers take for work that must not run concurrently.
    """

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        self.seconds = seconds
        self._function = function
        self._timer: threading.Timer | None = None
        self.lock = threading.RLock()

    def ask(self) -> None:
        """Requests a call, unless one is pending."""
        with self.lock:
            if self._timer is None:
                self._timer = threading.Timer(self.seconds, self._run)
                self._timer.daemon = True
                self._timer.start()

    def cancel(self) -> None:
        """Cancels a call that has not begun."""
        with self.lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _run(self) -> None:
        with self.lock:
            if self._timer is None:
                return
            self._timer = None
            try:
                self._function()
            except FencedError as error:
                logger.warning("%s", error)
            except MillWheelError as error:
                logger.warning("a sink could not publish, and will try again: %s", error)
                self.ask()
            except Exception:  # nothing is lost: it stays staged
                logger.warning("a sink could not publish, and will try again", exc_info=True)
                self.ask()


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Writes a file atomically and durably."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb", buffering=0) as file:
            for piece in (data,) if isinstance(data, bytes) else data:
                write_all(file, piece)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
