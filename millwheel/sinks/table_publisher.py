"""One commit of a lakehouse table for the staged rows of committed epochs.

Invariant: the table's marker, which changes in the same commit as its rows, is the last epoch whose rows are
in it, and all rows of the epochs up to it are. So a driver that was killed anywhere leaves nothing to undo,
and two drivers that publish at once cannot both succeed with the same epoch:

1. Tasks stage their rows under (epoch, shard). *Crash*: the epoch is run again, and stages the same.
2. The epoch is committed in the journal. *Crash*: the next driver finds the rows staged, and continues with
3. 3. The driver reads the marker, and commits the rows of later epochs with a new marker. *Crash before*:
   unreferenced files are left, which are never read; the next driver begins at 3. *Another commit came
   between*: begin at 3. *The answer is lost*: begin at 3, where the marker shows it.
4. Staged rows up to the marker are dropped. *Crash*: the next driver drops them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from millwheel.errors import MillWheelError
from millwheel.sinks.arrow_rows import decode
from millwheel.sinks.object_staging import ObjectStaging
from millwheel.sinks.schedule import Schedule
from millwheel.sinks.staging import Staging

logger = logging.getLogger("millwheel")

EVERY = 30.0  # seconds between commits: one for each epoch would make many small files
ROWS = 1_000_000  # after which a commit is made; the driver has this many in memory
COMPACT_AFTER = 50  # commits, and so files of a partition, between compactions
_ROW_BYTES = 64  # the least size of a staged row
_ATTEMPTS = 20  # at a commit: this many other writers would have to be first


class Table(Protocol):
    """A table with atomic commits."""

    def marker(self, origin: str) -> int:
        """Return the last epoch of a store whose rows are in the table; 0: none."""

    def add(self, rows: Any, origin: str, epoch: int) -> bool:
        """Commit rows and the marker; False: another came first, or it is unknown."""

    def compact(self) -> None:
        """Compact files; may give up while others write."""


class Batch(Protocol):
    """The output of one shard in one epoch."""

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
    """Publishes to one table, in the driver, for all sinks that write it."""

    def __init__(self, sink: str, table: Table, staging: Staging | ObjectStaging) -> None:
        self._sink = sink
        self._table = table
        self._staging = staging
        self.schedule = Schedule(self._publish)
        self._options = Options()
        self._origin = ""
        self._commits = 0

    def begin(self, origin: str, epoch: int, options: Options) -> None:
        """Publish committed epochs that the last driver left staged."""
        with self.schedule.begin(self._staging, epoch, options.every, options.rows * _ROW_BYTES):
            self._options = options
            self._origin = origin
            self._staging.open()
            self._staging.sweep()

    def _publish(self) -> None:
        staged: Sequence[Batch] = self._staging.batches(0, self.schedule.committed)
        if not staged:
            return
        marker = self._table.marker(self._origin)
        for group in self._groups([item for item in staged if item.epoch > marker]):
            self._add(group)
        self._staging.drop(self.schedule.committed)
        if self._options.compact_after and self._commits >= self._options.compact_after:
            self._commits = 0
            try:
                self._table.compact()
            except MillWheelError as error:  # the rows are committed; the next compaction retries
                logger.warning("%s: small files were not compacted: %s", self._sink, error)

    def _groups(self, staged: list[Batch]) -> Iterator[list[Batch]]:
        """Group batches into whole epochs that fit into memory."""
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
            if marker >= epoch:  # the commit succeeded though its answer was lost, or another driver made it
                return
            if marker >= group[0].epoch:
                rows = decode(item.read() for item in group if item.epoch > marker)
        raise MillWheelError(
            f"{self._sink}: other writers came first {_ATTEMPTS} times: run fewer of them; nothing is lost"
        )


_publishers: dict[str, TablePublisher] = {}


def begin(name: str, publisher: TablePublisher, origin: str, epoch: int, options: Options) -> None:
    """Register a table's only publisher of this process, shared by its sinks."""
    _publishers[name] = publisher
    publisher.begin(origin, epoch, options)


def commit(name: str, epoch: int) -> None:
    """Schedule the publication of an epoch's rows for a table."""
    _publishers[name].schedule.commit(epoch)


def close(name: str) -> None:
    """Publish all that is committed, if it was begun."""
    if name in _publishers:
        _publishers[name].schedule.close()
