"""Changed files of a folder, as the kernel reports them (Linux's inotify).

Without inotify, or if it does not see everything (network file systems, links), a folder
is polled.
"""

from __future__ import annotations

import ctypes
import fnmatch
import glob
import os
import select
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

_MODIFY, _CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x8, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _UNMOUNT, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
_FILES = _MODIFY | _CLOSE_WRITE | _MOVED_TO | _CREATE
_WANTED = _FILES | _MOVED_FROM | _DELETE | _DELETE_SELF | _MOVE_SELF
_GONE = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _IGNORED
_EVENT = struct.Struct("iIII")
_END = b"."
_POLLED = 0.05  # seconds between polls of a folder that can no longer be watched
LOCAL = {
    "ext2",
    "ext3",
    "ext4",
    "xfs",
    "btrfs",
    "zfs",
    "f2fs",
    "jfs",
    "bcachefs",
    "tmpfs",
    "ramfs",
    "overlay",
}
"""File systems whose changes all pass through this kernel."""


class Watch:
    """A watched folder, with a thread of its own.

    Invariant: a change of a matching file is in `changes`, or will be, and ``wake`` is called then.
    """

    def __init__(self, pattern: str, wake: Callable[[], None]) -> None:
        """Raises `OSError` if the folder of the pattern cannot be watched."""
        folder, name = os.path.split(pattern)
        if not sys.platform.startswith("linux") or glob.has_magic(folder) or not _is_local(folder):
            raise OSError(f"{folder} is polled")
        self._folder = folder
        self._name = name
        self._wake = wake
        self._lock = threading.Lock()
        self._changed: set[str] | None = set()
        self._lost = threading.Event()
        self._pipe = os.pipe()
        self._handle = _call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _call("inotify_add_watch", self._handle, os.fsencode(folder), _WANTED)
        except OSError:
            self._close()
            raise
        self._thread = threading.Thread(target=self._run, name="millwheel-inotify", daemon=True)
        self._thread.start()

    def changes(self) -> set[str] | None:
        """The paths created or written since the last call; None: any may have been."""
        with self._lock:
            found = self._changed
            self._changed = None if self._lost.is_set() else set()
        return found

    def lose(self) -> None:
        """Gives up watching: changes may be missed, and the folder is polled."""
        with self._lock:
            self._changed = None
        if not self._lost.is_set():
            self._lost.set()
            os.write(self._pipe[1], b" ")  # wakes the thread

    def close(self) -> None:
        os.write(self._pipe[1], _END)
        self._thread.join()
        self._close()

    def _close(self) -> None:
        for handle in (self._handle, *self._pipe):
            os.close(handle)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._pipe[0], select.POLLIN)
        poll.register(self._handle, select.POLLIN)
        while True:
            ready = [handle for handle, _ in poll.poll(self._pause())]
            if self._pipe[0] in ready and _END in os.read(self._pipe[0], 16):
                return
            with suppress(BlockingIOError):
                if not self._take(os.read(self._handle, 1 << 16)) and not self._lost.is_set():
                    continue
            self._wake()

    def _pause(self) -> int | None:
        return int(_POLLED * 1000) if self._lost.is_set() else None

    def _take(self, data: bytes) -> bool:
        """Records events; returns whether any of them matters."""
        matters = False
        place = 0
        while place < len(data):
            _, mask, _, length = _EVENT.unpack_from(data, place)
            name = os.fsdecode(data[place + _EVENT.size : place + _EVENT.size + length].rstrip(b"\0"))
            place += _EVENT.size + length
            if mask & _GONE:
                self.lose()
                matters = True
            elif mask & _OVERFLOW:
                with self._lock:
                    self._changed = None
                matters = True
            elif fnmatch.fnmatch(name, self._name):
                matters = True
                with self._lock:
                    if not mask & _FILES:
                        self._changed = None  # renamed or removed: all are compared
                    elif self._changed is not None:
                        self._changed.add(os.path.join(self._folder, name))
        return matters


def _call(name: str, *arguments: object) -> int:
    """Calls the C library; raises `OSError` if it fails."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        raise OSError(f"this system has no {name}")
    found: int = function(*arguments)
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found


def _is_local(folder: str) -> bool:
    """Whether a folder is on a local file system."""
    path = os.path.realpath(folder)
    best, kind = "", ""
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            fields = line.split()
            place = fields[4].encode().decode("unicode_escape")
            inside = path == place or path.startswith(place.rstrip("/") + "/")
            if inside and len(place) >= len(best):
                best, kind = place, fields[fields.index("-") + 1]
    return kind in LOCAL
