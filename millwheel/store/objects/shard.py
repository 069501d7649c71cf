"""A shard on object storage: a log, and a working copy of what it adds up to.

A write is made on the copy's state at number N by creating object N + 1: it is there only if nobody else has
written since, so what its guard has seen still holds. Then it is applied to the copy. A reading begins with
the question whether there is an object behind the copy's number.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from millwheel.errors import MillWheelError, StoreError
from millwheel.store.base import Guard, Shard, SnapshotLost
from millwheel.store.lmdb.pages import Damaged
from millwheel.store.objects.log import Change, Log, Payload
from millwheel.store.objects.snapshots import Snapshots
from millwheel.store.objects.working_copy import CopySnapshot, WorkingCopy, number_entry, number_of

logger = logging.getLogger("millwheel")

LONGEST_KEY = 511
"""The bytes of a key that a working copy takes."""
_EVERY = 128  # objects of a log between two snapshots: what a new copy has to fetch at most, one by one
_BYTES = 64 << 20  # or so many bytes that this process has written


class Clocks:
    """How much time has passed, by the clock that is further: none of them alone counts everything.

    The clock since the start does not run while a virtual machine stands still; the wall clock is set then.
    """

    def __init__(
        self,
        steady: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._steady = steady
        self._wall = wall

    def now(self) -> tuple[float, float]:
        """A moment, for `since`."""
        return self._steady(), self._wall()

    def since(self, moment: tuple[float, float]) -> float:
        """Seconds since a moment, rather too many than too few."""
        return max(self._steady() - moment[0], abs(self._wall() - moment[1]))


class ObjectShard:
    """A log and its working copy.

    The copy never has anything that is not in the log. A number of the log has one object for ever, or none
    yet, or was removed when a snapshot beyond it had been there for the grace period; a process that has not
    looked at the snapshots for half of that does so before it takes a missing object for one that was never
    written.
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
    ) -> None:
        self._log = log
        self._copy = copy
        self._snapshots = snapshots
        self._width = width
        self._grace = grace
        self._readonly = readonly
        self._clocks = clocks or Clocks()
        self._background = background
        self._looked: tuple[float, float] | None = None
        self._written = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def snapshot(self) -> Iterator[CopySnapshot]:
        self.catch_up()
        try:
            with self._copy.shard.snapshot() as snapshot:
                yield CopySnapshot(snapshot)
        except Damaged as error:
            logger.warning("a working copy is damaged, and made again: %s", error)
            self._copy.discard()
            raise SnapshotLost(str(error)) from error

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
        *,
        kept: bool = False,
    ) -> None:
        name = f"{self._log.objects.name} ({self._log.folder})"
        if self._readonly:
            raise StoreError(f"{name} was opened to be read only")
        puts, deletes = list(puts), list(deletes)
        # A copy could not apply them: an object of the log that nobody can apply would be the end of it.
        if not {bytes}.issuperset(map(type, itertools.chain(deletes, *puts))):
            raise StoreError(f"{name}: keys and values are bytes. Nothing is written")
        if any(not 0 < len(key) <= LONGEST_KEY for key, _ in puts):
            raise StoreError(f"{name}: a key has from 1 to {LONGEST_KEY} bytes. Nothing is written")
        deletes = [key for key in deletes if 0 < len(key) <= LONGEST_KEY]
        payload = Payload.of(puts, deletes, self._width)
        with self._copy.courtesy():
            number = self._append(payload, guard)
        self._refuse_removed(number)
        self._copy.apply(number, puts, deletes)
        self._after(number, len(payload.body))

    def _append(self, payload: Payload, guard: Guard | None) -> int:
        """Creates the next object of the log; returns its number."""
        while True:
            number = self._filled()
            with self._copy.shard.snapshot() as snapshot:
                number = number_of(snapshot.get) or number
                if guard is not None:
                    guard(snapshot.get)
            taken = self._log.append(number + 1, payload)
            if taken is None:
                return number + 1
            self._apply(taken)
            self.catch_up()

    def catch_up(self) -> int:
        """Brings the copy to the end of the log; returns its number."""
        while True:
            number = self._filled()
            for change in self._log.behind(number):
                self._apply(change)
                number = change.number
            if not self._is_too_old(number):
                return number
            self._fill()

    def _apply(self, change: Change) -> None:
        self._copy.apply(change.number, change.puts, change.deletes)

    def _is_too_old(self, number: int) -> bool:
        """Whether the object behind a number may be missing because it was removed."""
        if self._looked is not None and self._clocks.since(self._looked) < self._grace / 2:
            return False
        looked = self._clocks.now()
        if number < self._snapshots.newest():
            return True
        self._looked = looked
        return False

    def _refuse_removed(self, number: int) -> None:
        """Raises where an object was created under a number that had been removed: nobody reads it.

        It takes a process that stood still for the grace period between its look and its write.
        """
        if self._looked is None or self._clocks.since(self._looked) >= self._grace / 2:
            looked = self._clocks.now()
            if number <= self._snapshots.newest():
                raise StoreError(
                    f"{self._log.objects.name}: this process stood still for longer than the log is kept "
                    f"({self._grace:g} seconds), and its write came too late. Nothing is lost: run again"
                )
            self._looked = looked

    def _filled(self) -> int:
        """The number of the copy, which is made where there is none, or where it is damaged."""
        try:
            number = self._copy.number()
        except Damaged as error:
            logger.warning("a working copy is damaged, and made again: %s", error)
            self._copy.discard()
            number = None
        return self._fill() if number is None else number

    def _fill(self) -> int:
        """Makes a copy: the newest snapshot, and the log at least to where that was whole."""
        self._looked = None
        self._copy.replace(self._fill_from_snapshot)
        number = self._copy.number()
        assert number is not None
        return number

    def _fill_from_snapshot(self, shard: Shard) -> None:
        looked = self._clocks.now()
        newest = self._snapshots.newest()
        if not newest:
            shard.write([number_entry(0)])
            self._looked = looked
            return
        manifest = self._snapshots.fill(shard, newest)
        number = manifest.number
        for change in self._log.behind(number):
            shard.write([*change.puts, number_entry(change.number)], change.deletes)
            number = change.number
        if number < manifest.until:
            raise StoreError(
                f"{self._log.objects.name}: {self._log.name(number + 1)} is missing, which the snapshot "
                "needs. Restore it from a version or a backup of the bucket"
            )
        self._looked = looked

    def _after(self, number: int, size: int) -> None:
        """Takes a snapshot beside the work where one is due."""
        self._written += size
        if number % _EVERY and self._written < _BYTES:
            return
        self._written = 0
        if not self._background or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._beside, name="millwheel-snapshot", daemon=True)
        self._thread.start()

    def _beside(self) -> None:
        try:
            if not self._closed:
                self.checkpoint()
        except MillWheelError as error:
            if not self._closed:
                logger.warning("a snapshot of %s failed; the log is kept: %s", self._log.folder, error)

    def checkpoint(self, *, full: bool = False, grace: float | None = None) -> None:
        """Takes a snapshot, and removes what is not needed any more."""
        if self._snapshots.take(self._copy, self._log, full=full) is not None:
            self._snapshots.clean(self._grace if grace is None else grace)

    def verify(self) -> None:
        """Reads the newest snapshot and the log behind it; a `StoreError` says what is damaged."""
        newest = self._snapshots.newest()
        if newest:
            self._snapshots.verify(newest)
        for change in self._log.behind(newest):
            assert change.puts is not None

    def close(self) -> None:
        """Lets go of the copy; a snapshot that is being written is waited for."""
        self._closed = True
        if self._thread is not None:
            self._thread.join(60)
        self._log.close()
        self._copy.close()
