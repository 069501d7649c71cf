"""A store that cannot be used says why, where, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from millwheel.errors import StoreError
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.open import open_store
from tests.store.driving import contents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_path_below_a_file_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError) as caught:
        open_store(tmp_path / "file" / "store")
    assert str(tmp_path / "file" / "store") in str(caught.value)
    assert "Not a directory" in str(caught.value)


def test_a_path_that_is_a_file_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match=str(tmp_path / "file")):
        open_store(tmp_path / "file")


def test_a_path_where_nobody_may_make_a_folder_is_refused() -> None:
    with pytest.raises(StoreError, match="/proc/millwheel"):
        open_store("/proc/millwheel/store")


def test_a_folder_without_permission_says_to_choose_another(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(StoreError, match="choose a folder that this user may write"):
        open_store(tmp_path / "closed" / "store")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "data.mdb").write_bytes(b"this is something else" * 1000)
    with pytest.raises(StoreError, match=str(tmp_path)):
        open_store(tmp_path)


@pytest.mark.parametrize("where", ["", "redis://host/1", "lmdb://", b"/bytes"])
def test_what_is_no_store_is_refused(where: object) -> None:
    with pytest.raises(StoreError):
        open_store(where)  # type: ignore[arg-type]


def test_an_unknown_scheme_says_what_there_is() -> None:
    with pytest.raises(StoreError, match=r"redis://.*lmdb:///path"):
        open_store("redis://host/1")


@pytest.mark.spark
def test_run_refuses_a_store_that_cannot_be_written(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "file").write_text("not a folder")
    pipeline = mw.Pipeline("p")
    pipeline.inject("in", mw.injectors.Records([]))
    with pytest.raises(StoreError, match=str(tmp_path / "file")):
        mw.run(pipeline, store=tmp_path / "file" / "store", spark=spark)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class TestAFullDisk:
    def test_a_write_says_that_the_disk_is_full_and_leaves_nothing(self, small_disk: Path) -> None:
        store = LmdbStore(small_disk / "store")
        shard = store.shards[0]
        shard.write([(b"k", b"before")])
        with pytest.raises(StoreError, match=r"disk is full.*free some space"):
            shard.write([(b"k", b"x" * 10_000_000)])
        assert contents(shard) == {b"k": b"before"}
        store.close()

    def test_writes_go_on_when_there_is_room_again(self, small_disk: Path) -> None:
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"x" * 2_000_000)
        store = LmdbStore(small_disk / "store")
        shard = store.shards[0]
        with pytest.raises(StoreError, match="disk is full"):
            shard.write([(b"k", b"x" * 2_500_000)])
        ballast.unlink()
        shard.write([(b"k", b"x" * 2_500_000)])
        assert len(contents(shard)[b"k"]) == 2_500_000
        store.close()
        again = LmdbStore(small_disk / "store")
        assert len(contents(again.shards[0])[b"k"]) == 2_500_000
        again.close()


def test_a_limit_on_file_sizes_is_an_error_that_names_the_store_and_leaves_nothing(tmp_path: Path) -> None:
    script = """
import resource, signal, sys
from millwheel.errors import StoreError
from millwheel.store.lmdb.lmdb_store import LmdbStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = LmdbStore(sys.argv[1])
store.shards[0].write([(b"k", b"before")])
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
try:
    store.shards[0].write([(b"k", b"x" * 5_000_000)])
except StoreError as error:
    print(error)
with store.shards[0].snapshot() as snapshot:
    print(snapshot.get(b"k"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "store")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    message, value = done.stdout.strip().splitlines()
    assert str(tmp_path / "store") in message
    assert value == repr(b"before")
