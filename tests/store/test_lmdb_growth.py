"""An LMDB map grows by itself, whoever fills it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import millwheel as mw
from millwheel.store.lmdb.lmdb_store import LmdbStore
from tests.store.driving import contents, run, take

_SMALL = 1 << 16


def _elsewhere(script: str, *arguments: object) -> str:
    """Runs a script in another process; its output."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_one_write_larger_than_the_map_is_taken(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=_SMALL)
    shard = store.shards[0]
    shard.write([(b"before", b"kept")])
    puts = [(f"{i:06d}".encode(), b"x" * 1000) for i in range(5000)]
    shard.write(puts)
    assert contents(shard) == {**dict(puts), b"before": b"kept"}
    store.close()


def test_many_small_writes_outgrow_the_map(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=_SMALL, sync=False)
    for i in range(200):
        store.shards[0].write([(f"{i:06d}".encode(), b"x" * 5000)])
        store.journal.write([(f"{i:06d}".encode(), b"y" * 500)])
    assert len(contents(store.shards[0])) == 200
    assert len(contents(store.journal)) >= 200
    store.close()


def test_the_guard_of_a_write_that_grows_the_map_still_decides(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=_SMALL)
    shard = store.shards[0]
    calls = []

    def guard(get: object) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise mw.FencedError("taken over while the map grew")

    try:
        shard.write([(b"k", b"x" * 10 * _SMALL)], [], guard)
    except mw.FencedError:
        pass
    else:
        raise AssertionError("the guard was not asked again")
    assert contents(shard) == {}
    store.close()


def test_a_map_that_another_process_grew_is_seen_here(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=_SMALL)
    shard = store.shards[0]
    shard.write([(b"mine", b"1")])
    _elsewhere(
        """
import sys
from millwheel.store.lmdb.lmdb_store import LmdbStore
store = LmdbStore(sys.argv[1], map_size=int(sys.argv[2]))
store.shards[0].write([(f"{i:06d}".encode(), b"x" * 1000) for i in range(3000)])
store.close()
""",
        tmp_path,
        _SMALL,
    )
    assert len(contents(shard)) == 3001
    shard.write([(b"mine", b"2")])
    with shard.snapshot() as snapshot:
        assert snapshot.get(b"mine") == b"2"
    store.close()


def test_a_map_that_grew_here_is_seen_by_another_process(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=_SMALL)
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            """
import sys
from millwheel.store.lmdb.lmdb_store import LmdbStore
store = LmdbStore(sys.argv[1], map_size=int(sys.argv[2]))
print("open", flush=True)
sys.stdin.readline()
with store.shards[0].snapshot() as snapshot:
    print(sum(1 for _ in snapshot.scan(b"0", b"9")), flush=True)
store.shards[0].write([(b"answer", b"seen")])
store.close()
""",
            str(tmp_path),
            str(_SMALL),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "open\n"
        store.shards[0].write([(f"{i:06d}".encode(), b"x" * 1000) for i in range(3000)])
        out, _ = process.communicate("go\n", timeout=60)
    finally:
        process.kill()
        process.wait()
    assert out == "3000\n"
    with store.shards[0].snapshot() as snapshot:
        assert snapshot.get(b"answer") == b"seen"
    store.close()


def test_a_store_that_grew_opens_again_with_a_small_map(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=_SMALL)
    store.shards[0].write([(b"k", b"x" * 1_000_000)])
    store.close()
    again = LmdbStore(tmp_path, map_size=_SMALL)
    assert len(contents(again.shards[0])[b"k"]) == 1_000_000
    again.shards[0].write([(b"l", b"y" * 5_000_000)])
    assert len(contents(again.shards[0])) == 2
    again.close()


class Hoarder(mw.Computation):
    """A state of as many bytes as a record says."""

    codec = mw.codecs.raw

    def initial_state(self) -> bytes:
        return b""

    def process_record(self, record: mw.Record) -> None:
        self.state = bytes([record.value % 251]) * record.value
        self.produce("sizes", len(self.state))


def test_a_state_goes_from_nothing_to_100_megabytes_and_back(tmp_path: Path) -> None:
    sizes = [0, 1, 10_000, 5_000_000, 100_000_000, 3, 0]
    sink = mw.sinks.Collect()
    pipeline = mw.Pipeline("hoard")
    records = [mw.Record(value=size, timestamp=i) for i, size in enumerate(sizes)]
    pipeline.inject("in", mw.injectors.Records(records, per_epoch=1))
    pipeline.add(Hoarder(), inputs={"in": lambda record: "k"}, outputs=["sizes"])
    pipeline.sink("sizes", sink)
    store = LmdbStore(tmp_path, map_size=_SMALL, sync=False)
    report = run(pipeline, store)
    assert [record.value for record in sink.records] == sizes
    assert report.epochs >= len(sizes)


def test_a_state_of_100_megabytes_is_read_back_by_the_next_driver(tmp_path: Path) -> None:
    size = 100_000_000

    class Reader(Hoarder):
        def process_record(self, record: mw.Record) -> None:
            self.produce("sizes", len(self.state))
            super().process_record(record)

    def pipeline(values: list[int], sink: mw.Sink) -> mw.Pipeline:
        p = mw.Pipeline("hoard")
        records = [mw.Record(value=value, timestamp=i) for i, value in enumerate(values)]
        p.inject("in", mw.injectors.Records(records, per_epoch=1))
        p.add(Reader(), inputs={"in": lambda record: "k"}, outputs=["sizes"])
        p.sink("sizes", sink)
        return p

    store = LmdbStore(tmp_path, map_size=_SMALL, sync=False)
    run(pipeline([size], mw.sinks.Collect()), store)
    again = LmdbStore(tmp_path, map_size=_SMALL, sync=False)
    sink = mw.sinks.Collect()
    driver, executor = take(pipeline([size, 0], sink), again)
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    driver.close()
    assert [record.value for record in sink.records] == [size, 0]


def test_size_says_what_the_store_takes_on_disk(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    before = store.size()
    store.shards[0].write([(b"k", b"x" * 10_000_000)])
    assert before < 1_000_000
    assert 10_000_000 <= store.size() < 30_000_000
    store.close()
