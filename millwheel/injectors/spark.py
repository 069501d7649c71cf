"""Spark DataFrames as injectors: bounded ones, and those of Structured Streaming.

Tasks cannot ask Spark for rows, and a source may not give the same rows twice. So the driver lets Spark write
the rows to a *spool*, a folder of Parquet files, and tasks read that, through Arrow.

    SPOOL/checkpoint/           Structured Streaming's own: the rows of each batch
    SPOOL/batch-0000000007/     a batch, complete or absent; emptied once its epoch is committed
"""

from __future__ import annotations

import glob as globbing
import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors import parquet
from millwheel.injectors.arrow_table import check_columns
from millwheel.injectors.units import Unit, check_name
from millwheel.model.injector import Errors, Injector, Offset, RecordBatch
from millwheel.model.names import folder_name
from millwheel.model.time import DAY, MAX_TIME, MIN_TIME, MINUTE, SECOND

logger = logging.getLogger("millwheel")

_SLACK = 10 * SECOND  # the default for how far rows of a stream may be out of order
_KEPT = 100  # batches whose empty folders stay: Structured Streaming repeats only the last one


def first_line(error: object) -> str:
    """The text of a Spark error, without its plans."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


class _Spooled(Injector):
    """Rows in a spool. Offsets count batches; file i belongs to partition i modulo n."""

    in_turn = True

    def __init__(
        self,
        frame: Any,
        timestamp: str,
        id: str | None,
        unit: Unit | None,
        spool: str | os.PathLike[str] | None,
        errors: Errors,
        id_retention: int,
    ) -> None:
        check_name(unit, type(self).__name__)
        columns = getattr(frame, "columns", None)
        if columns is None:
            raise InputError(f"{type(self).__name__} takes a DataFrame of Spark, not {frame!r}")
        if type(frame).__module__.startswith("pyspark.sql.connect"):
            raise InputError(
                f"{type(self).__name__}: the DataFrame is of a session of Spark Connect, which has no RDDs: "
                "make it with a classic session"
            )
        check_columns(list(columns), {"timestamp": timestamp, "ID": id}, "the DataFrame")
        self._frame = frame
        self._timestamp = timestamp
        self._id = id
        self._unit = unit
        self._given = None if spool is None else Path(spool).absolute()
        self._spool = Path()
        self._parts = 1
        self._rows: dict[int, list[int]] = {}
        self.errors = errors
        self.id_retention = id_retention

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._timestamp!r})"

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that a task needs: the folder, not the DataFrame."""
        return {**self.__dict__, "_frame": None, "_query": None, "_rows": {}}

    def begin(self, origin: str, name: str) -> None:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        self._spool = self._given or state / "millwheel" / "spool" / origin / folder_name(name)
        # Private by default; a given folder must be accessible to the workers, too.
        self._spool.mkdir(mode=0o700 if self._given is None else 0o777, parents=True, exist_ok=True)
        parts = self._spool / "partitions"
        if not parts.exists():
            count = self._frame.sparkSession.sparkContext.defaultParallelism
            staged = parts.with_name(".partitions")
            staged.write_text(str(count))
            staged.replace(parts)
        self._parts = int(parts.read_text())
        self._rows = {}

    def _batches(self) -> int:
        """The number of batches, those already read included."""
        return max(self._numbers(), default=-1) + 1

    def _numbers(self) -> list[int]:
        found = [name.partition("batch-") for name in os.listdir(self._spool)]
        return [int(number) for before, mark, number in found if mark and not before]

    def _batch(self, number: int) -> Path:
        return self._spool / f"batch-{number:010d}"

    def _files(self, partition: str, number: int) -> list[str]:
        found = sorted(globbing.glob(f"{globbing.escape(os.fspath(self._batch(number)))}/*.parquet"))
        return found[int(partition) :: self._parts]

    def _counts(self, number: int) -> list[int]:
        """The number of rows of a batch by partition."""
        if number not in self._rows:
            parts = map(str, range(self._parts))
            self._rows[number] = [sum(map(parquet.rows, self._files(part, number))) for part in parts]
        return self._rows[number]

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        found = 0
        for number in range(start or 0, end):
            found += self._counts(number)[int(partition)]
            if found >= records:
                return number + 1
        return end

    def size(self, partition: str, start: Offset, end: Offset) -> int:
        return sum(self._counts(number)[int(partition)] for number in range(start or 0, end))

    def read_batches(self, partition: str, start: Offset, end: Offset) -> Iterable[RecordBatch]:
        for number in range(start or 0, end):
            if not self._batch(number).is_dir():
                raise InputError(f"the spool {self._spool} lost batch {number}, which was not read yet")
            for path in self._files(partition, number):
                rows = parquet.rows(path)
                unit = self._unit or ("us" if number else None)  # only the first batch is checked
                yield from parquet.batches(path, 0, rows, self._timestamp, self._id, unit)

    def poll(self) -> Mapping[str, Offset]:
        end = self._batches()
        return {str(part): end or None for part in range(self._parts)}

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return MAX_TIME if self.bounded and (offset or 0) >= self._batches() else MIN_TIME

    def publish(self, frame: Any, number: int) -> None:
        """Writes a batch atomically; one that exists is not changed."""
        if self._batch(number).is_dir():
            return
        staged = self._spool / ".staged"
        frame.write.mode("overwrite").parquet(os.fspath(staged))
        staged.rename(self._batch(number))


