"""A working copy that is used before it is filled.

It begins with the small blocks of the newest snapshot, the names of all others (its gaps), and the log
behind the snapshot. A key in a gap is read from the block's part. Gaps are closed beside the work, one in
each transaction, by `Filler`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from millwheel.errors import MillWheelError
from millwheel.store.base import Get, Shard, Snapshot
from millwheel.store.objects.blocks import Block, Entries, PartGone, Parts, runs
from millwheel.store.objects.gaps import (
    NO_GAPS,
    CopySnapshot,
    Gaps,
    View,
    base_of,
    filled,
    gap_key,
    has_gaps,
    number_entry,
    number_of,
)
from millwheel.store.objects.log import Change, Puts
from millwheel.store.objects.working_copy import Moved, WorkingCopy

logger = logging.getLogger("millwheel")

_CHUNK = 8 << 20  # bytes that are written to a new copy in one transaction
_TURN = 1.0  # seconds between two attempts to be the process that closes the gaps
_RETRY = 60.0  # seconds after an error: the storage may be away


class LazyCopy:
    """A working copy, its gaps, and the parts that they are read from.

    Whatever the copy has was written after the snapshot, or is of a closed gap: so a block never replaces it.
    """

    def __init__(self, copy: WorkingCopy, parts: Parts) -> None:
        self.copy = copy
        self._parts = parts
        self._seen: tuple[Shard | None, Gaps] = (None, NO_GAPS)

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Opens a snapshot; reading it raises `PartGone` if the copy must be made again."""
        with self.copy.shard.snapshot() as snapshot:
            gaps = self._gaps(snapshot)
            yield View(snapshot, gaps, self._parts) if gaps else CopySnapshot(snapshot)

    def _gaps(self, snapshot: Snapshot) -> Gaps:
        """The gaps of the copy, at least those that it has."""
        shard, gaps = self._seen
        if shard is not self.copy.shard:
            gaps = Gaps.read(snapshot)
        elif gaps and not has_gaps(snapshot):
            gaps = NO_GAPS
            self._parts.forget()
        self._seen = self.copy.shard, gaps
        return gaps

    def number(self) -> int | None:
        """The number up to which it is current; None: there is no copy yet."""
        return self.copy.number()

    def _is_known_whole(self) -> bool:
        shard, gaps = self._seen
        return shard is self.copy.shard and not gaps

    def base(self) -> int | None:
        """The number of the snapshot that its gaps are of; None: it has none."""
        if self._is_known_whole():
            return None
        with self.copy.shard.snapshot() as snapshot:
            return base_of(snapshot.get) if self._gaps(snapshot) else None

    def apply(self, number: int, puts: Puts, deletes: Sequence[bytes]) -> None:
        """Applies the write of a number; one that is applied already is skipped."""
        marks: Puts = ()
        if not self._is_known_whole():
            with self.copy.shard.snapshot() as snapshot:
                # A gap that is closed meanwhile leaves a mark that nobody reads.
                marks = self._gaps(snapshot).marks(snapshot, deletes)
        self.copy.apply(number, [*puts, *marks], deletes)

    def close_gaps(self) -> Iterator[Block]:
        """Closes the gaps; yields each block that the copy has now. May stop anywhere."""
        with self.copy.shard.snapshot() as snapshot:
            gaps = Gaps.read(snapshot)
        index_of = {(block.part, block.offset): index for index, block in gaps.blocks.items()}
        for run in runs(gaps.blocks.values()):
            for block, entries in self._parts.fetch(run):
                self._close(index_of[block.part, block.offset], entries)
                yield block

    def _close(self, index: int, entries: Entries) -> None:
        """Puts a block into the copy in one transaction, unless another process has."""
        shard = self.copy.shard
        while True:
            with shard.snapshot() as snapshot:
                if snapshot.get(gap_key(index)) is None:
                    return
                number = number_of(snapshot.get)
                puts, deletes = filled(snapshot, index, entries)

            def still(get: Get, number: int | None = number) -> None:
                if number_of(get) != number or get(gap_key(index)) is None:
                    raise Moved

            with suppress(Moved):
                return shard.write(puts, deletes, still)


def begin(
    shard: Shard, base: int, blocks: Sequence[Block], first: int, parts: Parts, log: Iterable[Change]
) -> int:
    """Makes a copy from a snapshot and the log after it; returns its number.

    Of the blocks, the smallest are fetched, ``first`` bytes of them: what every step needs is small, and so
    is a small state. The others are gaps.
    """
    now: list[Block] = []
    left: dict[int, Block] = {}
    for index, block in sorted(enumerate(blocks), key=lambda pair: pair[1].length):
        first -= block.length
        if first >= 0:
            now.append(block)
        else:
            left[index] = block
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for block, entries in parts.fetch(now):
        batch += entries.items()
        size += block.length
        if size > _CHUNK:
            shard.write(batch)
            batch, size = [], 0
    gaps = Gaps(left)
    shard.write([*batch, *gaps.entries(base), number_entry(base)])
    number = base
    for change in log:
        number = change.number
        entries_of_it = [*change.puts, *gaps.marks(None, change.deletes), number_entry(number)]
        shard.write(entries_of_it, change.deletes)
    return number


class Filler:
    """Closes the gaps of a copy in a thread, with a handle of its own.

    One process of a host does it; another goes on when that one ends. It rests as long as it works, so that
    a step has at least half of this process.
    """

    def __init__(self, copy: LazyCopy, name: str, on_gone: Callable[[PartGone], None]) -> None:
        self._copy = copy
        self._name = name
        self._on_gone = on_gone
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millwheel-gaps", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it is at work."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ends it, after the blocks that it is fetching."""
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        pause = 0.0
        try:
            while not self._stop.wait(pause):
                try:
                    if self._copy.number() is None or self._copy.base() is None:
                        return
                    self._close_gaps()
                    pause = _TURN
                except PartGone:
                    raise
                except MillWheelError as error:
                    self._copy.copy.close()
                    pause = _RETRY
                    if not self._stop.is_set():
                        logger.warning("the working copy of %s is not filled as yet: %s", self._name, error)
        except PartGone as error:
            self._on_gone(error)
        finally:
            self._copy.copy.close()

    def _close_gaps(self) -> None:
        """Closes gaps until there are none, it is stopped, or another process does."""
        with self._copy.copy.closing_gaps() as mine:
            began = time.monotonic()
            for _ in self._copy.close_gaps() if mine else ():
                if self._stop.wait(time.monotonic() - began):
                    return
                began = time.monotonic()
