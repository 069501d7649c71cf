"""Injectors bring external data in and seed the low watermarks (5.2)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from millwheel.model.batch import BadInput as BadInput
from millwheel.model.batch import RecordBatch as RecordBatch
from millwheel.model.record import Record
from millwheel.model.time import DAY

Offset = Any
"""A position in a partition: anything that MessagePack carries. A partition starts at ``None``."""

Errors = Literal["stop", "divert"]

_UNKNOWN_SIZE = 10_000  # of a range whose offsets tell nothing: enough to be worth a shuffle


class FieldNames(tuple[str, ...]):
    """Names of fields, of which some may be missing in a value: those are None there."""

    optional: frozenset[str]

    def __new__(cls, needed: Collection[str], optional: Collection[str] = ()) -> FieldNames:
        names = super().__new__(cls, sorted({*needed, *optional}))
        names.optional = frozenset(optional) - frozenset(needed)
        return names


class Injector:
    """A source of records in partitions, each read from offset to offset.

    The driver calls `poll`, `low_watermark` and `commit`; tasks call `read`, on a copy. The same
    range must give the same records each time it is read: an epoch that failed reads it again.
    An injector is exhausted when every partition has been read to what `poll` said and its low
    watermark is `MAX_TIME`.
    """

    errors: Errors = "stop"
    """What a record that cannot be read or keyed does: stop the pipeline, or go to ``STREAM.errors``."""
    slack: int | None = None
    """With a number, the watermark also follows the newest timestamp read, this far behind."""
    idle_after: int | None = None
    """With a number: a partition with nothing new for so long (of wall time) holds the watermark no more."""
    expected: Collection[str] = ()
    """Partitions that there must be: one that `poll` does not name holds the watermark (5.2)."""
    in_turn: bool = False
    """True where partitions are to be read one after another, as poll() names them, not side by side."""
    bounded: bool = True
    """False while more may come, whatever the partitions say: such an injector is never exhausted."""
    id_retention: int = DAY
    """How long (of wall time) the IDs of records are remembered: past it, a resend counts again."""

    def open(self, *, follow: bool) -> None:
        """Called on the driver before the first poll; ``follow`` is False where a run ends by itself."""

    def begin(self, origin: str, name: str) -> None:
        """Called on the driver after `open`, before the first poll and before it is shipped to the tasks.

        ``origin`` names the store, ``name`` this injector in the pipeline: together they are the same after a
        restart, and nowhere else.
        """

    def notify(self, wake: Callable[[], None]) -> bool:
        """Called on the driver after `begin`: ``wake`` is to be called when `poll` has something new.

        Any thread may call it, also in vain. True: it is always called, so that an idle pipeline polls
        seldom; False, the default: the injector is polled every few milliseconds.
        """
        return False

    def run_begins(self) -> None:
        """Called on the driver before the first poll of a run, after `commit` has told what was read before.

        A change of the running pipeline is no new run.
        """

    def poll(self) -> Mapping[str, Offset]:
        """Per partition, how far one may read now."""
        raise NotImplementedError(f"{type(self).__name__} has no poll()")

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[Record]:
        """The records of a partition from ``start`` (``None``: its beginning) to ``end``."""
        batches = self.read_batches(partition, start, end)
        if batches is None:
            raise NotImplementedError(f"{type(self).__name__} has neither read() nor read_batches()")
        return (record for batch in batches for record in batch.records())

    def read_batches(self, partition: str, start: Offset, end: Offset) -> Iterable[RecordBatch] | None:
        """What `read` gives, in columns; None: `read` is asked. An injector has one of the two."""
        return None

    def read_fields(
        self, partition: str, start: Offset, end: Offset, fields: Collection[str]
    ) -> Iterable[RecordBatch] | None:
        """What `read_batches` gives, where of the values nothing but these fields is needed now.

        ``fields`` are `FieldNames`: those that are ``optional`` may be missing in a value.
        """
        return self.read_batches(partition, start, end)

    def low_watermark(self, partition: str, offset: Offset) -> int:
        """No record older than this is expected in the partition behind ``offset``."""
        raise NotImplementedError(f"{type(self).__name__} has no low_watermark()")

    def why_empty(self) -> str:
        """Why `poll` names no partition, for people: what is looked for, and where."""
        return f"{type(self).__name__} has found nothing to read yet"

    def commit(self, offsets: Mapping[str, Offset]) -> None:
        """Told after an epoch has committed; what is before these offsets is not read again."""

    def lost(self, offsets: Mapping[str, Offset]) -> str | None:
        """Why what is before these offsets cannot be read again; None: it can, from ``None`` on.

        Asked on the driver, after `begin`, when a computation is added that wants all of it.
        """
        if type(self).commit is not Injector.commit:
            return "it may give up what is committed; define lost() to say that it does not"
        return None

    def close(self) -> None:
        """Called on the driver when the pipeline ends, whether it failed or not."""

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        """An offset after ``start``, at most ``end``, about ``records`` on: sizes an epoch.

        The default takes all there is. It must give the same answer for the same arguments.
        """
        return end

    def size(self, partition: str, start: Offset, end: Offset) -> int:
        """About how many records a range holds: decides how many tasks read it."""
        if isinstance(end, int) and isinstance(start, int | None):
            return max(end - (start or 0), 0)
        return _UNKNOWN_SIZE
