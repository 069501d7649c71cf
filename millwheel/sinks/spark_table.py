"""Records as batches of rows for a data source of Spark.

    STAGED/0000000012-00000003     the rows of shard 3 in epoch 12, as Parquet, which Spark reads itself
    STAGED/state                   which epochs are written, and which batch is being written

1. Tasks stage their rows. *Crash*: the epoch is run again, and stages the same.
2. The epoch is committed in the journal. *Crash*: the next driver finds the rows staged, and does 3.
3. The state is saved with the batch that is to be written: its number, and its epochs. *Crash*: the next
   driver writes the same rows under the same number.
4. Spark writes the batch. *Crash*: it is written again, as in 3.
5. The state is saved: the batch is written. Its rows are dropped. *Crash*: the next driver does that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from millwheel.errors import MillWheelError
from millwheel.model.names import folder_name
from millwheel.model.record import Record
from millwheel.model.sink import Sink
from millwheel.sinks.arrow_rows import DATE, ArrowRows
from millwheel.sinks.delta import check_columns, columns
from millwheel.sinks.staging import Later, Staging
from millwheel.sinks.table_publisher import EVERY, ROWS

Write = Callable[[Any, int], object]
_ROW_BYTES = 16  # of a staged row, packed, at the least


class SparkTable(Sink):
    """Writes records with Spark, for what has no sink of its own: any data source that Spark has.

    ``to`` is a function of a DataFrame and the number of its batch, as that of ``foreachBatch``, which runs
    in the driver; or the name of a table, or a path (with a ``/``), which rows are appended to in ``format``
    with ``options``. The columns are ``key``, ``timestamp``, and ``value`` as JSON text, or with ``schema``
    (names of fields to types of Arrow, or a `pyarrow.Schema`) the fields of values that are dicts.

    At least once: after a crash the last batch comes again, with the same number and the same rows. A
    function that writes a batch under its number, in the place of one that is there, makes that exactly
    once; so does ``format="delta"``, by its application transactions.

    Rows of committed epochs are a batch every ``every`` seconds (0: with each epoch), after ``rows`` rows,
    and at the end. ``staging`` is a folder that driver and workers share. ``name`` tells sinks apart that
    have the same ``to``; it stays the same from run to run.
    """

    def __init__(
        self,
        spark: Any,
        to: str | os.PathLike[str] | Write,
        *,
        format: str | None = None,
        options: Mapping[str, Any] | None = None,
        partition_by: Sequence[str] | str = (),
        schema: Any = None,
        every: float = EVERY,
        rows: int = ROWS,
        staging: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> None:
        if not hasattr(spark, "createDataFrame"):
            raise MillWheelError(f"SparkTable takes a SparkSession, not {spark!r}")
        self._spark = spark
        self._to = getattr(to, "__qualname__", type(to).__name__) if callable(to) else os.fspath(to)
        self._name = name or self._to
        partitions = columns("SparkTable", "partition_by", partition_by)
        self._rows = ArrowRows("SparkTable", schema, date=DATE in partitions)
        check_columns("SparkTable", self._rows, partitions, [])
        self._write = to if callable(to) else None
        self._save = Save(self._to, format, dict(options or {}), partitions)
        self._every = every
        self._limit = rows
        self._given = None if staging is None else Path(staging).absolute()
        self._staging = Staging(self._given or Path(), repr(self))
        self._publisher: SparkPublisher | None = None

    def __repr__(self) -> str:
        return f"SparkTable({self._name!r})"

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs: where it stages rows."""
        return {**self.__dict__, "_spark": None, "_write": None, "_save": None, "_publisher": None}

    def open(self) -> None:
        if self._given is not None:
            self._staging.open()

    def begin(self, origin: str, epoch: int) -> None:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        folder = self._given or state / "millwheel" / "staged"
        self._staging = Staging(folder / origin / folder_name(self._name), repr(self))
        self._staging.open()
        other = _begun.setdefault(self._staging.folder, self)
        if other is not self:
            raise MillWheelError(f"there are two sinks {self!r}: give each one a name=")
        write = self._write or (lambda frame, batch: self._save(frame, batch, origin))
        self._publisher = SparkPublisher(self._spark, write, self._staging, self._every, self._limit)
        self._publisher.begin(epoch)

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        if records:
            self._staging.put(epoch, shard, self._rows.encode_parquet(records))

    def commit(self, epoch: int) -> None:
        if self._publisher is not None:
            self._publisher.commit(epoch)

    def close(self) -> None:
        if self._publisher is not None:
            _begun.pop(self._staging.folder, None)
            self._publisher.close()


