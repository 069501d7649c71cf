"""Snapshots of a log, and working copies that are made from them."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel.errors import StoreError
from millwheel.store.base import Snapshot, read
from millwheel.store.objects.object_store import ObjectStore
from millwheel.store.objects.shard import ObjectShard
from millwheel.store.objects.working_copy import remove_unused
from tests.store.conftest import Host
from tests.store.driving import contents


def _shard(store: ObjectStore) -> ObjectShard:
    shard = store.shards[0]
    assert isinstance(shard, ObjectShard)
    return shard


def _objects(tmp_path: Path, kind: str) -> list[Path]:
    folder = tmp_path / "objects" / "shard-00" / kind
    return sorted(folder.iterdir()) if folder.exists() else []


def _key(tablet: int, name: str) -> bytes:
    return b"R\x00\x00" + bytes((tablet << 2,)) + name.encode()


def test_a_copy_that_is_lost_is_made_again(host: Host, tmp_path: Path) -> None:
    store = host("one")
    store.shards[0].write([(b"a", b"1")])
    store.close()
    shutil.rmtree(tmp_path / "copies-one")
    assert contents(host("one").shards[0]) == {b"a": b"1"}


def test_a_process_that_was_killed_between_the_log_and_its_copy_loses_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = host("one")
    store.shards[0].write([(b"a", b"1")])
    with monkeypatch.context() as patch:
        patch.setattr(_shard(store).copy, "apply", lambda *arguments: None)
        store.shards[0].write([(b"a", b"2")])
    store.close()
    again = host("one")
    again.shards[0].write([(b"b", b"")], (), lambda get: None)
    assert contents(again.shards[0]) == {b"a": b"2", b"b": b""}


def test_a_copy_that_is_damaged_is_made_again(host: Host, tmp_path: Path) -> None:
    store = host("one")
    store.shards[0].write([(b"k%03d" % n, b"v" * 500) for n in range(100)])
    expected = contents(store.shards[0])
    store.close()
    (data,) = (tmp_path / "copies-one").glob("*/shard-00-*/data.mdb")
    data.write_bytes(data.read_bytes()[:8192])
    assert contents(host("one").shards[0]) == expected


def test_a_copy_that_is_damaged_while_it_is_read_is_made_again(host: Host, tmp_path: Path) -> None:
    store = host("one")
    store.shards[0].write([(b"k%03d" % n, b"v" * 500) for n in range(100)])
    expected = contents(store.shards[0])
    (path,) = (tmp_path / "copies-one").glob("*/shard-00-*/data.mdb")
    data = path.read_bytes()
    with open(path, "r+b") as file:
        file.write(data.replace(b"vvvv", b"vwvv"))

    def look(snapshot: Snapshot) -> dict[bytes, bytes]:
        return dict(snapshot.scan(b"a", b"z"))

    assert read(store.shards[0], look) == expected


def test_a_copy_that_nobody_uses_is_removed_and_nothing_else(host: Host, tmp_path: Path) -> None:
    store = host("one")
    store.shards[0].write([(b"a", b"1")])
    folder = tmp_path / "copies-one"
    (used,) = folder.iterdir()
    of_another_start = folder / f"{'0' * 32}-{'0' * 32}"
    not_ours = [folder / "my-data", folder / f"{'0' * 32}-{'1' * 32}"]
    for path in (of_another_start, *not_ours):
        path.mkdir()
        (path / "file").write_text("")
    (of_another_start / "journal.filling").write_text("")
    remove_unused(folder)
    assert sorted(folder.iterdir()) == sorted([used, *not_ours])
    long_ago = time.time() - 30 * 24 * 3600
    os.utime(used, (long_ago, long_ago))
    store.shards[0].write([(b"a", b"2")])  # it is in use, though nobody has opened it for long
    remove_unused(folder)
    assert used.exists()
    store.close()
    for path in (used, *used.glob("*.writing")):
        os.utime(path, (long_ago, long_ago))
    remove_unused(folder)
    assert sorted(folder.iterdir()) == sorted(not_ours)


def test_handles_and_threads_of_one_process_share_a_copy(host: Host) -> None:
    stores = [host("one") for _ in range(4)]

    def write(store: ObjectStore, name: bytes) -> None:
        for number in range(10):
            store.shards[0].write([(b"%s%d" % (name, number), name)])

    threads = [
        threading.Thread(target=write, args=(store, b"%d-" % number)) for number, store in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = contents(stores[0].shards[0])
    assert len(found) == 40
    assert all(contents(store.shards[0]) == found for store in stores)


def test_a_new_copy_is_made_from_the_snapshot_and_the_log_behind_it(host: Host, tmp_path: Path) -> None:
    store = host("one")
    store.shards[0].write([(_key(n, "x"), b"%d" % n) for n in range(64)])
    _shard(store).checkpoint()
    store.shards[0].write([(_key(3, "x"), b"new")], [_key(4, "x")])
    for path in _objects(tmp_path, "log")[:1]:
        path.unlink()  # it stands in the snapshot
    assert contents(host("other").shards[0]) == contents(store.shards[0])


def test_a_range_that_nobody_has_written_is_not_written_again(host: Host, tmp_path: Path) -> None:
    store = host("one")
    store.shards[0].write([(_key(n, "x"), bytes(1000)) for n in range(64)])
    _shard(store).checkpoint()
    first = _objects(tmp_path, "parts")
    store.shards[0].write([(_key(3, "y"), b"new")])
    _shard(store).checkpoint()
    (second,) = sorted(set(_objects(tmp_path, "parts")).difference(first))
    assert second.stat().st_size < first[0].stat().st_size / 10
    assert contents(host("other").shards[0]) == contents(store.shards[0])


def test_parts_of_which_little_is_in_use_are_written_again_and_can_go(host: Host, tmp_path: Path) -> None:
    store = host("one")
    store.shards[0].write([(_key(n, "x"), bytes([n]) * 1000) for n in range(64)])
    for number in range(63):
        store.shards[0].write([(_key(number, "x"), b"%d" % number)])
        _shard(store).checkpoint(grace=0)
    manifest = _shard(store).snapshots.read(_shard(store).snapshots.newest())
    assert manifest is not None
    assert len(manifest.parts) < 64
    assert {path.name for path in _objects(tmp_path, "parts")} == {
        name.rpartition("/")[2] for name in manifest.parts
    }
    assert contents(host("other").shards[0]) == contents(store.shards[0])


def test_what_a_snapshot_stands_for_is_removed_after_the_grace_period(host: Host, tmp_path: Path) -> None:
    store = host("one")
    for number in range(5):
        store.shards[0].write([(b"n", b"%d" % number)])
    _shard(store).checkpoint(grace=3600)
    assert len(_objects(tmp_path, "log")) == 5
    store.shards[0].write([(b"n", b"5")])
    _shard(store).checkpoint(grace=0)
    assert _objects(tmp_path, "log") == []
    assert len(_objects(tmp_path, "snapshots")) == 1
    store.shards[0].write([(b"n", b"6")])
    assert contents(host("other").shards[0]) == {b"n": b"6"}


def test_a_snapshot_is_taken_while_others_write(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    store = host("one")
    store.shards[0].write([(_key(n, "x"), b"0") for n in range(64)])
    writer = host("writer")
    read = "millwheel.store.objects.snapshots.read_range"
    original = __import__("millwheel.store.objects.snapshots", fromlist=["x"]).read_range
    count = iter(range(1000))

    def meanwhile(shard: object, key: bytes, width: int) -> object:
        number = next(count)
        writer.shards[0].write([(_key(63 - number % 64, "x"), b"%d" % number)], [_key(number % 64, "x")])
        _shard(store).catch_up()
        return original(shard, key, width)

    monkeypatch.setattr(read, meanwhile)
    _shard(store).checkpoint()
    assert contents(host("other").shards[0]) == contents(writer.shards[0])


def test_a_part_that_is_missing_or_changed_is_refused(host: Host, tmp_path: Path) -> None:
    store = host("one")
    store.shards[0].write([(_key(n, "x"), bytes(100)) for n in range(64)])
    _shard(store).checkpoint(grace=0)
    (part,) = _objects(tmp_path, "parts")
    data = part.read_bytes()
    part.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    with pytest.raises(StoreError, match=r"parts/.* is damaged"):
        contents(host("other").shards[0])
    with pytest.raises(StoreError, match=r"parts/.* is damaged"):
        host("third", readonly=True).verify()
    part.unlink()
    with pytest.raises(StoreError, match="it is missing"):
        contents(host("other").shards[0])


def test_a_compacted_store_is_the_same_and_smaller(host: Host) -> None:
    store = host("one")
    for number in range(200):
        store.shards[0].write([(_key(number % 3, "x"), bytes([number]) * 100)])
    expected = contents(store.shards[0])
    store.lock("compact")
    for shard in (store.journal, *store.shards):
        shard.grace = 0.0  # type: ignore[attr-defined]
    before, now = store.compact()
    assert now < before / 10
    assert contents(store.shards[0]) == contents(host("other").shards[0]) == expected


_writes = st.lists(
    st.one_of(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=4),
            st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=2),
        ),
        st.sampled_from(["snapshot", "remove", "lose"]),
    ),
    max_size=15,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_writes)
def test_writes_snapshots_and_lost_copies_in_any_order_leave_what_a_dict_would_hold(
    steps: list[object], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("store")
    model: dict[bytes, bytes] = {}
    lost = 0

    def opened() -> ObjectStore:
        monkeypatch.setenv("MILLWHEEL_COPIES", str(folder / f"copies-{lost}"))
        return ObjectStore(f"file://{folder}/objects")

    store = opened()
    for number, step in enumerate(steps):
        if step == "lose":
            lost += 1
            store.close()
            store = opened()
        elif isinstance(step, str):
            _shard(store).checkpoint(grace=0.0 if step == "remove" else 3600.0)
        else:
            puts, deletes = step  # type: ignore[misc]
            entries = [(_key(tablet, str(name)), b"%d" % number) for tablet, name in puts]
            gone = [_key(tablet, str(name)) for tablet, name in deletes]
            store.shards[0].write(entries, gone)
            for key in gone:
                model.pop(key, None)
            model.update(entries)
    assert contents(store.shards[0]) == model
    store.close()
    lost += 1
    store = opened()
    assert contents(store.shards[0]) == model
    store.close()