class SparkTable(_Spooled):
    """Injects the rows of a bounded DataFrame: backfill, with the live code.

    A value is a dict of the columns; ``timestamp`` names the one with the event time (of a time type, or
    in ``unit``), ``id`` one with a unique name of a record, if there is one. The watermark moves when all is
    read. The rows are written to ``spool`` when the pipeline first starts, and read from there: a restart
    continues with the same rows, even if the DataFrame has changed.

    Once all of them were read, a further run injects the rows of the DataFrame that are not in the spool,
    every time: a table that grows gives each day's rows, and the same table nothing.
    """

    def __init__(
        self,
        frame: Any,
        *,
        timestamp: str,
        id: str | None = None,
        unit: Unit | None = None,
        spool: str | os.PathLike[str] | None = None,
        errors: Errors = "stop",
        id_retention: int = DAY,
    ) -> None:
        super().__init__(frame, timestamp, id, unit, spool, errors, id_retention)
        if getattr(frame, "isStreaming", False):
            raise InputError("SparkTable takes a bounded DataFrame: a streaming one is for SparkStream")
        self._read: dict[str, Offset] = {}
        self._anew = False

    def begin(self, origin: str, name: str) -> None:
        super().begin(origin, name)
        self._read = {}
        self._anew = not self._batches()
        self.publish(self._frame, 0)

    def commit(self, offsets: Mapping[str, Offset]) -> None:
        self._read.update(offsets)

    def lost(self, offsets: Mapping[str, Offset]) -> str | None:
        return None  # the spool keeps every row

    def run_begins(self) -> None:
        ends = self.poll()
        if self._anew and self._read:
            if any(self._read.get(part) != end for part, end in ends.items()):
                raise InputError(
                    f"{self!r}: its spool {self._spool} was removed, and the DataFrame has more or fewer "
                    "rows than were read before: the new ones cannot be determined. Restore the spool, or "
                    "use a new store"
                )
            return
        if self._read and all((self._read.get(part) or 0) >= (end or 0) for part, end in ends.items()):
            self._take_new_rows()

    def _take_new_rows(self) -> None:
        """Spools the rows that are new since the table was last read."""
        number = self._batches()
        spooled = [os.fspath(self._batch(n)) for n in range(number)]
        known = self._frame.sparkSession.read.parquet(*spooled)
        if set(known.columns) != set(self._frame.columns):
            raise InputError(
                f"{self!r}: the DataFrame has the columns {', '.join(self._frame.columns)}, and its rows "
                f"that were read before have {', '.join(known.columns)}: the new rows cannot be determined. "
                "Select the same columns, or use a new store"
            )
        try:
            new = self._frame.select(known.columns).exceptAll(known)
        except Exception as error:  # Spark reports types that it cannot compare in the plan
            logger.warning(
                "%r: Spark cannot compare its rows with those that were read before, so nothing new is read "
                "(%s). Select maps as arrays of entries: map_entries(column)",
                self,
                first_line(error),
            )
            return
        self.publish(new, number)
        if not sum(self._counts(number)):
            shutil.rmtree(self._batch(number))

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        """An offset within the range; they count rows, as a table may be too large."""
        return min(end, (start or 0) + records)

    def size(self, partition: str, start: Offset, end: Offset) -> int:
        length: int = end - (start or 0)
        return length

    def poll(self) -> Mapping[str, Offset]:
        return {str(part): self._total(str(part)) or None for part in range(self._parts)}

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return MAX_TIME if (offset or 0) >= self._total(partition) else MIN_TIME

    def _total(self, partition: str) -> int:
        return sum(self._counts(number)[int(partition)] for number in range(self._batches()))

    def read_batches(self, partition: str, start: Offset, end: Offset) -> Iterable[RecordBatch]:
        first, begin = 0, start or 0
        for number in range(self._batches()):
            for path in self._files(partition, number):
                last = first + parquet.rows(path)
                if first < end and last > begin:
                    yield from parquet.batches(
                        path,
                        max(begin - first, 0),
                        min(end, last) - first,
                        self._timestamp,
                        self._id,
                        self._unit,
                    )
                first = last


