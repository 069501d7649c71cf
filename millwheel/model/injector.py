"""Injectors read external data and start the low watermarks (5.2)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from millwheel.model.batch import BadInput as BadInput
from millwheel.model.batch import RecordBatch as RecordBatch
from millwheel.model.field_columns import FieldColumns
from millwheel.model.record import Record
from millwheel.model.time import DAY

Offset = Any
"""A position in a partition: any MessagePack value; ``None`` is the start."""

Errors = Literal["stop", "divert"]

_UNKNOWN_SIZE = 10_000  # the size of a range with unknown offsets: enough for a shuffle


class FieldNames(tuple[str, ...]):
    """Names of fields; ``optional`` ones may be missing in a value, and are None."""

    optional: frozenset[str]
    columns: bool
    """Whether `FieldColumns` are sufficient: no consumer takes single records."""

    def __new__(
        cls, needed: Collection[str], optional: Collection[str] = (), *, columns: bool = False
    ) -> FieldNames:
        names = super().__new__(cls, sorted({*needed, *optional}))
        names.columns = columns
        names.optional = frozenset(optional) - frozenset(needed)
        return names


class Injector:
    """A source of records in partitions, each read from offset to offset.

    The driver calls `poll`, `low_watermark` and `commit`; tasks call `read`, on a copy. The same
    range must give the same records each time it is read: an epoch that failed reads it again.
    An injector is exhausted when every partition has been read to its end by `poll` and its low
    watermark is `MAX_TIME`.
    """

    errors: Errors = "stop"
    """For a bad record: stop the pipeline, or divert it to ``STREAM.errors``."""
    slack: int | None = None
    """With a number, the watermark also follows the newest timestamp, less this."""
    idle_after: int | None = None
    """Idle wall time after which a partition no longer holds the watermark."""
    expected: Collection[str] = ()
    """Partitions that must exist: a missing one holds the watermark (5.2)."""
    in_turn: bool = False
    """True if partitions are to be read one after another, in the order of `poll`."""
    bounded: bool = True
    """False while more input may come: then it is never exhausted."""
    id_retention: int = DAY
    """The wall time for which record IDs are kept: later, a resend counts again."""

    def open(self, *, follow: bool) -> None:
        """Called on the driver before the first poll; ``follow``: the run does not end."""

    def begin(self, origin: str, name: str) -> None:
        """Called on the driver after `open`, before polls and before it is sent to tasks.

        ``origin`` names the store, ``name`` this injector in the pipeline: together they are unique, and
        the same after a restart.
        """

    def notify(self, wake: Callable[[], None]) -> bool:
        """Called on the driver after `begin`, with a function to call on new input.

        Any thread may call it, also needlessly. Return True if it is always called, so that an idle pipeline
        polls rarely; False, the default: the injector is polled every few milliseconds.
        """
        return False

    def run_begins(self) -> None:
        """Called on the driver before a run's first poll, after earlier commits.

        A change of the running pipeline is not a new run.
        """

    def poll(self) -> Mapping[str, Offset]:
        """Returns, by partition, the offset up to which it can be read now."""
        raise NotImplementedError(f"{type(self).__name__} has no poll()")

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[Record]:
        """The records of a partition from ``start`` (``None``: its beginning) to ``end``."""
        batches = self.read_batches(partition, start, end)
        if batches is None:
            raise NotImplementedError(f"{type(self).__name__} has neither read() nor read_batches()")
        return (record for batch in batches for record in batch.records())

    def read_batches(self, partition: str, start: Offset, end: Offset) -> Iterable[RecordBatch] | None:
        """The records of `read` in columns; None: use `read`."""
        return None

    def read_fields(
        self, partition: str, start: Offset, end: Offset, fields: Collection[str]
    ) -> Iterable[RecordBatch | FieldColumns] | None:
        """The records of `read_batches`, of whose values only these fields are needed.

        ``fields`` are `FieldNames`: those that are ``optional`` may be missing in a value.
        """
        return self.read_batches(partition, start, end)

    def low_watermark(self, partition: str, offset: Offset) -> int:
        """The low watermark of a partition that was read up to ``offset``."""
        raise NotImplementedError(f"{type(self).__name__} has no low_watermark()")

    def why_empty(self) -> str:
        """Why `poll` names no partition, for display: what is searched, and where."""
        return f"{type(self).__name__} has found nothing to read yet"

    def commit(self, offsets: Mapping[str, Offset]) -> None:
        """Called after a commit; what is before these offsets is not read again."""

    def lost(self, offsets: Mapping[str, Offset]) -> str | None:
        """Why what is before these offsets cannot be read again; None: it can.

        Called on the driver, after `begin`, when a computation is added that needs all of it.
        """
        if type(self).commit is not Injector.commit:
            return "it may drop committed input; define lost() if it does not"
        return None

    def close(self) -> None:
        """Called on the driver when the pipeline ends, also after a failure."""

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        """An offset near ``records`` after ``start``, at most ``end``: sizes an epoch.

        The default is ``end``. It must give the same answer for the same arguments.
        """
        return end

    def size(self, partition: str, start: Offset, end: Offset) -> int:
        """The estimated number of records of a range, which decides its number of tasks."""
        if isinstance(end, int) and isinstance(start, int | None):
            return max(end - (start or 0), 0)
        return _UNKNOWN_SIZE
