"""What was verified ahead is read again when the store is taken: no damage in between is missed."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from millwheel.errors import StoreError
from millwheel.store.lmdb.audit import audit
from millwheel.store.lmdb.known_pages import KnownPages
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.lmdb.pages import Damaged, read_head

_DAMAGES = 300
_PATIENCE = 10.0


def _never() -> bool:
    return False


def _filled(path: Path) -> LmdbStore:
    store = LmdbStore(path, shards=1)
    store.shards[0].write([(b"key %06d" % number, bytes(100)) for number in range(3_000)])
    store.shards[0].write([(b"large", bytes(20_000))])
    return store


def _audited(path: Path, known: KnownPages | None) -> str:
    with open(path, "rb") as file:
        try:
            audit(path, file.fileno(), read_head(path).newest, known)
        except Damaged as error:
            return str(error)
    return "sound"


def test_of_what_was_verified_only_pages_that_changed_are_audited_again(tmp_path: Path) -> None:
    store = _filled(tmp_path / "store")
    first = store.verify_ahead(_never)
    assert first > 50
    assert store.verify_ahead(_never) == 0
    store.shards[0].write([(b"key 000007", b"changed")])
    assert 0 < store.verify_ahead(_never) < first / 2
    store.lock("a test")
    store.close()


def test_damage_is_found_whatever_was_verified_before(tmp_path: Path) -> None:
    _filled(tmp_path / "store").close()
    path = tmp_path / "store" / "shard-00" / "data.mdb"
    whole = path.read_bytes()
    known = KnownPages()
    assert _audited(path, known) == "sound"
    audited = known.added
    draw = random.Random(1)
    damaged = 0
    for _ in range(_DAMAGES):
        place = draw.randrange(2 * 4096, len(whole))
        with open(path, "r+b") as file:
            file.seek(place)
            file.write(bytes([whole[place] ^ 1 << draw.randrange(8)]))
        found = _audited(path, None)
        assert _audited(path, known) == found
        damaged += found != "sound"
        path.write_bytes(whole)
    assert damaged > _DAMAGES / 2
    known.added = 0
    assert _audited(path, known) == "sound"
    assert known.added < audited  # it still knows the others


def test_a_store_that_was_verified_ahead_and_damaged_then_cannot_be_locked(tmp_path: Path) -> None:
    store = _filled(tmp_path / "store")
    assert store.verify_ahead(_never)
    path = tmp_path / "store" / "shard-00" / "data.mdb"
    place = path.read_bytes().index(b"key 001000") + 30
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(b"\x01")
    with pytest.raises(StoreError, match="damaged"):
        store.lock("a test")
    store.close()


def test_an_audit_that_is_not_needed_any_more_ends(tmp_path: Path) -> None:
    store = _filled(tmp_path / "store")
    calls = iter([False] * 5 + [True])
    assert store.verify_ahead(lambda: next(calls)) == 0
    store.verify()
    store.close()


def _during(work: Callable[[], None], finished: list[bool]) -> Callable[[], bool]:
    """What an audit calls with each page; the first time, ``work`` runs in another thread."""

    def interrupted() -> bool:
        if not finished:
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join(_PATIENCE)
            finished.append(not thread.is_alive())
        return False

    return interrupted


def test_a_claim_does_not_wait_for_an_audit(tmp_path: Path) -> None:
    store = _filled(tmp_path / "store")
    finished: list[bool] = []
    assert store.verify_ahead(_during(lambda: store.journal.write([(b"claim", b"mine")]), finished))
    assert finished == [True]
    store.close()


def test_an_audit_whose_map_is_replaced_finds_no_damage(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store", map_size=1 << 20)
    store.shards[0].write([(b"key %06d" % number, bytes(100)) for number in range(3_000)])

    def grow() -> None:
        store.shards[0].write([(b"large", bytes(2 << 20))])
        for turn in range(5):
            store.shards[0].write([(b"key %06d" % number, bytes(90 + turn)) for number in range(3_000)])

    finished: list[bool] = []
    assert store.verify_ahead(_during(grow, finished)) == 0
    assert finished == [True]
    store.lock("a test")
    store.close()


def test_a_store_that_was_removed_is_an_error_of_the_store(tmp_path: Path) -> None:
    store = _filled(tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(StoreError, match="cannot be used"):
        store.verify_ahead(_never)
    store.close()
