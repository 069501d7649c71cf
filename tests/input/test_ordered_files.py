"""`OrderedFiles`: names ascend, so new ones are found behind the last; any number in bounded memory."""

from __future__ import annotations

import json
import os
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.injectors import object_sequence
from millwheel.injectors.object_sequence import pieces
from millwheel.master.ending import Ending
from millwheel.model.lakehouse import below
from millwheel.objects import open_objects
from millwheel.store.memory import MemoryStore
from tests.store.driving import run, take


def _line(n: int) -> bytes:
    return json.dumps({"n": n, "t": n + 1}).encode() + b"\n"


def _pipeline(pattern: Any, **options: Any) -> tuple[mw.Pipeline, mw.sinks.Collect]:
    p = mw.Pipeline("ordered")
    out = mw.sinks.Collect()
    p.inject("in", mw.injectors.OrderedFiles(pattern, timestamp="t", **options)).sink(out)
    return p, out


def _read(pattern: Any, store: MemoryStore, **options: Any) -> list[int]:
    p, out = _pipeline(pattern, **options)
    run(p, store)
    return [record.value["n"] for record in out.records]


def _write(folder: Path, numbers: range) -> None:
    for n in numbers:
        path = folder / f"{n // 1000:03d}" / f"{n:06d}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(_line(n))


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.injectors.object_sequence.WINDOW", 50)


def test_each_is_read_once_in_order_and_new_ones_behind_the_last(tmp_path: Path, small_window: None) -> None:
    store = MemoryStore()
    _write(tmp_path, range(1230))
    assert _read(f"file://{tmp_path}/**/*.jsonl", store) == list(range(1230))
    assert _read(tmp_path / "**/*.jsonl", store) == []
    _write(tmp_path, range(1230, 1300))
    assert _read(tmp_path / "**/*.jsonl", store) == list(range(1230, 1300))


