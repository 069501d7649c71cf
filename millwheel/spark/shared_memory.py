"""Frames between tasks: through Spark's shuffle, or large ones in shared memory.

If all tasks run on one machine, a large frame is written to a file, and only its name goes through
the shuffle, which would copy every byte through the JVM twice. Nothing need be durable: the files of an epoch
are removed with it, and if one cannot be read, Spark retries the task and the driver then the epoch.
"""

from __future__ import annotations

import logging
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from pyspark import SparkContext, SparkFiles

from millwheel.store.scratch import MEMORY, Scratch, sweep
from millwheel.worker.envelope import Bytes, Frame

logger = logging.getLogger("millwheel")

Parcel = bytes | tuple[str, int, int]
"""A frame, or the file that it is in, with its offset and its length."""

MEMORY = MEMORY
ROOM = 2 << 30  # bytes free: an epoch's frames are a few hundred megabytes at most
_LARGE = 1 << 18  # bytes of a task: fewer are faster through the shuffle


def send(frames: Iterable[Frame], folder: str | None) -> Iterator[tuple[int, Parcel]]:
    """By slot: frames to send, through files in a folder if there is one."""
    frames = list(frames)
    parts = [frame.to_parts() for frame in frames]
    sizes = [sum(map(len, pieces)) for pieces in parts]
    if folder is not None and sum(sizes) >= _LARGE:
        try:
            yield from enumerate(filed(parts, sizes, folder))
            return
        except (
            OSError
        ) as error:  # no space, or an epoch that has ended: the shuffle fails then, if it matters
            logger.warning("frames go through Spark's shuffle, as %s cannot be written: %s", folder, error)
    yield from enumerate(map(b"".join, parts))


def filed(parts: list[list[Bytes]], sizes: list[int], folder: str) -> list[Parcel]:
    """Writes frames to a file; each attempt at a task has its own."""
    handle, name = tempfile.mkstemp(dir=folder)
    with open(handle, "wb") as file:
        file.writelines(chain.from_iterable(parts))
    starts = accumulate(sizes, initial=0)
    return [(name, start, size) for start, size in zip(starts, sizes, strict=False)]


def receive(items: Iterable[object]) -> list[Frame]:
    """The frames among the items of a task; in the first level there may be a number."""
    return [_fetched(item[1]) for item in items if isinstance(item, tuple)]


def _fetched(parcel: Parcel) -> Frame:
    if isinstance(parcel, bytes):
        return Frame.from_bytes(parcel)
    name, start, length = parcel
    with open(name, "rb") as file:
        if os.fstat(file.fileno()).st_size < start + length:
            raise OSError(f"{name} ends before a frame of {length:,} bytes does")
        # Its pages are in memory, and are not copied: files are removed, but never truncated or changed.
        data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    return Frame.from_bytes(data[start : start + length])


def has_room(folder: str) -> bool:
    """Whether files can be kept in memory: a disk is several times slower."""
    try:
        return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= ROOM
    except OSError:
        return False


class Parcels:
    """The driver's side: a folder for each attempt at an epoch, if it is useful."""

    def __init__(self, context: SparkContext) -> None:
        self.root: Path | None = None
        self.notes: str | None = None
        """A folder in which workers note their activity."""
        self._made = 0
        master = str(context.master)
        if master == "local" or master.startswith("local["):
            sweep(MEMORY)
            self._scratch = Scratch("frames", MEMORY if has_room(MEMORY) else SparkFiles.getRootDirectory())
            self.root = self._scratch.path
            # At its end, also if this process is killed, Spark removes it like its own folders.
            jvm: Any = context._jvm
            hooks = jvm.org.apache.spark.util.ShutdownHookManager
            hooks.registerShutdownDeleteDir(jvm.java.io.File(os.fspath(self.root)))
            (self.root / "notes").mkdir()
            self.notes = os.fspath(self.root / "notes")

    def folder(self, epoch: int) -> str | None:
        """A new folder for the frames of an epoch."""
        if self.root is None:
            return None
        self._made += 1
        folder = self.root / f"{epoch}-{self._made}"
        try:
            folder.mkdir()
        except OSError as error:
            logger.warning("frames go through Spark's shuffle: %s", error)
            return None
        return os.fspath(folder)

    def close(self) -> None:
        """Removes all folders."""
        if self.root is not None:
            self._scratch.close()
