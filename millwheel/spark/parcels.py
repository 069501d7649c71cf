"""How frames get from one task to the next: through Spark's shuffle, or large ones past it.

Where all tasks run on one machine, a large frame is written to a file, and only the name of it goes through
the shuffle: that one takes every byte through the JVM twice. Nothing need last: the files of an epoch are
removed with it, and where one cannot be read, Spark tries the task again and the driver then the epoch.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark import SparkContext, SparkFiles

from millwheel.worker.envelope import Frame

logger = logging.getLogger("millwheel")

Parcel = bytes | tuple[str, int, int]
"""A frame, or the file that it is in, with its place and its length there."""

_LARGE = 1 << 18  # bytes that a task sends: fewer are faster through the shuffle than a file is made


def send(frames: Iterable[Frame], folder: str | None) -> Iterator[tuple[int, Parcel]]:
    """By slot: frames on their way, through files in a folder if there is one."""
    packed = [frame.to_bytes() for frame in frames]
    parcels: list[Parcel] = list(packed)
    if folder is not None and sum(map(len, packed)) >= _LARGE:
        try:
            parcels = _filed(packed, folder)
        except OSError as error:  # no room, or an epoch that is over: the shuffle says so, if it matters
            logger.warning("frames go through Spark's shuffle, as %s cannot be written: %s", folder, error)
    yield from enumerate(parcels)


def _filed(packed: list[bytes], folder: str) -> list[Parcel]:
    """Each attempt at a task has a file of its own."""
    handle, name = tempfile.mkstemp(dir=folder)
    parcels: list[Parcel] = []
    start = 0
    with open(handle, "wb") as file:
        for data in packed:
            file.write(data)
            parcels.append((name, start, len(data)))
            start += len(data)
    return parcels


def receive(items: Iterable[object]) -> list[Frame]:
    """The frames among what Spark hands to a task, of which the first level's may be a number."""
    return [Frame.from_bytes(_fetched(item[1])) for item in items if isinstance(item, tuple)]


def _fetched(parcel: Parcel) -> bytes:
    if isinstance(parcel, bytes):
        return parcel
    name, start, length = parcel
    with open(name, "rb") as file:
        file.seek(start)
        data = file.read(length)
    if len(data) < length:
        raise OSError(f"{name} ends before a frame of {length:,} bytes does")
    return data


class Parcels:
    """The driver's side: a folder for each attempt at an epoch, where that is of use."""

    def __init__(self, context: SparkContext) -> None:
        self._root: Path | None = None
        self._made = 0
        master = str(context.master)
        if master == "local" or master.startswith("local["):
            # Spark removes it at its end, also where this process is killed.
            self._root = Path(tempfile.mkdtemp(prefix="millwheel-frames-", dir=SparkFiles.getRootDirectory()))

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
            shutil.rmtree(self._root, ignore_errors=True)
