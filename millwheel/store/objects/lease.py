"""The lease of a driver: an object with its name, renewed while it lives.

It prevents a second driver from starting by mistake, and names the first one. Safety does not depend on it:
a driver that was presumed dead is refused by the journal at its next write, as always.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from millwheel.errors import MillWheelError, StoreError
from millwheel.objects import Objects

NAME = "driver"
_BEAT = 5.0  # seconds between two renewals
_DEAD = 3 * _BEAT  # without a renewal for this long, by the waiting process's clock, it is presumed dead


class Lease:
    """The lease of one store, for one driver."""

    def __init__(
        self,
        objects: Objects,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._objects = objects
        self._clock = clock
        self.pause = pause
        self.mine: dict[str, Any] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, owner: str, *, takeover: bool) -> None:
        """Takes the lease; a `StoreError` names the driver that holds it."""
        found = self._read()
        if found is not None and not takeover and self._is_alive(found):
            raise StoreError(
                f"{self._objects.name} is in use by {found['owner']}: one driver runs a pipeline at a time; "
                "stop that one first, give this one a store of its own, or, if that one hangs, take over "
                "from it (takeover=True, millwheel run --take-over)"
            )
        self.release()
        self.mine = {
            "owner": owner,
            "host": socket.gethostname(),
            "process": process(),
            "beat": 0,
            "nonce": uuid.uuid4().hex,
        }
        self.write()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="millwheel-lease", daemon=True)
        self._thread.start()

    def holder(self) -> bool | None:
        """Whether a driver holds it; None: one of another host, which may have died."""
        found = self._read()
        return False if found is None else lives(found["process"])

    def release(self) -> None:
        """Releases the lease, if no other driver has taken it meanwhile."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)
            self._thread = None
        mine, self.mine = self.mine, None
        if mine is not None:
            with suppress(MillWheelError):  # it expires by itself
                found = self._read()
                if found is not None and found["nonce"] == mine["nonce"]:
                    self._objects.delete([NAME])

    def _is_alive(self, found: dict[str, Any]) -> bool:
        """Whether its holder lives: by process on this host, by renewals on another."""
        alive = lives(found["process"])
        if alive is not None:
            return alive
        end = self._clock() + _DEAD
        while self._clock() < end:
            self.pause(0.5)
            now = self._read()
            if now is None:
                return False
            if (now["nonce"], now["beat"]) != (found["nonce"], found["beat"]):
                return True
        return False

    def _renew(self) -> None:
        stop = self._stop
        while not stop.wait(_BEAT):
            with suppress(MillWheelError):  # the next renewal may succeed
                found = self._read()
                if self.mine is None or (found is not None and found["nonce"] != self.mine["nonce"]):
                    return  # another driver has taken over
                self.mine["beat"] += 1
                self.write()

    def _read(self) -> dict[str, Any] | None:
        data = self._objects.get(NAME)
        try:
            return None if data is None else dict(json.loads(data))
        except ValueError:
            return None

    def write(self) -> None:
        """Writes the lease as it is now."""
        self._objects.put(NAME, json.dumps(self.mine).encode())


def process() -> list[Any]:
    """The unique name of this process on this host."""
    return [_text("/proc/sys/kernel/random/boot_id"), _namespace(), os.getpid(), _started(os.getpid())]


def lives(named: list[Any]) -> bool | None:
    """Whether a process lives; None: of another host or container, so not visible."""
    boot, namespace, pid, started = named
    if not boot or (boot, namespace) != (_text("/proc/sys/kernel/random/boot_id"), _namespace()):
        return None
    return bool(_started(pid) == started)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """The start time of a process, in ticks; empty if it does not exist or has ended."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