_begun: WeakValueDictionary[Path, SparkTable] = WeakValueDictionary()
"""The sinks that write, by where they stage: what two of them staged in one place would be mixed."""


class Save:
    """Appends a batch to a table or a path."""

    def __init__(self, name: str, format: str | None, options: dict[str, Any], partitions: list[str]) -> None:
        self._name = name
        self._format = format
        self._options = options
        self._partitions = partitions

    def __call__(self, frame: Any, batch: int, origin: str) -> None:
        writer = frame.write.mode("append").options(**self._options)
        if self._format is not None:
            writer = writer.format(self._format)
        if self._format == "delta":
            writer = writer.option("txnAppId", f"millwheel-{origin}").option("txnVersion", batch)
        if self._partitions:
            writer = writer.partitionBy(*self._partitions)
        writer.save(self._name) if "/" in self._name else writer.saveAsTable(self._name)


class SparkPublisher:
    """Hands batches of committed epochs to Spark, in the driver; a batch that was begun is finished first."""

    def __init__(self, spark: Any, write: Write, staging: Staging, every: float, rows: int) -> None:
        self._spark = spark
        self._write = write
        self._staging = staging
        self._rows = rows
        self._later = Later(every, self._publish_later)
        self._committed = 0
        self._state: dict[str, Any] = {}
        self._open = False

    def begin(self, epoch: int) -> None:
        """Take over from the last driver, and finish the batch that it began."""
        with self._later.lock, self._staging.writing():
            self._state = {"batch": 0, "through": 0, "pending": None, **self._staging.take()}
            self._committed, self._open = epoch, True
            self._publish()

    def commit(self, epoch: int) -> None:
        """Write what an epoch has staged, soon. Where that fails, it stays staged."""
        with self._later.lock, self._staging.writing():
            if epoch <= self._committed:
                return
            self._committed = epoch
            if self._later.seconds <= 0 or self._staging.size() >= self._rows * _ROW_BYTES:
                self._later.cancel()
                self._publish()
            else:
                self._later.ask()

    def close(self) -> None:
        """Write all that is committed."""
        with self._later.lock, self._staging.writing():
            self._later.cancel()
            if self._open:
                self._open = False
                self._publish()

    def _publish_later(self) -> None:
        with self._staging.writing():
            self._publish()

    def _publish(self) -> None:
        self._finish()
        if self._staging.batches(self._state["through"], self._committed):
            self._change(batch=self._state["batch"] + 1, pending=self._committed)
            self._finish()

    def _finish(self) -> None:
        """Write the batch that was begun, if there is one."""
        through = self._state["pending"]
        if through is None:
            return
        paths = [os.fspath(item.path) for item in self._staging.batches(self._state["through"], through)]
        try:
            frame = self._spark.read.option("mergeSchema", "true").parquet(*paths)
            self._write(frame, self._state["batch"])
        except Exception as error:
            raise MillWheelError(
                f"SparkTable: batch {self._state['batch']} could not be written "
                f"({type(error).__name__}: {_first_line(error)}): fix it and run again; nothing is lost"
            ) from error
        self._change(through=through, pending=None)
        self._staging.drop(through)

    def _change(self, **changes: Any) -> None:
        state = {**self._state, **changes}
        self._staging.save(state)
        self._state = state


def _first_line(error: object) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "")
