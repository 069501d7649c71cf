"""A writer that is killed leaves whole writes, never parts of one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millwheel.store.lmdb.lmdb_store import LmdbStore
from tests.store.driving import contents

_WRITER = """
import sys
from millwheel.store.lmdb.lmdb_store import LmdbStore
store = LmdbStore(sys.argv[1], map_size=1 << 16, sync=sys.argv[2] == "sync")
shard = store.shards[0]
number = 0
while True:
    number += 1
    mark = number.to_bytes(8, "big")
    puts = [(b"row" + i.to_bytes(2, "big"), mark + b"x" * (number * 37 % 3000)) for i in range(200)]
    puts.append((b"new" + mark, mark))
    shard.write(puts, [b"new" + (number - 1).to_bytes(8, "big")])
    print(number, flush=True)
"""


@pytest.mark.parametrize("sync", ["sync", "no sync"])
@pytest.mark.parametrize("after", [1, 7, 30])
def test_after_kill_9_of_a_writer_all_of_a_write_is_there_or_nothing(
    tmp_path: Path, sync: str, after: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path), sync], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    written = 0
    while written < after:
        written = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().split()
    process.wait(timeout=30)
    if rest:
        written = int(rest[-1])

    store = LmdbStore(tmp_path)
    found = contents(store.shards[0])
    rows = {value[:8] for key, value in found.items() if key.startswith(b"row")}
    assert len(rows) == 1, "rows of two writes are mixed"
    number = int.from_bytes(rows.pop(), "big")
    assert number in (written, written + 1), "a write that was acknowledged is gone"
    assert [key for key in found if key.startswith(b"new")] == [b"new" + number.to_bytes(8, "big")]
    assert len(found) == 201

    store.shards[0].write([(b"row", b"the next writer goes on")])
    store.close()


def test_the_lock_of_a_killed_driver_is_free(tmp_path: Path) -> None:
    script = """
import sys
from millwheel.store.lmdb.lmdb_store import LmdbStore
store = LmdbStore(sys.argv[1])
store.lock("the one that dies")
print("locked", flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    store = LmdbStore(tmp_path)
    store.lock("the next one")
    store.close()
    process.stdout.close()


def test_killed_readers_do_not_keep_old_pages_for_ever(tmp_path: Path) -> None:
    script = """
import sys
from millwheel.store.lmdb.lmdb_store import LmdbStore
store = LmdbStore(sys.argv[1])
with store.shards[0].snapshot() as snapshot:
    snapshot.get(b"k")
    print("reading", flush=True)
    sys.stdin.read()
"""
    store = LmdbStore(tmp_path, map_size=1 << 20, sync=False)
    shard = store.shards[0]
    shard.write([(b"k", b"x")])
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    process.stdout.close()
    for number in range(300):
        shard.write([(b"k", bytes([number % 256]) * 100_000)])
    assert store.size() < 8_000_000
    store.close()
