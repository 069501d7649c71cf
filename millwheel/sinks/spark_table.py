"""Records as batches of rows for a Spark data source.

    STAGED/0000000012-00000003     the rows of shard 3 in epoch 12, as Parquet, which Spark reads itself
    STAGED/state                   the epochs that are written, and the batch that is being written

1. Tasks stage their rows. *Crash*: the epoch is run again, and stages the same.
2. The epoch is committed in the journal. *Crash*: the next driver finds the rows staged, and does 3.
3. The state is saved with the batch to be written: its number, and its epochs. *Crash*: the next
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
from millwheel.sinks.schedule import Schedule
from millwheel.sinks.staging import Staging
from millwheel.sinks.table_publisher import EVERY, ROWS

Write = Callable[[Any, int], object]
_ROW_BYTES = 16  # the least size of a staged row, compressed


class SparkTable(Sink):
    """Writes records with any Spark data source, for systems without a sink here.

    ``to`` is a function of a DataFrame and the number of its batch, like that of ``foreachBatch``, which runs
    in the driver; or the name of a table, or a path (with a ``/``), to which rows are appended in ``format``
    with ``options``. The columns are ``key``, ``timestamp``, and ``value`` as JSON text, or with ``schema``
    (names of fields to types of Arrow, or a `pyarrow.Schema`) the fields of values that are dicts.

    At least once: after a crash the last batch is written again, with the same number and the same rows. A
    function that replaces an existing batch of the same number makes that exactly
    once; so does ``format="delta"``, by its application transactions.

    Rows of committed epochs are a batch every ``every`` seconds (0: with each epoch), after ``rows`` rows,
    and at the end. ``staging`` is a folder that driver and workers share. ``name`` distinguishes sinks with
    the same ``to``; it must not change between runs.
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
        """The attributes that a task needs: the staging."""
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
        self._publisher = SparkPublisher(self._spark, write, self._staging)
        self._publisher.begin(epoch, self._every, self._limit)

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        if records:
            self._staging.put(epoch, shard, self._rows.encode_parquet(records))

    def commit(self, epoch: int) -> None:
        if self._publisher is not None:
            self._publisher.schedule.commit(epoch)

    def close(self) -> None:
        if self._publisher is not None:
            _begun.pop(self._staging.folder, None)
            self._publisher.schedule.close()


_begun: WeakValueDictionary[Path, SparkTable] = WeakValueDictionary()
"""The sinks by staging folder: two in one folder would mix their rows."""


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
    """Passes batches of committed epochs to Spark; finishes a begun batch first."""

    def __init__(self, spark: Any, write: Write, staging: Staging) -> None:
        self._spark = spark
        self._write = write
        self._staging = staging
        self.schedule = Schedule(self._publish)
        self._state: dict[str, Any] = {}

    def begin(self, epoch: int, every: float, rows: int) -> None:
        """Take over from the last driver, and finish the batch that it began."""
        with self.schedule.begin(self._staging, epoch, every, rows * _ROW_BYTES):
            self._state = {"batch": 0, "through": 0, "pending": None, **self._staging.take()}

    def _publish(self) -> None:
        self._finish()
        if self._staging.batches(self._state["through"], self.schedule.committed):
            self._change(batch=self._state["batch"] + 1, pending=self.schedule.committed)
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
