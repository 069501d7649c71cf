"""A store's address opens the same store in another process, whatever its path looks like."""

from __future__ import annotations

from pathlib import Path

import pytest

from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.open import open_store
from tests.store.driving import contents


def _written_then_closed(store: LmdbStore) -> str:
    store.shards[0].write([(b"k", b"here")])
    address = store.address
    store.close()
    return address


@pytest.mark.parametrize(
    "name",
    ["plain", "with blank", "hash#1", "question?mark", "100%41", "a&b=c", "ünïcödé", "a+b", "q?sync=0"],
)
def test_the_address_of_a_store_leads_back_to_it(tmp_path: Path, name: str) -> None:
    address = _written_then_closed(LmdbStore(tmp_path / name))
    again = open_store(address)
    assert contents(again.shards[0]) == {b"k": b"here"}
    again.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_address_carries_whether_writes_are_synced(tmp_path: Path) -> None:
    address = _written_then_closed(LmdbStore(tmp_path / "store", sync=False))
    again = open_store(address)
    assert again.address == address
    again.close()


def test_a_relative_path_is_the_same_store_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address = _written_then_closed(LmdbStore("store"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = open_store(address)
    assert contents(again.shards[0]) == {b"k": b"here"}
    again.close()


def test_a_url_and_a_path_are_one_store(tmp_path: Path) -> None:
    _written_then_closed(LmdbStore(tmp_path / "store"))
    again = open_store(f"lmdb://{tmp_path}/store")
    assert contents(again.shards[0]) == {b"k": b"here"}
    again.close()


def test_the_number_of_shards_is_what_it_was_when_the_store_was_made(tmp_path: Path) -> None:
    LmdbStore(tmp_path / "store", shards=4).close()
    again = LmdbStore(tmp_path / "store", shards=1)
    assert len(again.shards) == 4
    again.close()


def test_memory_is_a_store_in_memory() -> None:
    assert open_store("memory:", shards=2).address == "memory:"
    assert len(open_store("memory://", shards=2).shards) == 2
