"""`millwheel store check` finds what must not be; `compact` gives space back and changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.master.options import Options
from millwheel.model.codec import pack, unpack
from millwheel.store.keyspace import after
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.tools.check import check
from tests.store.driving import run

Put = Callable[[bytes, bytes | None], None]


class Everything(mw.Computation):
    """Leaves rows with state, timers of both clocks, and holds."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        number = record.value
        if number % 4:
            self.set_timer("w", mw.MAX_TIME - 1 - number)
        if number % 3 == 0:
            self.set_timer("wall", 10**15 + number, mw.WALL)
        if number % 5 == 0:
            self.hold(10**6 + number)

    def process_timer(self, timer: mw.Timer) -> None:
        """There is nothing to do."""


class Open(mw.injectors.Records):
    """Records that others may follow: the watermark stays."""

    bounded = False

    def __init__(self, records: list[mw.Record]) -> None:
        super().__init__(records, per_epoch=60)

    def low_watermark(self, partition: str, offset: object) -> int:
        return 0


def _pipeline() -> mw.Pipeline:
    p = mw.Pipeline("everything")
    records = [mw.Record(key=f"key {i % 50}", value=i, timestamp=i, id=i) for i in range(200)]
    records.append(mw.Record(key="long " * 300, value=7, timestamp=3, id="long"))
    p.inject("in", Open(records))
    p.add(Everything(), inputs={"in": mw.by_key})
    return p


@pytest.fixture
def store(tmp_path: Path) -> LmdbStore:
    """A store with something of everything in it."""
    from millwheel.master.driver import Driver
    from millwheel.master.local_executor import LocalExecutor
    from millwheel.model.graph import build
    from millwheel.worker.step import Worker

    graph = build(_pipeline())
    store = LmdbStore(tmp_path / "store", shards=2)
    driver = Driver(graph, store, Options(slots=2), clock=lambda: 5, owner="a test")
    executor = LocalExecutor(Worker(graph, driver.numbers, store))
    for _ in range(4):
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
    return store


def test_a_sound_store_has_nothing_wrong(store: LmdbStore) -> None:
    found = check(store)
    assert not found.problems
    assert found.counts["rows"] == 51
    assert found.counts["IDs"] == 201
    assert found.counts["watermark timers"] > 0
    assert found.counts["wall timers"] > 0
    assert found.counts["holds"] > 0
    assert (found.pipeline, found.epoch) == ("everything", 4)
    store.close()


def _entries(store: LmdbStore, letter: bytes, shard: int = 0) -> list[tuple[bytes, bytes]]:
    with store.shards[shard].snapshot() as snapshot:
        return list(snapshot.scan(letter, after(letter)))


def _drop_index(store: LmdbStore) -> None:
    store.shards[0].write([], [_entries(store, b"T")[0][0]])


def _stray_index(store: LmdbStore) -> None:
    key = _entries(store, b"T")[0][0]
    store.shards[0].write([(key[:-1] + b"~", b"")])


def _wrong_counter(store: LmdbStore) -> None:
    key, value = _entries(store, b"C")[0]
    counters = unpack(value)
    counters[0] += 1
    store.shards[0].write([(key, pack(counters))])


def _wrong_first(store: LmdbStore) -> None:
    key, value = next(entry for entry in _entries(store, b"C") if unpack(entry[1])[2])
    counters = unpack(value)
    counters[5] += 1
    store.shards[0].write([(key, pack(counters))])


