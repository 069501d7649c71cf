"""Where tasks leave what they wrote until the driver publishes it: a hidden folder of a sink's folder.

    .staged/0000000012-00000003     what shard 3 wrote in epoch 12, whole or not there
    .staged/state                   what was published, replaced as a whole

What an epoch that is not committed has left is written again when the epoch is run again.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from millwheel.errors import FencedError, MillWheelError

logger = logging.getLogger("millwheel")


class Staged(NamedTuple):
    """What one shard wrote in one epoch."""

    epoch: int
    shard: int
    path: Path

    def read(self) -> bytes:
        """Return what was written."""
        return self.path.read_bytes()

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.path.stat().st_size


class Staging:
    """Durable batches by (epoch, shard). Tasks put them; the driver alone reads and drops them."""

    def __init__(self, folder: Path, sink: str = "the sink") -> None:
        self.folder = folder
        self._sink = sink
        self._place = folder / ".staged"
        self._owner = ""

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Names the sink, its folder and what to do where the folder cannot be written."""
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            advice = "make room on its disk" if full else "see that it is there and may be written"
            reason = error.strerror or error
            raise MillWheelError(
                f"{self._sink}: the sink's folder {self.folder} cannot be written ({reason}): {advice}, "
                "and run again; nothing is lost"
            ) from error

    def open(self) -> None:
        """Makes the folder, or says that it cannot be written."""
        with self.writing():
            self._place.mkdir(parents=True, exist_ok=True)
            probe = self._place / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()

    def put(self, epoch: int, shard: int, data: bytes) -> None:
        """Leaves a batch; one that a former attempt left is replaced by the same."""
        with self.writing():
            write_whole(self._place / f"{epoch:010d}-{shard:08d}", data)

    def batches(self, after: int, through: int) -> list[Staged]:
        """The batches of some epochs, in order."""
        return sorted(item for item in self._all() if after < item.epoch <= through)

    def size(self) -> int:
        """Return how many bytes are staged."""
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
        """What was saved last; nothing at first."""
        try:
            found: dict[str, Any] = json.loads((self._place / "state").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def take(self) -> dict[str, Any]:
        """Makes this driver the only one that may save; gives what the last one saved."""
        self.sweep()
        state = self.state()
        self._owner = uuid.uuid4().hex
        write_whole(self._place / "state", json.dumps({**state, "owner": self._owner}).encode())
        return state

    def sweep(self) -> None:
        """Removes what writers that were killed have left half written."""
        for entry in list(os.scandir(self._place)):
            if entry.name.startswith("."):
                Path(entry.path).unlink(missing_ok=True)

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the state, durably; a driver that was taken over is refused."""
        if self.state().get("owner") != self._owner:
            raise FencedError(f"another driver writes to {self.folder} now: this one stops")
        write_whole(self._place / "state", json.dumps({**state, "owner": self._owner}).encode())


class Later:
    """Calls a function once, some time after it was asked to, however often it was asked.

    The function runs with `lock` held, which its caller takes for what must not run beside it.
    """

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        self.seconds = seconds
        self._function = function
        self._timer: threading.Timer | None = None
        self.lock = threading.RLock()

    def ask(self) -> None:
        """Has the function called, unless a call is under way."""
        with self.lock:
            if self._timer is None:
                self._timer = threading.Timer(self.seconds, self._run)
                self._timer.daemon = True
                self._timer.start()

    def cancel(self) -> None:
        """Forgets a call that has not begun."""
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
            except Exception:  # nothing is lost: what was not published is staged
                logger.warning("a sink could not publish, and will try again", exc_info=True)
                self.ask()


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file that appears whole, durably, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb", buffering=0) as file:
            write_all(file, data)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_all(file: FileIO, data: bytes) -> None:
    """Writes all of it past any buffer: after a full disk nothing is left that is written later."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