def test_tables_with_more_rows_than_bytes_are_read_whole(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for n in range(2):
        table = arrow.table({"t": [n + 1] * 20_000, "n": [n] * 20_000})
        parquet.write_table(table, tmp_path / f"{n}.parquet")
        assert (tmp_path / f"{n}.parquet").stat().st_size < 20_000
    assert _read(tmp_path / "*.parquet", MemoryStore()) == [0] * 20_000 + [1] * 20_000

    p, out = mw.Pipeline("columns"), mw.sinks.Collect()
    source = mw.injectors.OrderedFiles(tmp_path / "*.parquet", timestamp="t")
    p.inject("in", source).key_by("n").window(mw.windows.tumbling(10)).count("counts").sink(out)
    run(p, MemoryStore())
    assert sorted(record.value["count"] for record in out.records) == [20_000, 20_000]


def test_objects_are_listed_behind_the_last_one_that_was_read(
    s3_url: str, small_window: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    objects, store, asked = open_objects(s3_url), MemoryStore(), []
    for n in range(120):
        objects.put(f"logs/{n:03d}.jsonl", _line(n))
    objects.put("logs/other.txt", b"nothing")
    assert _read(below(s3_url, "logs/*.jsonl"), store) == list(range(120))
    for n in range(120, 130):
        objects.put(f"logs/{n:03d}.jsonl", _line(n))
    original = obstore.list

    def listed(*rest: Any, **options: Any) -> Any:
        asked.append(options.get("offset"))
        return original(*rest, **options)

    monkeypatch.setattr(obstore, "list", listed)
    assert _read(below(s3_url, "logs/*.jsonl"), store) == list(range(120, 130))
    assert asked[0] == "119.jsonl"


def test_twenty_thousand_files_take_no_more_memory_than_four_thousand(tmp_path: Path) -> None:
    """Of the driver: what it knows of them, and what it journals. Each is named once."""

    def peak(count: int) -> int:
        folder = tmp_path / str(count)
        for n in range(count):
            path = folder / f"{n // 1000:03d}" / f"{n:06d}.jsonl"
            path.parent.mkdir(exist_ok=True, parents=True)
            os.link(line, path)
        files = mw.injectors.OrderedFiles(folder / "**/*.jsonl", timestamp="t")
        files.open(follow=False)
        read, offset = 0, None
        tracemalloc.start()
        while (end := files.poll()["objects"]) != offset:
            found = pieces(offset, end)
            assert len(found) <= object_sequence.WINDOW
            read += len(found)
            offset = end
            files.commit({"objects": offset})
        assert files.low_watermark("objects", offset) == mw.MAX_TIME
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert read == count
        return most

    line = tmp_path / "line"
    line.write_bytes(_line(1))
    peak(10)  # imports and caches
    assert peak(20_000) < 1.2 * peak(4_000)


class _Bucket:
    """A prefix of any number of objects, which lists pages of a thousand behind a name."""

    def __init__(self, count: int) -> None:
        self._count = count

    def list(self, client: Any, *, offset: str | None = None) -> Iterator[list[dict[str, Any]]]:
        begin = 0 if offset is None else int(offset.removesuffix(".jsonl")) + 1
        for first in range(begin, self._count, 1_000):
            numbers = range(first, min(first + 1_000, self._count))
            yield [{"path": f"{n:07d}.jsonl", "size": 100, "e_tag": f'"{n:x}"'} for n in numbers]


def test_a_million_objects_take_no_more_memory_than_ten_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the blocks of memory that are in use: to trace each allocation would take a minute."""

    def most(count: int) -> int:
        monkeypatch.setattr("obstore.list", _Bucket(count).list)
        files = mw.injectors.OrderedFiles(f"s3://bucket/logs-{count}/*.jsonl", timestamp="t")
        files.open(follow=False)
        read, offset, most = 0, None, 0
        before = sys.getallocatedblocks()
        while (end := files.poll()["objects"]) != offset:
            most = max(most, sys.getallocatedblocks() - before)
            found = pieces(offset, end)
            assert len(found) <= object_sequence.WINDOW
            read += len(found)
            offset = end
            files.commit({"objects": offset})
        assert read == count
        assert files.low_watermark("objects", offset) == mw.MAX_TIME
        return most

    most(5_000)  # imports and caches
    assert most(1_000_000) < 1.5 * most(10_000)


class _Dies(BaseException):
    """The driver is gone."""


class _DiesAfter:
    job = None

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def execute(self, plan: Any) -> Any:
        self._executor.execute(plan)
        raise _Dies

    def close(self) -> None:
        """There is nothing to close."""


def test_an_epoch_that_is_run_again_reads_the_same_though_others_came_between(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "a.jsonl").write_bytes(_line(1))
    (tmp_path / "c.jsonl").write_bytes(_line(3))
    p, _ = _pipeline(tmp_path / "*.jsonl")
    driver, executor = take(p, store)
    plan = driver.next_plan()
    assert plan is not None
    with pytest.raises(_Dies):
        driver.run(plan, _DiesAfter(executor))
    driver.let_go()
    store.close()
    (tmp_path / "b.jsonl").write_bytes(_line(2))
    (tmp_path / "d.jsonl").write_bytes(_line(4))
    assert _read(tmp_path / "*.jsonl", store) == [1, 3, 4]


def test_a_folder_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.injectors.object_sequence.PAUSE", 0.0)
    p, out = _pipeline(tmp_path / "*.jsonl")
    driver, executor = take(p, MemoryStore(), ending=Ending.NEVER)
    assert driver.next_plan() is None
    for n in range(3):
        (tmp_path / f"{n}.jsonl").write_bytes(_line(n))
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
    assert [record.value["n"] for record in out.records] == [0, 1, 2]
    driver.close()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "is gone or changed since it was found"),
        (lambda path: path.write_bytes(b"other"), "is gone or changed since it was found"),
    ],
)
def test_a_file_that_changes_before_it_is_read_is_an_error(tmp_path: Path, spoil: Any, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(_line(1))
    driver, executor = take(_pipeline(tmp_path / "*.jsonl")[0], MemoryStore())
    plan = driver.next_plan()
    assert plan is not None
    spoil(tmp_path / "a.jsonl")
    with pytest.raises(mw.InputError, match=message):
        driver.run(plan, executor)
    driver.close()


def test_an_object_that_was_replaced_before_it_is_read_is_an_error(s3_url: str) -> None:
    objects = open_objects(s3_url)
    objects.put("a.jsonl", _line(1))
    driver, executor = take(_pipeline(below(s3_url, "*.jsonl"))[0], MemoryStore())
    plan = driver.next_plan()
    assert plan is not None
    objects.put("a.jsonl", _line(2))
    with pytest.raises(mw.InputError, match="changed since it was read: put new content under a new name"):
        driver.run(plan, executor)
    driver.close()


def test_an_object_that_is_gone_before_it_is_read_is_named(s3_url: str) -> None:
    objects = open_objects(s3_url)
    objects.put("a.jsonl", _line(1))
    driver, executor = take(_pipeline(below(s3_url, "*.jsonl"))[0], MemoryStore())
    plan = driver.next_plan()
    assert plan is not None
    objects.delete(["a.jsonl"])
    with pytest.raises(mw.InputError, match=r"a\.jsonl"):
        driver.run(plan, executor)
    driver.close()


def test_a_name_before_the_last_one_is_not_found(tmp_path: Path) -> None:
    store = MemoryStore()
    _write(tmp_path, range(5, 8))
    assert _read(tmp_path / "**/*.jsonl", store) == [5, 6, 7]
    _write(tmp_path, range(4, 5))
    assert _read(tmp_path / "**/*.jsonl", store) == []


def test_a_storage_that_lists_in_another_order_is_refused(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    objects, original = open_objects(s3_url), obstore.list
    for n in range(3):
        objects.put(f"{n}.jsonl", _line(n))
    monkeypatch.setattr(
        obstore, "list", lambda *rest, **more: (list(page)[::-1] for page in original(*rest, **more))
    )
    with pytest.raises(mw.InputError, match="is not listed in the order of names: use Files instead"):
        _read(below(s3_url, "*.jsonl"), MemoryStore())


def test_nothing_that_matches_and_a_watermark_are_refused(tmp_path: Path) -> None:
    with pytest.raises(mw.InputError, match="no object matches"):
        _read(tmp_path / "*.jsonl", MemoryStore())
    with pytest.raises(mw.InputError, match="leave watermark out"):
        mw.injectors.OrderedFiles("*.jsonl", timestamp="t", watermark="created")
    with pytest.raises(mw.InputError, match="cannot be listed"):
        _read(tmp_path / "none" / "*.jsonl", MemoryStore())
