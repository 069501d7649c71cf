"""A store can be compacted while others have it open: nobody sees an empty one, and nothing is lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millwheel.store.lmdb.environment import LmdbShard
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.lmdb.pages import read_head
from millwheel.store.open import open_to_read
from tests.store.driving import contents

_LOOKER = """
import sys
from millwheel.store.open import open_to_read
store = open_to_read(sys.argv[1])
for line in sys.stdin:
    with store.shards[0].snapshot() as snapshot:
        print(snapshot.get(b"k"), sum(1 for _ in snapshot.scan(b"row", b"rox")), flush=True)
"""


def _filled(path: Path, writes: int) -> LmdbStore:
    store = LmdbStore(path)
    store.shards[0].write([(b"row%05d" % number, b"x" * 100) for number in range(2000)])
    for number in range(writes):
        store.shards[0].write([(b"k", b"%d" % number)], [b"row%05d" % number])
    return store


@pytest.mark.parametrize("writes", [40, 41])
def test_a_store_that_somebody_looks_at_keeps_its_state_when_it_is_compacted(
    tmp_path: Path, writes: int
) -> None:
    store = _filled(tmp_path, writes)
    store.close()
    looker = subprocess.Popen(
        [sys.executable, "-c", _LOOKER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert looker.stdin is not None
    assert looker.stdout is not None

    def look() -> str:
        assert looker.stdin is not None
        assert looker.stdout is not None
        looker.stdin.write("look\n")
        looker.stdin.flush()
        return looker.stdout.readline().strip()

    try:
        expected = f"{b'%d' % (writes - 1)!r} {2000 - writes}"
        assert look() == expected
        store = LmdbStore(tmp_path)
        store.lock("a test")
        store.compact()
        store.close()
        assert look() == expected, "the looker"
        for number in range(3):  # whichever meta page is chosen
            store = LmdbStore(tmp_path)
            found = contents(store.shards[0])
            assert found[b"k"] == b"%d" % (writes - 1 + number)
            assert len(found) == 2000 - writes + 1
            store.shards[0].write([(b"k", b"%d" % (writes + number))])
            store.close()
            assert look() == f"{b'%d' % (writes + number)!r} {2000 - writes}"
    finally:
        looker.stdin.close()
        looker.wait(30)
        looker.stdout.close()


def test_a_handle_that_was_open_before_a_compaction_writes_to_the_new_file(tmp_path: Path) -> None:
    """An idle Python worker of a Spark session keeps its handle from one run to the next."""
    script = """
import sys
from millwheel.store.lmdb.lmdb_store import LmdbStore
store = LmdbStore(sys.argv[1])
store.lock("millwheel store compact")
store.compact()
store.close()
"""
    store = _filled(tmp_path, 5)
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)
    store.shards[0].write([(b"k", b"behind it")])
    store.close()
    again = LmdbStore(tmp_path)
    assert contents(again.shards[0])[b"k"] == b"behind it"
    again.close()


def test_a_compacted_file_goes_on_with_the_number_of_its_last_transaction(tmp_path: Path) -> None:
    store = _filled(tmp_path, 7)
    file = tmp_path / "shard-00" / "data.mdb"
    before = read_head(file).newest
    store.lock("a test")
    sizes = store.compact()
    assert sizes[1] < sizes[0]
    after = read_head(file).newest
    assert after.transaction == before.transaction
    assert after.main.entries == before.main.entries
    assert after.last_page < before.last_page
    store.close()


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "a torn copy"])
def test_a_compaction_that_was_interrupted_leaves_the_store_as_it_was(tmp_path: Path, left: str) -> None:
    store = _filled(tmp_path, 5)
    found = contents(store.shards[0])
    store.close()
    folder = tmp_path / "shard-00" / "compacted"
    if left != "nothing":
        folder.mkdir()
    if left == "a torn copy":
        shutil.copy(tmp_path / "shard-00" / "data.mdb", folder)
        with open(folder / "data.mdb", "r+b") as file:
            file.truncate(5000)
    store = LmdbStore(tmp_path)
    assert contents(store.shards[0]) == found
    store.lock("a test")
    store.compact()
    assert contents(store.shards[0]) == found
    assert not folder.exists()
    store.close()


def test_an_environment_without_entries_can_be_compacted(tmp_path: Path) -> None:
    shard = LmdbShard(tmp_path, sync=True, map_size=1 << 20)
    shard.compact()
    shard.close()
    store = LmdbStore(tmp_path / "store")
    store.lock("a test")
    store.compact()
    store.close()
    open_to_read(tmp_path / "store").close()
