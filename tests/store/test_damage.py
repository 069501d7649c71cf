"""A damaged store is refused with a message that names it, or the damage changes nothing."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millwheel.errors import StoreError
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.open import open_to_read
from tests.store.damaging import Base, damaged, finish, make_base, outcome

_DAMAGES = int(os.environ.get("MILLWHEEL_DAMAGES", 1_000 if os.environ.get("MILLWHEEL_NIGHTLY") else 150))


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Base, Any]]:
    """One store that was closed and one that was not, each with what a run makes of it."""
    found = []
    for closed in (True, False):
        base = make_base(tmp_path_factory.mktemp("base"), closed=closed)
        whole = base.folder.parent / "whole"
        shutil.copytree(base.folder, whole)
        found.append((base, finish(whole, dict(base.kept), looks=True)))
    return found


def test_no_random_damage_gives_a_wrong_result_or_kills_without_a_message(
    bases: list[tuple[Base, Any]], tmp_path: Path
) -> None:
    def attempt(seed: int) -> tuple[str, str]:
        base, expected = bases[seed % 2]
        folder = tmp_path / f"store-{seed}"
        what = damaged(base, folder, seed)
        kind, found = outcome(folder, base.kept, looks=seed % 4 < 2)
        shutil.rmtree(folder)
        if kind == "ran":
            return ("unchanged", "") if found == expected else ("WRONG", f"seed {seed}: {what}")
        if kind == "refused" and str(folder) in found:
            return kind, ""
        return f"{kind}!", f"seed {seed}: {what}: {found}"

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(attempt, range(_DAMAGES)))
    counts = Counter(kind for kind, _ in found)
    print(dict(counts))
    wrong = [f"{kind} {what}" for kind, what in found if what]
    assert not wrong, "\n".join(wrong[:20])
    assert counts["refused"] > _DAMAGES // 4
    assert counts["unchanged"] > 0


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("name", ["journal", "shard-00", "shard-01"])
def test_an_older_copy_of_one_file_is_refused(
    bases: list[tuple[Base, Any]], tmp_path: Path, closed: bool, name: str
) -> None:
    base, _ = bases[0 if closed else 1]
    shutil.copytree(base.folder, tmp_path / "store")
    shutil.copy(base.older[2] / name / "data.mdb", tmp_path / "store" / name)
    with pytest.raises(StoreError, match=r"older.*whole folder"):
        open_to_read(tmp_path / "store")
    store = LmdbStore(tmp_path / "store")
    with pytest.raises(StoreError, match=r"older.*whole folder"):
        store.lock("a test")
    store.close()


def test_an_older_copy_of_the_whole_store_is_a_backup_and_runs(
    bases: list[tuple[Base, Any]], tmp_path: Path
) -> None:
    base, expected = bases[0]
    shutil.copytree(base.older[2], tmp_path / "store")
    assert finish(tmp_path / "store", dict(base.kept), looks=True) == expected


def test_a_file_that_was_cut_off_is_refused_when_a_worker_opens_it(
    bases: list[tuple[Base, Any]], tmp_path: Path
) -> None:
    base, _ = bases[0]
    shutil.copytree(base.folder, tmp_path / "store")
    path = tmp_path / "store" / "shard-00" / "data.mdb"
    os.truncate(path, path.stat().st_size // 4096 // 2 * 4096)
    with pytest.raises(
        StoreError, match=rf"the store {tmp_path / 'store'} is damaged.*Restore the whole folder"
    ):
        LmdbStore(tmp_path / "store")


def test_a_value_that_was_changed_is_refused_when_it_is_read(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    store.shards[0].write([(b"key", b"a value that can be found")])
    store.close()
    path = tmp_path / "shard-00" / "data.mdb"
    path.write_bytes(path.read_bytes().replace(b"a value that can", b"a value that Can"))
    store = LmdbStore(tmp_path)
    for read in (lambda s: s.get(b"key"), lambda s: s.get_each([b"key"]), lambda s: list(s.scan(b"a", b"z"))):
        with store.shards[0].snapshot() as snapshot, pytest.raises(StoreError, match="wrong checksum"):
            read(snapshot)
    store.close()
