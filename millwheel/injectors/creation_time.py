"""The creation time of a file, which Python's ``os.stat`` lacks on Linux."""

from __future__ import annotations

import ctypes
import os

from millwheel.model.time import SECOND

_AT_FDCWD = -100
_STATX_BTIME = 0x800
_BTIME_OFFSET = 80  # of stx_btime in struct statx: seconds (64 bits), then nanoseconds (32 bits)


def birth_time(path: str) -> int:
    """The creation time of a file; its last change if the file system has none."""
    stat = os.stat(path)
    born: float | None = getattr(stat, "st_birthtime", None)
    if born is not None:
        return int(born * SECOND)
    buffer = ctypes.create_string_buffer(256)
    try:
        statx = ctypes.CDLL(None).statx
    except (AttributeError, OSError):
        return stat.st_mtime_ns // 1000
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer) != 0:
        return stat.st_mtime_ns // 1000
    mask = int.from_bytes(buffer.raw[:4], "little")
    if not mask & _STATX_BTIME:
        return stat.st_mtime_ns // 1000
    seconds = int.from_bytes(buffer.raw[_BTIME_OFFSET : _BTIME_OFFSET + 8], "little", signed=True)
    nanoseconds = int.from_bytes(buffer.raw[_BTIME_OFFSET + 8 : _BTIME_OFFSET + 12], "little")
    return seconds * SECOND + nanoseconds // 1000