class SparkStream(_Spooled):
    """Injects the rows of a streaming DataFrame, of any Structured Streaming source.

    A value is a dict of the columns; ``timestamp`` and ``id`` as in `SparkTable`. The watermark stays
    ``slack`` behind the newest timestamp; a partition that is idle for ``idle_after`` no longer holds it.

    Each row is injected once, across restarts, if the source can be read again from Structured
    Streaming's checkpoint, which is in ``spool``. `millwheel.run` reads what is there at its start.
    """

    in_turn = False

    def __init__(
        self,
        frame: Any,
        *,
        timestamp: str,
        id: str | None = None,
        unit: Unit | None = None,
        slack: int = _SLACK,
        idle_after: int | None = MINUTE,
        spool: str | os.PathLike[str] | None = None,
        interval: str = "0 seconds",
        errors: Errors = "stop",
        id_retention: int = DAY,
    ) -> None:
        super().__init__(frame, timestamp, id, unit, spool, errors, id_retention)
        if not getattr(frame, "isStreaming", False):
            raise InputError("SparkStream takes a streaming DataFrame: a bounded one is for SparkTable")
        self.slack = slack
        self.idle_after = idle_after
        self._interval = interval
        self._query: Any = None
        self._read: dict[str, Offset] = {}
        self._emptied = 0

    def open(self, *, follow: bool) -> None:
        self.bounded = not follow

    def begin(self, origin: str, name: str) -> None:
        super().begin(origin, name)
        self._read, self._emptied = {}, min(self._numbers(), default=0)
        trigger = {"availableNow": True} if self.bounded else {"processingTime": self._interval}
        writer = self._frame.writeStream.foreachBatch(self.publish).trigger(**trigger)
        checkpoint = os.fspath(self._spool / "checkpoint")
        self._query = writer.option("checkpointLocation", checkpoint).start()
        if self.bounded:
            self._await_end()

    def _await_end(self) -> None:
        try:
            self._query.awaitTermination()
        except Exception as error:
            raise self._error(error) from None

    def _error(self, error: object) -> InputError:
        return InputError(f"{self!r}: the streaming query ended with {first_line(error)}")

    def poll(self) -> Mapping[str, Offset]:
        if not self.bounded and not self._query.isActive:
            raise self._error(self._query.exception() or "no error: it was stopped from outside")
        return super().poll()

    def lost(self, offsets: Mapping[str, Offset]) -> str | None:
        return "its batches are removed as they are committed, and Structured Streaming does not go back"

    def commit(self, offsets: Mapping[str, Offset]) -> None:
        """Empties the batches that all partitions have been read past."""
        self._read.update(offsets)
        done = min(self._read.get(str(part)) or 0 for part in range(self._parts))
        for number in range(self._emptied, done):
            self._rows.pop(number, None)
            for path in [*self._batch(number).glob("*"), *self._batch(number).glob(".*")]:
                path.unlink(missing_ok=True)
            if number >= _KEPT:
                shutil.rmtree(self._batch(number - _KEPT), ignore_errors=True)
        self._emptied = max(self._emptied, done)

    def close(self) -> None:
        if self._query is not None and self._query.isActive:
            self._query.stop()
