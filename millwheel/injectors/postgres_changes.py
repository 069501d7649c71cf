"""Changes of PostgreSQL tables as records: a copy, then every change, once."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from millwheel.errors import InputError, MillWheelError, shorten
from millwheel.injectors.pgoutput import Change, Decoder, plain_loader
from millwheel.injectors.postgres_listen import Listener
from millwheel.injectors.postgres_slot import SCHEMA, Copied, Slot, text_of
from millwheel.injectors.units import BadLine, Unit, check_name, to_time
from millwheel.model.extras import import_extra
from millwheel.model.injector import BadInput, Errors, Injector, Offset, RecordBatch
from millwheel.model.keys import joined
from millwheel.model.secrets import percent_encoded, without_secrets
from millwheel.model.time import DAY, MAX_TIME, MIN_TIME, MINUTE, SECOND

_PARTITION = "changes"
_POLL = 0.05  # seconds between two reads of the slot; the server decodes each
IDLE = 10.0  # seconds after which a slot without changes is advanced, so that the server's log can go
AT_ONCE = 100_000  # messages counted at once; a transaction is never cut
_BATCH = 5_000
_NAME = 64  # bytes, with its end: PostgreSQL cuts off longer names of channels
SLACK = 5 * SECOND  # commits are ordered by position, and their times by little less


class PostgresChanges(Injector):
    """Injects the rows of published tables, then every change of them, each once.

    ``publication`` names the tables (``CREATE PUBLICATION name FOR TABLE ...``); the server needs
    ``wal_level = logical``, the role ``REPLICATION``. ``slot`` is the replication slot, by default one that
    belongs to the pipeline's store. A value is a dict: ``operation`` (``"snapshot"``, ``"insert"``,
    ``"update"``, ``"delete"``, ``"truncate"``), ``table``, ``key`` (the primary key's columns), ``before``
    and ``after`` (rows, or None), ``position`` and ``transaction``. Of an update or a delete, ``before`` has
    what the table's REPLICA IDENTITY gives: the key where it changed, or with FULL the whole row;
    ``unchanged`` names large columns that were not sent.

    The timestamp is that of the commit, or of the column ``timestamp`` of the row (in ``unit``). The records
    of a transaction come in one epoch, in order. `millwheel.run` reads to where the server was when it began.

    ``channel`` is one that a trigger of the tables notifies (``NOTIFY``): then the server is asked at once
    after a commit, and otherwise four times a second, in place of twenty.
    """

    in_turn = True

    def __init__(
        self,
        url: str,
        publication: str,
        *,
        slot: str | None = None,
        channel: str | None = None,
        timestamp: str | None = None,
        unit: Unit | None = None,
        slack: int = SLACK,
        idle_after: int | None = MINUTE,
        errors: Errors = "stop",
        id_retention: int = DAY,
    ) -> None:
        import_extra("PostgresChanges needs", "postgres", "psycopg")
        try:
            self._url = percent_encoded(url)
        except ValueError as error:
            raise MillWheelError(f"PostgresChanges({without_secrets(url)!r}): {error}") from None
        check_name(unit, "PostgresChanges")
        if slot is not None and not (slot and set(slot) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")):
            raise MillWheelError(f"PostgresChanges: slot has small letters, digits and _, not {slot!r}")
        if channel is not None and not 0 < len(channel.encode()) < _NAME:
            raise MillWheelError(f"PostgresChanges: channel is a name of PostgreSQL, not {channel!r}")
        self._publication = publication
        self._channel = channel
        self._listener: Listener | None = None
        self._notified = threading.Event()
        self._given_slot = slot
        self._timestamp = timestamp
        self._unit = unit
        self._wanted_slack = slack
        self.idle_after = idle_after
        self.errors = errors
        self.id_retention = id_retention
        self._keys: dict[str, list[str]] = {}
        self._slot = Slot(self._url, publication, slot or "")
        self._copied: Copied | None = None
        self._made = False
        self._read: Offset = None
        self._dropped = False
        self._last: int | None = None
        """Where a run that ends by itself stops."""
        self._ends: list[tuple[int, int]] = []
        """The commits that can be read, and the changes up to each."""
        self._complete = False
        """Whether those are all up to the end of a run."""
        self._polled = self._advanced = 0.0

    def __repr__(self) -> str:
        return f"PostgresChanges({without_secrets(self._url)!r}, {self._publication!r})"

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that a task needs: no thread of the driver's."""
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_listener", "_notified")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _listener=None, _notified=threading.Event())

    def open(self, *, follow: bool) -> None:
        self.bounded = not follow
        self.slack = self._wanted_slack if follow else None
        self._read, self._last, self._ends, self._dropped, self._polled = None, None, [], False, 0.0
        self._keys = self._asked(self._slot.check)

    def begin(self, origin: str, name: str) -> None:
        digest = hashlib.blake2b(f"{origin}\0{name}".encode(), digest_size=8).hexdigest()
        self._slot.close()
        self._slot = Slot(self._url, self._publication, self._given_slot or f"millwheel_{digest}")
        whose = f"{origin} {name}"
        found = self._asked(self._slot.find, whose)
        self._made = found is None
        self._copied = found or self._asked(self._slot.make, whose, sorted(self._keys))

    def _asked(self, ask: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return ask(*arguments, **options)
        except InputError as error:
            raise InputError(f"{self!r}: {error}") from None

    def notify(self, wake: Callable[[], None]) -> bool:
        if self.bounded or self._channel is None or self._listener is not None:
            return False

        def notified() -> None:
            self._notified.set()
            wake()

        self._listener = Listener(self._url, self._channel, notified)
        return True

    def run_begins(self) -> None:
        self._last, self._polled, self._complete = None, 0.0, False

    def poll(self) -> Mapping[str, Offset]:
        copied = self._begun()
        if self._last is None:
            self._last = self._asked(self._slot.flushed)
        now = time.monotonic()
        notified = self._notified.is_set()
        if notified or now - self._polled >= _POLL or (self.bounded and not self._complete):
            self._notified.clear()  # before the look: what is notified during it is for the next one
            self._polled = now
            self._look(now, self._last)
        start = copied.position if self._read is None else self._read[1]
        return {_PARTITION: [sum(copied.rows), max(start, self._ends[-1][0] if self._ends else 0)]}

    def _look(self, now: float, last: int) -> None:
        """Checks for commits to read; a slot that is in use is checked the next time."""
        before = self._asked(self._slot.flushed)
        found = self._asked(self._slot.commits, AT_ONCE)
        if found is None:
            return
        commits, complete = found
        self._ends = [(end, n) for end, n in commits if not self.bounded or end <= last]
        self._complete = complete or len(self._ends) < len(commits)
        if not commits and self._read is not None and now - self._advanced > IDLE:
            self._advanced = now
            self._asked(self._slot.advance, before)  # before it is nothing of the tables

    def _begun(self) -> Copied:
        if self._copied is None:
            raise InputError(f"{self!r}: begin() was not called")
        return self._copied

    def why_empty(self) -> str:
        return f"{self!r}: no change has come yet"

    def low_watermark(self, partition: str, offset: Offset) -> int:
        if not self.bounded or offset is None or not self._complete:
            return MIN_TIME
        done = offset[0] >= sum(self._begun().rows) and (not self._ends or offset[1] >= self._ends[-1][0])
        return MAX_TIME if done else MIN_TIME

    def commit(self, offsets: Mapping[str, Offset]) -> None:
        read = offsets.get(_PARTITION)
        if read is None:
            return
        if self._made and self._last is None:  # an earlier driver has read what was made only now
            self._asked(self._slot.unmake)
        self._read = read
        copied = self._begun()
        if read[1] > copied.position:
            self._asked(self._slot.advance, read[1])
        if not self._dropped and read[0] >= sum(copied.rows):
            self._asked(self._slot.drop_copies, len(copied.tables))
            self._dropped = True

    def lost(self, offsets: Mapping[str, Offset]) -> str | None:
        return "the slot keeps no change that is committed"

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._slot.close()

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        rows, position = (0, self._begun().position) if start is None else start
        if rows < end[0]:
            return [min(rows + records, end[0]), position]
        later = [(at, n) for at, n in self._ends if position < at <= end[1]]
        fitting = [at for at, n in later if n - self._before(position) <= records]
        return [end[0], max(fitting, default=later[0][0]) if later else end[1]]

    def _before(self, position: int) -> int:
        return max((n for at, n in self._ends if at <= position), default=0)

    def size(self, partition: str, start: Offset, end: Offset) -> int:
        rows, position = (0, 0) if start is None else start
        counts = [n for at, n in self._ends if position < at <= end[1]]
        return int(end[0] - rows + (counts[-1] - self._before(position) if counts else 0))

    def read_batches(self, partition: str, start: Offset, end: Offset) -> Iterable[RecordBatch]:
        copied = self._begun()
        rows, position = (0, copied.position) if start is None else start
        try:
            yield from self._copied_rows(copied, rows, end[0])
            yield from self._changes(position, end[1])
        except InputError as error:
            raise InputError(f"{self!r}: {error}") from None

    def _copied_rows(self, copied: Copied, first: int, last: int) -> Iterator[RecordBatch]:
        """The rows of the copies from one to another, as one sequence over all tables."""
        load, base = plain_loader(), 0
        for number, (table, count) in enumerate(zip(copied.tables, copied.rows, strict=True)):
            begin, stop = max(first - base, 0), min(last - base, count)
            base += count
            while begin < stop:
                upto = min(begin + _BATCH, stop)
                changes = list(self._rows(number, table, begin, upto, load))
                if len(changes) != upto - begin:
                    raise InputError(
                        f"the copy of {table} is gone before it was read: begin with a new store"
                    )
                yield self._batch([(change, copied.taken_at, copied.position, 0) for change in changes])
                begin = upto

    def _rows(self, number: int, table: str, first: int, last: int, load: Any) -> Iterator[Change]:
        with self._slot.connection() as connection:
            cursor = connection.execute(
                f"SELECT * FROM {self._slot.copy_of(number)} WHERE millwheel_row > %s AND millwheel_row "
                "<= %s "
                "ORDER BY millwheel_row",
                (first, last),
            )
            columns = [(column.name, load(column.type_code)) for column in cursor.description]
            result = cursor.pgresult
            for row in range(result.ntuples):
                texts = [result.get_value(row, at) for at in range(len(columns))]
                values = {
                    name: None if text is None else read(bytes(text))
                    for (name, read), text in zip(columns, texts, strict=True)
                }
                del values["millwheel_row"]
                key = {name: values.get(name) for name in self._keys.get(table, ())}
                yield Change("snapshot", table, key, None, values)

    def _changes(self, after: int, end: int) -> Iterator[RecordBatch]:
        if end <= after:
            return
        waiting: list[tuple[Change, int, int, int]] = []
        decoder = Decoder(self._keys, plain_loader(), ignored=SCHEMA)
        for found in decoder.transactions(self._slot.messages(end)):
            if after < found.end <= end:
                waiting += [(change, found.committed, found.end, found.id) for change in found.changes]
            if len(waiting) >= _BATCH:
                yield self._batch(waiting)
                waiting = []
        if waiting:
            yield self._batch(waiting)

    def _batch(self, found: list[tuple[Change, int, int, int]]) -> RecordBatch:
        times: list[int] = []
        values: list[Any] = []
        keys: list[str] = []
        bad: list[BadInput] = []
        for change, committed, position, transaction in found:
            value: dict[str, Any] = {
                "operation": change.operation,
                "table": change.table,
                "key": change.key,
                "before": change.before,
                "after": change.after,
                "position": text_of(position),
                "transaction": transaction,
            }
            if change.unchanged:
                value["unchanged"] = change.unchanged
            try:
                time = self._time(change, committed)
            except BadLine as error:
                bad.append(BadInput(str(error), value))
                continue
            times.append(time)
            values.append(value)
            named = [str(part) for part in (change.key or {}).values()]
            keys.append(named[0] if len(named) == 1 else joined(named))
        return RecordBatch(times, values, None, keys, bad)

    def _time(self, change: Change, committed: int) -> int:
        if self._timestamp is None or change.operation == "truncate":
            return committed
        row = change.after if change.after is not None else change.before
        if row is None or self._timestamp not in row:
            if change.operation == "delete":
                return committed  # of a deleted row the key alone is known
            raise BadLine(
                f"the table {change.table} has no column {self._timestamp!r}: it has {shorten(row, 80)}"
            )
        return to_time(row[self._timestamp], self._unit, self._timestamp, text=False)