def _torn_row(store: LmdbStore) -> None:
    key, value = next(entry for entry in _entries(store, b"R") if entry[1][0] == 1)
    store.shards[0].write([(key, value[: len(value) // 2])])


def _misplaced_row(store: LmdbStore) -> None:
    key, value = _entries(store, b"R")[0]
    store.shards[1].write([(key, value)])


def _lost_id(store: LmdbStore) -> None:
    store.shards[0].write([], [_entries(store, b"I")[0][0]])


def _endless_id(store: LmdbStore) -> None:
    store.shards[0].write([(b"I\x00\x00" + b"x" * 16, b"")])


def _newer_interval(store: LmdbStore) -> None:
    key, value = _entries(store, b"M")[0]
    store.shards[0].write([(key, pack([unpack(value)[0], 99]))])


def _newer_sequencer(store: LmdbStore) -> None:
    key, value = _entries(store, b"M")[0]
    store.shards[0].write([(key, pack([99, unpack(value)[1]]))])


def _lost_checkpoint(store: LmdbStore) -> None:
    store.shards[0].write([], [_entries(store, b"P")[0][0]])


def _stranger(store: LmdbStore) -> None:
    store.shards[0].write([(b"Zebra", b"")])


def _unknown_computation(store: LmdbStore) -> None:
    store.journal.write([(b"numbers", pack({}))])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_drop_index, "missing from the timer index"),
        (_stray_index, "no row has such a timer"),
        (_wrong_counter, "the counters say"),
        (_wrong_first, "the counters say"),
        (_torn_row, "cannot be read"),
        (_misplaced_row, "another shard's"),
        (_lost_id, "could count twice"),
        (_endless_id, "never expire"),
        (_newer_interval, "is at epoch 99"),
        (_newer_sequencer, "has sequencer 99"),
        (_lost_checkpoint, "has no checkpoint"),
        (_stranger, "of an unknown kind"),
        (_unknown_computation, "which is not in the journal"),
    ],
    ids=lambda value: value.__name__[1:] if callable(value) else "",
)
def test_it_finds(store: LmdbStore, spoil: Callable[[LmdbStore], None], message: str) -> None:
    spoil(store)
    problems = check(store).problems
    assert any(message in problem for problem in problems), problems
    store.close()


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millwheel.cli", "store", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_says_what_is_there_and_ends_with_1_where_something_is_wrong(
    store: LmdbStore, tmp_path: Path
) -> None:
    path = os.fspath(tmp_path / "store")
    good = _command("check", path)
    assert good.returncode == 0, good.stderr
    assert "51 rows" in good.stdout
    assert "nothing is wrong" in good.stdout
    _drop_index(store)
    bad = _command("check", path)
    assert bad.returncode == 1
    assert "WRONG: shard 0" in bad.stdout
    told = json.loads(_command("check", path, "--json").stdout)
    assert told["counts"]["rows"] == 51
    assert len(told["problems"]) == 1
    store.close()
    missing = _command("check", os.fspath(tmp_path / "nowhere"))
    assert missing.returncode == 1
    assert "there is no store" in missing.stderr


def test_compact_gives_space_back_and_leaves_everything_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = LmdbStore(path, shards=2)
    for shard in store.shards:
        shard.write([(b"Rxx%06d" % i, b"x" * 2_000) for i in range(10_000)])
        shard.write([], [b"Rxx%06d" % i for i in range(10_000)])
    store.close()
    report = run(_ending(), LmdbStore(path), slots=2)
    before = _content(path)
    done = _command("compact", os.fspath(path), "--json")
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    assert sizes["bytes_after"] < sizes["bytes_before"] / 10
    assert _content(path) == before
    store = LmdbStore(path)
    assert not check(store).problems
    store.close()
    again = run(_ending(), LmdbStore(path), slots=2)
    assert report.records["Everything"] == 200
    assert again.records["Everything"] == 0


def _ending() -> mw.Pipeline:
    p = mw.Pipeline("ends")
    records = [mw.Record(key=f"key {i % 50}", value=i, timestamp=i) for i in range(200)]
    p.inject("in", mw.injectors.Records(records))
    p.add(Everything(), inputs={"in": mw.by_key})
    return p


def _content(path: Path) -> list[list[tuple[bytes, bytes]]]:
    store = LmdbStore(path)
    content = []
    for shard in (store.journal, *store.shards):
        with shard.snapshot() as snapshot:
            content.append(list(snapshot.scan(b"\x00", b"\xff")))
    store.close()
    return content


def test_a_store_in_use_is_not_compacted(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store")
    store.lock("a driver at work")
    refused = _command("compact", os.fspath(tmp_path / "store"))
    assert refused.returncode == 1
    assert "in use by a driver at work" in refused.stderr
    store.close()
