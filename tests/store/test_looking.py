"""Who looks at a store writes nothing, whatever state it is in."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.cli import main
from millwheel.errors import StoreError
from millwheel.store.lmdb.environment import LmdbShard
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.open import open_existing, open_store, open_to_read
from tests.store.driving import run


class Count(mw.Computation):
    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1


def _pipeline(records: int = 50) -> mw.Pipeline:
    pipeline = mw.Pipeline("looked at")
    values = [mw.Record(value={"k": f"k{i % 7}"}, timestamp=i) for i in range(records)]
    pipeline.inject("in", mw.injectors.Records(values))
    pipeline.add(Count(), inputs={"in": mw.by("k")})
    return pipeline


def _files(folder: Path) -> dict[str, bytes]:
    """Every name, and every file but LMDB's tables of readers, which are no part of the data."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        if path.is_file() and path.name != "lock.mdb"
        else b""
        for path in sorted(folder.rglob("*"))
    }


def test_a_store_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    for opened in (open_to_read, open_existing):
        with pytest.raises(StoreError, match=f"there is no store at {tmp_path / 'none'}"):
            opened(tmp_path / "none")
    assert _files(tmp_path) == {}


def test_a_store_that_is_being_made_is_left_alone_and_said_to_be_unfinished(tmp_path: Path) -> None:
    LmdbShard(tmp_path / "journal", sync=True, map_size=1 << 20).close()
    before = _files(tmp_path)
    for opened in (open_to_read, open_existing):
        with pytest.raises(StoreError, match=r"is not finished.*Try again in a moment"):
            opened(tmp_path)
    assert _files(tmp_path) == before
    made = LmdbStore(tmp_path, shards=4)
    assert len(made.shards) == 4
    made.close()


def _look(paths: list[str], stop: Any, looked: Any) -> None:
    while not stop.is_set():
        for path in paths:
            try:
                open_to_read(path).close()
                looked.value += 1
            except StoreError:
                pass


def test_stores_that_are_looked_at_while_they_are_made_have_the_shards_they_were_made_with(
    tmp_path: Path,
) -> None:
    fork = multiprocessing.get_context("fork")
    paths = [str(tmp_path / f"store-{number}") for number in range(25)]
    stop, looked = fork.Event(), fork.Value("l", 0)
    looking = fork.Process(target=_look, args=(paths, stop, looked))
    looking.start()
    try:
        for path in paths:
            made = open_store(path, shards=2)
            assert len(made.shards) == 2
            made.close()
    finally:
        stop.set()
        looking.join(30)
    assert looking.exitcode == 0
    for path in paths:
        again = open_existing(path)
        assert len(again.shards) == 2
        again.close()


def _make(path: str, shards: int, start: Any, found: Any) -> None:
    start.wait()
    store = open_store(path, shards=shards)
    found.put(store.address)
    store.close()


def test_two_that_make_a_store_in_the_same_moment_have_the_same_one(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    for number in range(5):
        start, found = fork.Barrier(2), fork.Queue()
        path = str(tmp_path / f"store-{number}")
        makers = [fork.Process(target=_make, args=(path, shards, start, found)) for shards in (1, 4)]
        for maker in makers:
            maker.start()
        addresses = {found.get(timeout=30) for _ in makers}
        for maker in makers:
            maker.join(30)
        assert len(addresses) == 1


@pytest.mark.parametrize(
    "command",
    [
        ["status", "--store"],
        ["top", "--count", "1", "--store"],
        ["explain", "Count", "--store"],
        ["inspect", "Count", "k1", "--store"],
        ["store", "check"],
    ],
    ids=lambda command: command[0],
)
def test_a_command_that_looks_changes_no_file(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(_pipeline(), LmdbStore(tmp_path, shards=2))
    before = _files(tmp_path)
    assert main([*command, str(tmp_path)]) == 0
    capsys.readouterr()
    assert _files(tmp_path) == before


def test_a_store_that_was_opened_to_look_refuses_to_write(tmp_path: Path) -> None:
    LmdbStore(tmp_path).close()
    store = open_to_read(tmp_path)
    with pytest.raises(StoreError, match="read only"):
        store.journal.write([(b"k", b"v")])
    store.close()


def test_who_looks_at_a_store_in_a_database_cannot_write_there(schema_url: str) -> None:
    open_store(schema_url).close()
    store = open_to_read(schema_url)
    with pytest.raises(StoreError, match="read only"):
        store.journal.write([(b"k", b"v")])
    store.close()


def test_who_looks_can_read_a_store_without_a_table_of_readers(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    store.journal.write([(b"k", b"v")])
    store.close()
    (tmp_path / "journal" / "lock.mdb").unlink()
    before = _files(tmp_path)
    looking = open_to_read(tmp_path)
    with looking.journal.snapshot() as snapshot:
        assert snapshot.get(b"k") == b"v"
    looking.close()
    assert _files(tmp_path) == before


def test_a_store_of_the_first_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    journal = LmdbShard(tmp_path / "journal", sync=True, map_size=1 << 20)
    journal.write([(b"shards", b"2 0123456789abcdef")])
    journal.close()
    for opened in (open_store, open_to_read, open_existing):
        with pytest.raises(StoreError, match=r"format 1.*Run it with that version"):
            opened(tmp_path)
