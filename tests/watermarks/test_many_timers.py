"""However many timers are pending in an interval, an epoch pays for those that are due.

``MILLWHEEL_TIMERS`` sets how many there are: a million unless it is told otherwise.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.master.planner import Mode
from millwheel.model.codec import pack
from millwheel.model.graph import build
from millwheel.model.injector import Injector, Offset
from millwheel.model.keys import TABLETS
from millwheel.store.base import Guard, Range, Shard, Snapshot
from millwheel.store.keyspace import (
    KIND_WATERMARK,
    counters_key,
    row_prefix,
    row_suffixes,
    tablet_of,
    timer_key,
)
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.row import encode_row
from millwheel.worker.step import Worker
from millwheel.worker.timer_index import WATERMARK_TIMERS

TIMERS = int(os.environ.get("MILLWHEEL_TIMERS", "1000000"))
ROUNDS = 25
COUNTED = 5  # rounds in which reads are counted; the others are timed
DUE = 10  # in each round
FAR = 1_000_000  # when the other timers begin


class Advances(Injector):
    """No records, only a watermark."""

    bounded = False
    watermark = 0

    def poll(self) -> Mapping[str, Offset]:
        return {"one": 0}

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[mw.Record]:
        return ()

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return self.watermark


class Fires(mw.Computation):
    """Produces when a timer fires."""

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("fired", timer.timestamp)


class CountingSnapshot:
    """Counts the entries that are read."""

    def __init__(self, snapshot: Snapshot, counts: Counter[str]) -> None:
        self._snapshot = snapshot
        self._counts = counts

    def get(self, key: bytes) -> bytes | None:
        self._counts["read"] += 1
        return self._snapshot.get(key)

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._counts["read"] += len(keys)
        return self._snapshot.get_each(keys)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._counts["scans"] += 1
        for entry in self._snapshot.scan(start, stop):
            self._counts["read"] += 1
            yield entry

    def prefetch(self, ranges: Sequence[Range]) -> None:
        self._snapshot.prefetch(ranges)


class CountingShard:
    """A shard that counts."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.counts: Counter[str] = Counter()

    @contextmanager
    def snapshot(self) -> Iterator[CountingSnapshot]:
        with self._shard.snapshot() as snapshot:
            yield CountingSnapshot(snapshot, self.counts)

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
        *,
        kept: bool = False,
    ) -> None:
        puts, deletes = list(puts), list(deletes)
        self.counts["written"] += len(puts) + len(deletes)
        self._shard.write(puts, deletes, guard, kept=kept)


class Running:
    """One interval on LMDB; ``timers`` keys have a watermark timer each, ten of them due in each round."""

    def __init__(self, path: Path, timers: int) -> None:
        self.injector, self.sink = Advances(), mw.sinks.Collect()
        p = mw.Pipeline("many timers")
        p.inject("in", self.injector)
        p.add(Fires(), inputs={"in": mw.by_key}, outputs=["fired"])
        p.sink("fired", self.sink)
        graph = build(p)
        self.store = LmdbStore(path)
        self.shard = CountingShard(self.store.shards[0])
        self.store.shards = [self.shard]
        self.driver = Driver(graph, self.store, Options(slots=1), clock=lambda: 0, owner="a test")
        if timers:
            write_timers(self.shard, self.driver.numbers["Fires"], timers)
        self.executor = LocalExecutor(Worker(graph, self.driver.numbers, self.store))
        self.epoch(0)

    def epoch(self, watermark: int) -> float:
        """Runs one epoch; gives the seconds that it took."""
        self.injector.watermark = watermark
        self.shard.counts.clear()
        started = time.perf_counter()
        plan = self.driver.next_plan(Mode.FORCED)
        assert plan is not None
        self.driver.run(plan, self.executor)
        return time.perf_counter() - started


def write_timers(shard: CountingShard, computation: int, timers: int) -> None:
    """The rows, the index and the counters that keys with one timer each would have left."""
    suffixes = row_suffixes([f"key {n}" for n in range(timers)])
    puts: list[tuple[bytes, bytes]] = []
    counters = [[0] * 5 + [mw.MAX_TIME] * 3 for _ in range(TABLETS)]
    prefix = row_prefix(computation)
    for n, suffix in enumerate(suffixes):
        when = n // DUE + 1 if n < DUE * ROUNDS else FAR + n
        row = encode_row(None, {"t": when}, {}, {}, None)
        puts.append((prefix + suffix, row))
        puts.append((timer_key(computation, suffix, KIND_WATERMARK, when, TABLETS), b""))
        counts = counters[tablet_of(suffix, TABLETS)]
        counts[0] += 1
        counts[1] += len(row)
        counts[2] += 1
        counts[5] = min(counts[5], when)
    puts += [(counters_key(computation, tablet), pack(counts)) for tablet, counts in enumerate(counters)]
    shard.write(sorted(puts))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The interval with many timers."""
    running = Running(tmp_path_factory.mktemp("full") / "store", TIMERS)
    yield running
    running.driver.close()


def test_an_epoch_reads_what_is_due_and_no_more_of_many_pending_timers(full: Running) -> None:
    assert full.driver.authority.counter("Fires", WATERMARK_TIMERS) == TIMERS
    for number in range(1, COUNTED + 1):
        full.epoch(number)
        # Of each tablet: its counters. Of each timer that is due: its index entry and the one behind it,
        # when it is found and when the next one is looked for, and its row. And the interval's state.
        assert full.shard.counts["read"] <= TABLETS + 5 * DUE + 10
        assert full.shard.counts["scans"] <= 2 * DUE + 10
        assert full.shard.counts["written"] <= 4 * DUE + 10
    assert len(full.sink.records) == DUE * COUNTED
    assert full.driver.authority.lows == {"Fires": COUNTED}


def test_an_epoch_in_which_nothing_is_due_reads_the_counters_of_each_tablet(full: Running) -> None:
    fired = len(full.sink.records)
    full.epoch(full.injector.watermark)
    assert len(full.sink.records) == fired
    assert full.shard.counts["read"] <= TABLETS + 10
    assert full.shard.counts["written"] <= 10


def test_many_pending_timers_make_the_firing_of_ten_little_dearer(
    full: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asserted against ten that are due where no others wait; an epoch without timers is shown beside it."""
    others = {
        "none pending": Running(tmp_path / "none", 0),
        "only those pending": Running(tmp_path / "few", DUE * ROUNDS),
    }
    costs: dict[str, list[float]] = {name: [] for name in (*others, "all pending")}
    for number in range(1, ROUNDS + 1):
        for name, running in others.items():
            cost = running.epoch(number)
            if number > COUNTED:
                costs[name].append(cost)
        if number > COUNTED:
            costs["all pending"].append(full.epoch(number))
    assert len(full.sink.records) == len(others["only those pending"].sink.records) == DUE * ROUNDS
    none, few, many = (statistics.median(found) for found in costs.values())
    with capsys.disabled():
        print(
            f"\n{TIMERS:,} timers pending, {DUE} due: {many * 1e3:.1f} ms an epoch, {many / few:.2f} times "
            f"one with no others pending, {many / none:.2f} times one with none at all ({none * 1e3:.1f} ms)"
        )
    assert many / few < 3
    for running in others.values():
        running.driver.close()
