"""How frames get from one task to the next: through Spark's shuffle, or large ones past it.

Where all tasks run on one machine, a large frame is written to a file, and only the name of it goes through
the shuffle: that one takes every byte through the JVM twice. Nothing need last: the files of an epoch are
removed with it, and where one cannot be read, Spark tries the task again and the driver then the epoch.
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
"""A frame, or the file that it is in, with its place and its length there."""

_MEMORY = MEMORY
_ROOM = 2 << 30  # bytes free there: an epoch's frames are a few hundred megabytes at most
_LARGE = 1 << 18  # bytes that a task sends: fewer are faster through the shuffle than a file is made


def send(frames: Iterable[Frame], folder: str | None) -> Iterator[tuple[int, Parcel]]:
    """By slot: frames on their way, through files in a folder if there is one."""
    frames = list(frames)
    parts = [frame.to_parts() for frame in frames]
    sizes = [sum(map(len, pieces)) for pieces in parts]
    if folder is not None and sum(sizes) >= _LARGE:
        try:
            yield from enumerate(_filed(parts, sizes, folder))
            return
        except OSError as error:  # no room, or an epoch that is over: the shuffle says so, if it matters
            logger.warning("frames go through Spark's shuffle, as %s cannot be written: %s", folder, error)
    yield from enumerate(map(b"".join, parts))


def _filed(parts: list[list[Bytes]], sizes: list[int], folder: str) -> list[Parcel]:
    """Each attempt at a task has a file of its own."""
    handle, name = tempfile.mkstemp(dir=folder)
    with open(handle, "wb") as file:
        file.writelines(chain.from_iterable(parts))
    starts = accumulate(sizes, initial=0)
    return [(name, start, size) for start, size in zip(starts, sizes, strict=False)]


def receive(items: Iterable[object]) -> list[Frame]:
    """The frames among what Spark hands to a task, of which the first level's may be a number."""
    return [_fetched(item[1]) for item in items if isinstance(item, tuple)]


def _fetched(parcel: Parcel) -> Frame:
    if isinstance(parcel, bytes):
        return Frame.from_bytes(parcel)
    name, start, length = parcel
    with open(name, "rb") as file:
        if os.fstat(file.fileno()).st_size < start + length:
            raise OSError(f"{name} ends before a frame of {length:,} bytes does")
        # Its pages are in memory, and are not copied: files are removed, but none is ever cut or changed.
        data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    return Frame.from_bytes(data[start : start + length])


def _has_room(folder: str) -> bool:
    """Whether files can be kept in memory: to write them to a disk's cache takes several times as long."""
    try:
        return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _ROOM
    except OSError:
        return False


class Parcels:
    """The driver's side: a folder for each attempt at an epoch, where that is of use."""

    def __init__(self, context: SparkContext) -> None:
        self._root: Path | None = None
        self.notes: str | None = None
        """A folder in which workers note what they are doing."""
        self._made = 0
        master = str(context.master)
        if master == "local" or master.startswith("local["):
            sweep(_MEMORY)
            self._scratch = Scratch(
                "frames", _MEMORY if _has_room(_MEMORY) else SparkFiles.getRootDirectory()
            )
            self._root = self._scratch.path
            # At its end, also where this process is killed, Spark removes it as it does its own folders.
            jvm: Any = context._jvm
            hooks = jvm.org.apache.spark.util.ShutdownHookManager
            hooks.registerShutdownDeleteDir(jvm.java.io.File(os.fspath(self._root)))
            (self._root / "notes").mkdir()
            self.notes = os.fspath(self._root / "notes")

    def folder(self, epoch: int) -> str | None:
        """A new folder for the frames of an epoch."""
        if self._root is None:
            return None
        self._made += 1
        folder = self._root / f"{epoch}-{self._made}"
        try:
            folder.mkdir()
        except OSError as error:
            logger.warning("frames go through Spark's shuffle: %s", error)
            return None
        return os.fspath(folder)

    def close(self) -> None:
        """Removes whatever is left."""
        if self._root is not None:
            self._scratch.close()
