"""One commit of a lakehouse table for all rows that committed epochs have staged.

Invariant: the table's marker, which changes in the same commit as its rows, is the last epoch whose rows are
in it, and all rows of the epochs up to it are. So a driver that was killed anywhere leaves nothing to undo,
and two drivers that publish at once cannot both succeed with the same epoch:

1. Tasks stage their rows under (epoch, shard). *Crash*: the epoch is run again, and stages the same.
2. The epoch is committed in the journal. *Crash*: the next driver finds the rows staged, and goes on with 3.
3. The driver reads the marker, and commits the rows of later epochs with a new marker. *Crash before*: files
   that no commit names are left, which nobody reads; the next driver begins at 3. *Another commit came
   between*: begin at 3. *The answer is lost*: begin at 3, where the marker has it.
4. What is staged up to the marker is dropped. *Crash*: the next driver drops it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from millwheel.errors import MillWheelError
from millwheel.sinks.arrow_rows import decode
from millwheel.sinks.object_staging import ObjectStaging
from millwheel.sinks.staging import Later, Staging

logger = logging.getLogger("millwheel")

EVERY = 30.0  # seconds between commits: a commit for each epoch would be a file for each, and slow to list
ROWS = 1_000_000  # that are not kept back any longer; the driver has as many in memory
COMPACT_AFTER = 50  # commits, and so files of a partition, that a compaction makes one of
_ROW_BYTES = 64  # of a staged row, at the least
_ATTEMPTS = 20  # at a commit: as many other writers would have to come first each time


class Table(Protocol):
    """A table with atomic commits."""

    def marker(self, origin: str) -> int:
        """Return the last epoch of a store whose rows are in the table; 0: none."""

    def add(self, rows: Any, origin: str, epoch: int) -> bool:
        """Commit rows and the marker at once; False: another commit came first, or may have been this one."""

    def compact(self) -> None:
        """Make few files of many; what it does while others write, it may give up."""


class Batch(Protocol):
    """What one shard wrote in one epoch."""

    @property
    def epoch(self) -> int: ...

    @property
    def size(self) -> int: ...

    def read(self) -> bytes: ...


class Options(NamedTuple):
    """When rows are published."""

    every: float = EVERY
    rows: int = ROWS
    compact_after: int = COMPACT_AFTER


class TablePublisher:
    """Publishes to one table, in the driver, for all sinks of the pipeline that write it."""

    def __init__(self, sink: str, table: Table, staging: Staging | ObjectStaging) -> None:
        self._sink = sink
        self._table = table
        self._staging = staging
        self._later = Later(EVERY, self._publish_later)
        self._options = Options()
        self._origin = ""
        self._committed = 0
        self._commits = 0

    def begin(self, origin: str, epoch: int, options: Options) -> None:
        """Publish what the last driver left of committed epochs."""
        with self._later.lock, self._staging.writing():
            self._options = options
            self._later.seconds = options.every
            self._origin, self._committed = origin, epoch
            self._staging.open()
            self._staging.sweep()
            self._publish()

    def commit(self, epoch: int) -> None:
        """Publish what an epoch has staged, soon. Where that fails, it stays staged."""
        with self._later.lock, self._staging.writing():
            if epoch <= self._committed:
                return
            self._committed = epoch
            if self._later.seconds <= 0 or self._staging.size() >= self._options.rows * _ROW_BYTES:
                self._later.cancel()
                self._publish()
            else:
                self._later.ask()

    def close(self) -> None:
        """Publish all that is committed."""
        with self._later.lock, self._staging.writing():
            self._later.cancel()
            if self._origin:
                self._publish()
                self._origin = ""

    def _publish_later(self) -> None:
        with self._staging.writing():
            self._publish()

    def _publish(self) -> None:
        staged: Sequence[Batch] = self._staging.batches(0, self._committed)
        if not staged:
            return
        marker = self._table.marker(self._origin)
        for group in self._groups([item for item in staged if item.epoch > marker]):
            self._add(group)
        self._staging.drop(self._committed)
        if self._options.compact_after and self._commits >= self._options.compact_after:
            self._commits = 0
            try:
                self._table.compact()
            except MillWheelError as error:  # the rows are in; the next one tries again
                logger.warning("%s: many small files are left: %s", self._sink, error)

    def _groups(self, staged: list[Batch]) -> Iterator[list[Batch]]:
        """Cut batches into groups of whole epochs, each of which fits into memory."""
        group: list[Batch] = []
        size = 0
        for item in staged:
            if group and size >= self._options.rows * _ROW_BYTES and item.epoch > group[-1].epoch:
                yield group
                group, size = [], 0
            group.append(item)
            size += item.size
        if group:
            yield group

    def _add(self, group: list[Batch]) -> None:
        rows = decode(item.read() for item in group)
        epoch = group[-1].epoch
        for _ in range(_ATTEMPTS):
            if self._table.add(rows, self._origin, epoch):
                self._commits += 1
                return
            marker = self._table.marker(self._origin)
            if marker >= epoch:  # the commit was there though its answer was lost, or another driver did it
                return
            if marker >= group[0].epoch:
                rows = decode(item.read() for item in group if item.epoch > marker)
        raise MillWheelError(
            f"{self._sink}: other writers came first {_ATTEMPTS} times: run fewer of them; nothing is lost"
        )


_publishers: dict[str, TablePublisher] = {}


def begin(name: str, publisher: TablePublisher, origin: str, epoch: int, options: Options) -> None:
    """Make a publisher this process's only one of a table: the sinks of several streams may share it."""
    _publishers[name] = publisher
    publisher.begin(origin, epoch, options)


def commit(name: str, epoch: int) -> None:
    """Publish what an epoch has staged for a table, soon."""
    _publishers[name].commit(epoch)


def close(name: str) -> None:
    """Publish all that is committed; a table that was never begun has nothing."""
    if name in _publishers:
        _publishers[name].close()
