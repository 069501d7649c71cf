"""Checks a store: every invariant that its content shows.

It reads each shard in one snapshot, row by row, so it may run beside a pipeline, and takes little memory
for any number of keys.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from millwheel.errors import CodecError
from millwheel.model.codec import unpack
from millwheel.model.keys import fingerprint, key_text
from millwheel.model.time import MAX_TIME
from millwheel.store.base import Snapshot, Store
from millwheel.store.keyspace import (
    BACKLOG,
    CHECKPOINT,
    COUNTERS,
    DIGEST,
    ID_LOG,
    INTERVAL,
    KIND_HOLD,
    KIND_WALL,
    KIND_WATERMARK,
    OF_COMPUTATIONS,
    ROW,
    SEEN_ID,
    TIMER,
    TIMER_SUFFIX,
    WAITING,
    WAITING_TIME,
    JournalKey,
    after,
    id_prefix,
    is_long,
    row_prefix,
    row_suffix,
    tablet_near,
    tablet_of,
    tablets_of,
    time_of,
    timer_key,
)
from millwheel.store.reorder_rows import Waiters
from millwheel.store.row import Row, decode_row
from millwheel.store.window_row import END, WindowRow, is_window, window_of

_UNREADABLE = (CodecError, ValueError, TypeError, IndexError)

_MOST = 100  # problems that are reported; the rest are counted
_TRIES = 10  # checks, if computations come and go during each
_KINDS = (KIND_WATERMARK, KIND_WALL, KIND_HOLD)
_NO_COUNTS = [0] * 5 + [MAX_TIME] * 3 + [0, MAX_TIME]  # those of an empty tablet
_NUMBER = slice(1, 3)  # the computation's number in a key of the store


@dataclass
class Findings:
    """The result of a check."""

    problems: list[str] = field(default_factory=list)
    more: int = 0
    """Problems beyond those that are reported."""
    counts: Counter[str] = field(default_factory=Counter)
    """The number of entries of each kind."""
    epoch: int = 0
    pipeline: str = ""

    def problem(self, text: str) -> None:
        """Reports a violated invariant."""
        if len(self.problems) < _MOST:
            self.problems.append(text)
        else:
            self.more += 1


def check(store: Store) -> Findings:
    """Checks every shard, then the journal, which must not be older than the shards.

    A pipeline that runs may forget a computation meanwhile: then what is wrong may not be, and all is checked
    again.
    """
    for _ in range(_TRIES):
        numbers, forgotten = _computations(store)
        findings = _check(store, forgotten)
        if not findings.problems or _computations(store) == (numbers, forgotten):
            break
    return findings


def _computations(store: Store) -> tuple[bytes | None, bytes | None]:
    """What the journal has of computations, and of those that are being removed."""
    with store.journal.snapshot() as snapshot:
        numbers, forgotten = snapshot.get_each((JournalKey.NUMBERS, JournalKey.FORGOTTEN))
    return numbers, forgotten


def _check(store: Store, gone: bytes | None) -> Findings:
    findings = Findings()
    states: list[tuple[str, list[int]]] = []
    numbers: set[int] = set()
    forgotten = frozenset(unpack(gone)[1]) if gone is not None else frozenset()
    for index, shard in enumerate(store.shards):
        with shard.snapshot() as snapshot:
            look = _ShardCheck(findings, snapshot, index, len(store.shards), store.tablets, forgotten)
            look.run()
        states += look.intervals
        numbers |= look.numbers
    with store.journal.snapshot() as snapshot:
        _check_journal(findings, snapshot, states, numbers)
    return findings


class _ShardCheck:
    """One shard, in one snapshot."""

    def __init__(
        self,
        findings: Findings,
        snapshot: Snapshot,
        index: int,
        shards: int,
        tablets: int,
        forgotten: frozenset[int],
    ) -> None:
        self._forgotten = forgotten
        self._findings = findings
        self._snapshot = snapshot
        self._index = index
        self._tablets = tablets
        self._mine = range(index * tablets // shards, (index + 1) * tablets // shards)
        self._counters: dict[tuple[int, int], list[int]] = {}
        self.numbers: set[int] = set()
        self.intervals: list[tuple[str, list[Any]]] = []

    def run(self) -> None:
        timers = sum(self._row(key, value) for key, value in self._scan(ROW))
        self._timers(timers)
        for key, value in self._scan(WAITING):
            self._waiting(key, value)
        self._check_counters()
        self._ids()
        for key, value in self._scan(BACKLOG):
            self._backlog(key, value)
        self._intervals()
        self._strangers()

    def _scan(self, letter: bytes) -> Any:
        """The entries with a letter, without computations that are being removed."""
        found = self._snapshot.scan(letter, after(letter))
        if not self._forgotten or letter not in OF_COMPUTATIONS:
            return found
        return (entry for entry in found if int.from_bytes(entry[0][_NUMBER], "big") not in self._forgotten)

    def _tablet(self, byte: int) -> int:
        """The tablet of this shard with a byte in a key."""
        return tablet_near(byte, self._mine.start)

    def _problem(self, text: str) -> None:
        self._findings.problem(f"shard {self._index}: {text}")

    def _row(self, key: bytes, value: bytes) -> int:
        """Checks a row; returns its number of entries in the timer index."""
        self._findings.counts["rows"] += 1
        number, suffix = int.from_bytes(key[_NUMBER], "big"), key[3:]
        self.numbers.add(number)
        tablet = tablet_of(suffix, self._tablets)
        name = f"computation {number}, row {suffix.hex()}"
        if tablet not in self._mine:
            self._problem(f"{name} lies in tablet {tablet}, which is another shard's")
        try:
            row = decode_row(value)
            if is_window(suffix):
                return self._window(number, suffix, row, len(value), name)
            right = row_suffix(row.key if row.key is not None else key_text(suffix[8:])) == suffix
        except _UNREADABLE as error:
            self._problem(f"{name} cannot be read ({error})")
            return 0
        if not right or (is_long(suffix) != (row.key is not None)):
            self._problem(
                f"{name} is not where its key belongs (fingerprint {fingerprint(suffix[8:]).hex()})"
            )
        return self._count(number, tablet, suffix, row, len(value), name)

    def _window(self, number: int, suffix: bytes, row: Row, size: int, name: str) -> int:
        """Checks the row of a window: its end counts once for each of its keys."""
        place, start = window_of(suffix, self._tablets)
        found = WindowRow.from_bytes(row.state or b"")
        self._findings.counts["keys in windows"] += len(found.keys)
        lengths = {len(column.objects()) for column in found.columns} | {len(set(found.keys))}
        if found.start != start or row.timers != {END: found.end} or row.wall or row.holds:
            self._problem(f"{name} is not where its window belongs, or has other timers than its end")
        if lengths != {len(found.keys)} or not found.keys:
            self._problem(f"{name} has columns of another length than its keys, no key, or one twice")
        if set(tablets_of(found.keys, self._tablets)) != {place}:
            self._problem(f"{name} has a key of another tablet")
        more = len(found.keys) - 1
        self._findings.counts["watermark timers"] += more
        entries = self._count(number, place, suffix, row, size, name)
        self._counters[number, place][2 + KIND_WATERMARK] += more
        return entries

    def _count(self, number: int, tablet: int, suffix: bytes, row: Row, size: int, name: str) -> int:
        counters = self._counters.setdefault((number, tablet), list(_NO_COUNTS))
        counters[0] += 1
        counters[1] += size
        entries = 0
        for kind, times in zip(_KINDS, (row.timers, row.wall, row.holds), strict=True):
            self._findings.counts[("watermark timers", "wall timers", "holds")[kind]] += len(times)
            if not times:
                continue
            first = min(times.values())
            counters[2 + kind] += len(times)
            counters[5 + kind] = min(counters[5 + kind], first)
            entries += 1
            if self._snapshot.get(timer_key(number, suffix, kind, first, self._tablets)) is None:
                self._problem(f"{name} is missing from the timer index, at {first}: it would never fire")
        if row.timers.keys() & row.wall.keys():
            self._problem(f"{name} has a tag with two timers")
        return entries

    def _timers(self, expected: int) -> None:
        found = sum(1 for _ in self._scan(TIMER))
        if found <= expected:
            return
        for key, _ in self._scan(TIMER):
            suffix = key[TIMER_SUFFIX:]
            data = self._snapshot.get(row_prefix(int.from_bytes(key[_NUMBER], "big")) + suffix)
            times: dict[str, int] = {}
            if data is not None:
                with suppress(*_UNREADABLE):
                    row = decode_row(data)
                    times = (row.timers, row.wall, row.holds)[key[4]]
            number = int.from_bytes(key[_NUMBER], "big")
            if not times or timer_key(number, suffix, key[4], min(times.values()), self._tablets) != key:
                self._problem(f"the timer index has {key.hex()}, and no row has such a timer")

    def _check_counters(self) -> None:
        stored = {
            (int.from_bytes(key[_NUMBER], "big"), self._tablet(key[3])): unpack(value)
            for key, value in self._scan(COUNTERS)
        }
        for place in sorted(stored.keys() | self._counters.keys()):
            found = stored.get(place, [])
            found += _NO_COUNTS[len(found) :]  # an earlier version has fewer
            right = self._counters.get(place, _NO_COUNTS)
            if found != right:
                number, tablet = place
                self._problem(
                    f"computation {number}, tablet {tablet}: the counters say {found}, there are {right}"
                )

    def _ids(self) -> None:
        logged = 0
        for key, value in self._scan(ID_LOG):
            prefix = id_prefix(int.from_bytes(key[_NUMBER], "big"))
            if len(value) % DIGEST:
                self._problem(f"the log entry {key.hex()} of IDs is torn")
            for start in range(0, len(value), DIGEST):
                logged += 1
                if self._snapshot.get(prefix + value[start : start + DIGEST]) is None:
                    self._problem("an ID is in the log but not stored: its record could count twice")
        known = sum(1 for _ in self._scan(SEEN_ID))
        self._findings.counts["IDs"] += known
        if known > logged:
            self._problem(f"{known - logged} IDs are in no log: they would never expire")

    def _backlog(self, key: bytes, value: bytes) -> None:
        tablet = self._tablet(key[3])
        try:
            for _, keys, timestamps, *_ in unpack(value):
                self._findings.counts["records that wait"] += len(keys)
                wrong = set(tablets_of(keys, self._tablets)) - {tablet}
                if wrong or len(keys) != len(timestamps):
                    self._problem(f"the backlog of tablet {tablet} has records of another one")
        except _UNREADABLE as error:
            self._problem(f"the backlog of tablet {tablet} cannot be read ({error})")

    def _waiting(self, key: bytes, value: bytes) -> None:
        number, tablet = int.from_bytes(key[_NUMBER], "big"), self._tablet(key[3])
        self.numbers.add(number)
        name = f"computation {number}, buffered records in tablet {tablet}"
        try:
            found = Waiters.from_bytes(value)
            keys, times = found.keys, found.timestamps
        except _UNREADABLE as error:
            self._problem(f"{name} cannot be read ({error})")
            return
        self._findings.counts["records that wait"] += len(keys)
        counters = self._counters.setdefault((number, tablet), list(_NO_COUNTS))
        counters[8] += len(keys)
        counters[9] = min([counters[9], *times])
        if not keys or tablet not in self._mine:
            self._problem(f"{name} are empty, or another shard's")
        elif set(tablets_of(keys, self._tablets)) != {tablet}:
            self._problem(f"{name} are of another one")
        if len(keys) != len(times) or times != sorted(times) or time_of(key[WAITING_TIME]) != times[0]:
            self._problem(f"{name} are not in order of time: they could be delivered too late")

    def _intervals(self) -> None:
        for key, value in self._scan(INTERVAL):
            self._findings.counts["intervals"] += 1
            level, first = key[1], self._tablet(key[2])
            state = unpack(value)
            self.intervals.append((f"shard {self._index}: level {level}, tablet {first}", state))
            checkpoint = self._snapshot.get(CHECKPOINT + key[1:])
            if state[1] and checkpoint is None:
                self._problem(f"level {level}, tablet {first}: epoch {state[1]} has no checkpoint")

    def _strangers(self) -> None:
        letters = b"".join(sorted({*OF_COMPUTATIONS, INTERVAL, CHECKPOINT})) + b"\xff"
        previous = b"\x00"
        for letter in letters:
            for key, _ in self._snapshot.scan(previous, bytes((letter,))):
                self._problem(f"the entry {key[:40].hex()} is of an unknown kind")
                break
            previous = bytes((min(letter + 1, 255),))


def _check_journal(
    findings: Findings, snapshot: Snapshot, states: list[tuple[str, list[Any]]], numbers: set[int]
) -> None:
    keys = (
        JournalKey.PIPELINE,
        JournalKey.DRIVER,
        JournalKey.NUMBERS,
        JournalKey.COMMIT,
        JournalKey.PLAN,
    )
    pipeline, driver, computations, commit, plan = (
        None if value is None else unpack(value) for value in snapshot.get_each(keys)
    )
    if driver is None:
        if states:
            findings.problem("the journal names no driver, but there are intervals")
        return
    findings.pipeline = str(pipeline)
    generation = driver[0]
    epoch = findings.epoch = commit[0] if commit is not None else 0
    planned = plan["epoch"] if plan is not None else 0
    if planned > epoch + 1:
        findings.problem(f"the journal has a plan for epoch {planned}, and the last commit is epoch {epoch}")
    known = (computations or {}).values()
    if len(set(known)) != len(known):
        findings.problem("two computations have one number")
    for number in sorted(numbers - set(known)):
        findings.problem(f"there are rows of computation {number}, which is not in the journal")
    for name, (sequencer, reached, *_) in states:
        if sequencer > generation:
            findings.problem(f"{name} has sequencer {sequencer}, and the newest driver is {generation}")
        if reached > max(epoch, planned):
            findings.problem(f"{name} is at epoch {reached}, the journal at {epoch}")
    findings.counts["partitions"] = sum(
        1 for _ in snapshot.scan(JournalKey.PARTITIONS, after(JournalKey.PARTITIONS))
    )
