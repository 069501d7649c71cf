"""What a store keeps is its owner's: nobody else can read it, whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from millwheel.store.lmdb.lmdb_store import LmdbStore


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def _modes(folder: Path) -> set[tuple[str, int]]:
    return {
        ("folder" if path.is_dir() else "file", stat.S_IMODE(path.stat().st_mode))
        for path in (folder, *folder.rglob("*"))
    }


def test_the_folders_and_files_of_a_store_are_private(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "above" / "store", shards=2)
    store.lock("a test")
    store.shards[0].write([(b"k", b"v")])
    store.compact()
    assert _modes(tmp_path / "above" / "store") == {("folder", 0o700), ("file", 0o600)}
    store.close()
    assert _modes(tmp_path / "above" / "store") == {("folder", 0o700), ("file", 0o600)}


def test_the_cache_of_an_executor_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millwheel.spark import tasks

    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    cache = tasks.open_cache("some-id", 1 << 20)
    assert cache is not None
    assert cache.usable(0)
    assert _modes(tmp_path / "millwheel-cache-some-id") == {("folder", 0o700), ("file", 0o600)}
