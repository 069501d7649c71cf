"""A shard on object storage: a log, and a working copy of its content.

A write on the copy's state at number N creates object N + 1: it succeeds only if no one else has
written since, so what its guard has read still holds. Then it is applied to the copy. A read begins with
a check for an object after the copy's number. The copy is used before it is filled: see `lazy_copy`.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from millwheel.errors import MillWheelError, StoreError
from millwheel.objects import Entry
from millwheel.store.base import Guard, Shard, Snapshot, SnapshotLost
from millwheel.store.lmdb.pages import Damaged
from millwheel.store.objects.blocks import PartGone, Parts
from millwheel.store.objects.gaps import number_entry, number_of
from millwheel.store.objects.lazy_copy import Filler, LazyCopy, begin
from millwheel.store.objects.log import Change, Log, Payload
from millwheel.store.objects.snapshots import Snapshots, missing, number_in
from millwheel.store.objects.working_copy import WorkingCopy

logger = logging.getLogger("millwheel")

LONGEST_KEY = 511
"""The longest key of a working copy, in bytes."""
_EVERY = 128  # objects of a log between two snapshots: the most that a new copy has to fetch
_BYTES = 64 << 20  # or bytes that this process has written
FIRST = 8 << 20
"""Bytes of a snapshot that a new copy has at once: more is not needed to begin, and takes time."""
_FILLED_FROM = 2  # writes of this process: a driver writes once, to fence, and needs no filled copy


class Clocks:
    """Measures elapsed time by the clock that advanced further.

    The monotonic clock does not run while a virtual machine is suspended; the wall clock is set then.
    """

    def __init__(
        self,
        steady: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._steady = steady
        self._wall = wall

    def now(self) -> tuple[float, float]:
        """The current moment, for `since`."""
        return self._steady(), self._wall()

    def since(self, moment: tuple[float, float]) -> float:
        """Seconds since a moment, rather too many than too few."""
        return max(self._steady() - moment[0], abs(self._wall() - moment[1]))


class ObjectShard:
    """A log and its working copy.

    The copy never has anything that is not in the log. A number of the log has one object for ever, or none
    yet, or was removed after a snapshot beyond it had existed for the grace period; a process that has not
    read the list of snapshots for half of that does so before it takes a missing object for one that was
    never written.
    """

    def __init__(
        self,
        log: Log,
        copy: WorkingCopy,
        snapshots: Snapshots,
        *,
        width: int,
        grace: float,
        readonly: bool = False,
        clocks: Clocks | None = None,
        background: bool = True,
        first: int = FIRST,
    ) -> None:
        self.log = log
        self.copy = copy
        self._parts = Parts(log.objects, log.each)
        self.lazy = LazyCopy(copy, self._parts)
        self.snapshots = snapshots
        self._width = width
        self.grace = grace
        self._readonly = readonly
        self.clocks = clocks or Clocks()
        self.background = background
        self._looked: tuple[float, float] | None = None
        self.first = first
        self._written = 0
        self._writes = 0
        self._thread: threading.Thread | None = None
        self._filler: Filler | None = None
        self._gone: PartGone | None = None
        self._closed = False

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        self.catch_up()
        try:
            with self.lazy.snapshot() as snapshot:
                yield snapshot
        except Damaged as error:
            logger.warning("a working copy is damaged and is made again: %s", error)
            self.copy.discard()
            raise SnapshotLost(str(error)) from error
        except PartGone as error:
            self._drop(error)
            raise SnapshotLost(str(error)) from error

    def _drop(self, error: PartGone) -> None:
        """Drops a copy whose snapshot was removed; a `StoreError` if it was not."""
        newest = self.snapshots.newest()
        manifest = self.snapshots.read(newest) if newest else None
        if manifest is not None and error.part in manifest.parts:
            raise missing(error.part)
        logger.info("a working copy is older than what is left of its snapshot, and is made again")
        self.copy.discard()

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
        *,
        kept: bool = False,
    ) -> None:
        name = f"{self.log.objects.name} ({self.log.folder})"
        if self._readonly:
            raise StoreError(f"{name} was opened to be read only")
        puts, deletes = list(puts), list(deletes)
        # A copy could not apply them, and so no process could read past that object.
        if not {bytes}.issuperset(map(type, itertools.chain(deletes, *puts))):
            raise StoreError(f"{name}: keys and values are bytes. Nothing is written")
        if any(not 0 < len(key) <= LONGEST_KEY for key, _ in puts):
            raise StoreError(f"{name}: a key has from 1 to {LONGEST_KEY} bytes. Nothing is written")
        deletes = [key for key in deletes if 0 < len(key) <= LONGEST_KEY]
        payload = Payload.of(puts, deletes, self._width)
        with self.copy.courtesy():
            number = self._append(payload, guard)
        self._refuse_removed(number)
        self.lazy.apply(number, puts, deletes)
        self._after(number, len(payload.body))

    def _append(self, payload: Payload, guard: Guard | None) -> int:
        """Creates the next object of the log; returns its number."""
        while True:
            number = self._filled()
            try:
                with self.lazy.snapshot() as snapshot:
                    number = number_of(snapshot.get) or number
                    if guard is not None:
                        guard(snapshot.get)
            except PartGone as error:
                self._drop(error)
                continue
            taken = self.log.append(number + 1, payload)
            if taken is None:
                return number + 1
            self._apply(taken)
            self.catch_up()

    def catch_up(self) -> int:
        """Applies the log to the copy up to its end; returns its number."""
        while True:
            number = self._filled()
            for change in self.log.behind(number):
                self._apply(change)
                number = change.number
            if not self._is_too_old(number):
                return number
            self._fill()

    def _apply(self, change: Change) -> None:
        self.lazy.apply(change.number, change.puts, change.deletes)

    def _is_too_old(self, number: int) -> bool:
        """Whether the object after a number may be missing because it was removed."""
        if self._looked is not None and self.clocks.since(self._looked) < self.grace / 2:
            return False
        looked = self.clocks.now()
        listed = self.snapshots.listed()
        if (listed and number < number_in(listed[-1].name)) or self._has_old_gaps(listed):
            return True
        self._looked = looked
        return False

    def _has_old_gaps(self, listed: Sequence[Entry]) -> bool:
        """Whether parts of the copy's gaps may be removed before the next listing."""
        base = self.lazy.base()
        after = [] if base is None else [entry for entry in listed if number_in(entry.name) > base]
        return bool(after) and after[-1].modified - after[0].modified >= self.grace / 2

    def _refuse_removed(self, number: int) -> None:
        """Raises if an object was created under a removed number, which is never read.

        It takes a process that was suspended for the grace period between its read and its write.
        """
        if self._looked is None or self.clocks.since(self._looked) >= self.grace / 2:
            looked = self.clocks.now()
            if number <= self.snapshots.newest():
                raise StoreError(
                    f"{self.log.objects.name}: this process was suspended for longer than the log is kept "
                    f"({self.grace:g} seconds), and its write came too late. Nothing is lost: run again"
                )
            self._looked = looked

    def _filled(self) -> int:
        """The number of the copy; makes one if there is none, or it is of no use."""
        gone, self._gone = self._gone, None
        if gone is not None:
            self._drop(gone)
        try:
            number = self.copy.number()
        except Damaged as error:
            logger.warning("a working copy is damaged and is made again: %s", error)
            self.copy.discard()
            number = None
        return self._fill() if number is None else number

    def _fill(self) -> int:
        """Makes a copy: the newest snapshot, and the log at least to its end number."""
        self._looked = None
        self.copy.replace(self._fill_from_snapshot)
        number = self.copy.number()
        assert number is not None
        return number

    def _fill_from_snapshot(self, shard: Shard) -> None:
        looked = self.clocks.now()
        newest = self.snapshots.newest()
        if not newest:
            shard.write([number_entry(0)])
            self._looked = looked
            return
        manifest = self.snapshots.needed(newest)
        log = self.log.behind(manifest.number)
        try:
            number = begin(shard, manifest.number, manifest.blocks(), self.first, self._parts, log)
        except PartGone as error:
            raise missing(error.part) from None
        if number < manifest.until:
            raise StoreError(
                f"{self.log.objects.name}: {self.log.name(number + 1)} is missing, which the snapshot "
                "needs. Restore it from a version or a backup of the bucket"
            )
        self._looked = looked

    def _after(self, number: int, size: int) -> None:
        """Starts the background work: a snapshot, and the filling of the copy."""
        self._written += size
        self._writes += 1
        if not self.background:
            return
        if self._writes >= _FILLED_FROM:
            self._fill_beside()
        if number % _EVERY and self._written < _BYTES:
            return
        self._written = 0
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._beside, name="millwheel-snapshot", daemon=True)
            self._thread.start()

    def _fill_beside(self) -> None:
        if self.lazy.base() is not None and (self._filler is None or not self._filler.alive):
            own = LazyCopy(self.copy.another(), Parts(self.log.objects, map))
            self._filler = Filler(own, self.log.folder, self._on_gone)

    def _on_gone(self, error: PartGone) -> None:
        """From a thread: the next read or write drops the copy."""
        self._gone = error

    def _beside(self) -> None:
        own = self.copy.another()
        try:
            if not self._closed:
                self._take(LazyCopy(own, Parts(self.log.objects, map)), self.grace)
        except PartGone as error:
            self._on_gone(error)
        except MillWheelError as error:
            if not self._closed:
                logger.warning("a snapshot of %s failed; the log is kept: %s", self.log.folder, error)
        finally:
            own.close()

    def checkpoint(self, *, full: bool = False, grace: float | None = None) -> None:
        """Takes a snapshot, and removes what is no longer needed."""
        while True:
            try:
                return self._take(self.lazy, self.grace if grace is None else grace, full=full)
            except PartGone as error:
                self._drop(error)
                self.catch_up()

    def _take(self, copy: LazyCopy, grace: float, *, full: bool = False) -> None:
        if self.snapshots.take(copy, self.log, full=full) is not None:
            self.snapshots.clean(grace)

    def verify(self) -> None:
        """Reads the newest snapshot and its log; a `StoreError` if one is damaged."""
        newest = self.snapshots.newest()
        if newest:
            self.snapshots.verify(newest)
        for change in self.log.behind(newest):
            assert change.puts is not None

    def close(self) -> None:
        """Closes the copy; waits for a snapshot that is being written."""
        self._closed = True
        if self._filler is not None:
            self._filler.stop()
        if self._thread is not None:
            self._thread.join(60)
        self.log.close()
        self._parts.forget()
        self.copy.close()
