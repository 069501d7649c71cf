"""Files on object storage: the same formats, splits and errors as on disk; an object is known by its ETag."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import millwheel as mw
from millwheel.injectors import object_path
from millwheel.master.ending import Ending
from millwheel.model.lakehouse import below
from millwheel.objects import Objects, open_objects
from millwheel.store.memory import MemoryStore
from tests.servers.s3 import Server
from tests.store.driving import run, run_to_the_end, take


@pytest.fixture
def objects(s3_url: str) -> Objects:
    return open_objects(s3_url, error=mw.InputError)


def _lines(numbers: range) -> bytes:
    return b"".join(json.dumps({"n": n, "t": n + 1}).encode() + b"\n" for n in numbers)


def _table(numbers: range) -> bytes:
    data = io.BytesIO()
    pq.write_table(pa.table({"n": numbers, "t": numbers}), data)
    return data.getvalue()


def _pipeline(pattern: str, **options: Any) -> tuple[mw.Pipeline, mw.sinks.Collect]:
    p = mw.Pipeline("objects")
    out = mw.sinks.Collect()
    p.inject("in", mw.injectors.Files(pattern, timestamp="t", **options))
    p.sink("in", out)
    return p, out


def _read(pattern: str, store: MemoryStore | None = None, **options: Any) -> list[int]:
    p, out = _pipeline(pattern, **options)
    run(p, store or MemoryStore())
    return [int(record.value["n"]) for record in out.records]


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.compress,
    ".snappy": lambda data: bytes(cramjam.snappy.compress(data)),
}


@pytest.mark.parametrize("end", PACKERS)
def test_lines_are_read_however_they_are_packed(
    objects: Objects, s3_url: str, tmp_path: Path, end: str
) -> None:
    objects.put(f"logs/2026/a.jsonl{end}", PACKERS[end](_lines(range(50))))
    objects.put(f"logs/b.jsonl{end}", PACKERS[end](_lines(range(50, 70))))
    objects.put("logs/other.txt", b"nothing")
    assert sorted(_read(below(s3_url, f"logs/**/*.jsonl{end}"))) == list(range(70))
    (tmp_path / f"a.jsonl{end}").write_bytes(PACKERS[end](_lines(range(30))))
    assert sorted(_read(str(tmp_path / "*"))) == list(range(30))  # and on disk
    assert sorted(_read(f"file://{tmp_path}/*")) == list(range(30))


def test_csv_and_parquet_are_read_there(objects: Objects, s3_url: str, tmp_path: Path) -> None:
    objects.put("a.csv", b"n,t\n" + b"".join(b"%d,%d\n" % (n, n + 1) for n in range(9)))
    assert sorted(_read(below(s3_url, "*.csv"))) == list(range(9))
    pq.write_table(pa.table({"n": range(40), "t": range(1, 41)}), tmp_path / "a", row_group_size=7)
    objects.put("b.parquet", (tmp_path / "a").read_bytes())
    assert sorted(_read(below(s3_url, "*.parquet"))) == list(range(40))


def test_a_table_with_more_rows_than_bytes_is_read_whole(
    objects: Objects, s3_url: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"n": [7] * 20_000, "t": [1] * 20_000}), tmp_path / "a", row_group_size=6_000)
    objects.put("a.parquet", (tmp_path / "a").read_bytes())
    assert (tmp_path / "a").stat().st_size < 6_000
    store = MemoryStore()
    p, out = _pipeline(below(s3_url, "*.parquet"))
    driver, executor = take(p, store)
    driver.sizer.bound = 1_000
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    assert 1_000 <= len(out.records) < 20_000
    run_to_the_end(driver, executor)
    assert len(out.records) == 20_000
    driver.close()
    assert _read(below(s3_url, "*.parquet"), store) == []


def test_no_object_is_read_twice_and_a_large_one_is_cut(objects: Objects, s3_url: str) -> None:
    objects.put("a.jsonl", _lines(range(100)))
    store = MemoryStore()
    p, out = _pipeline(below(s3_url, "*.jsonl"))
    driver, executor = take(p, store)
    for _ in range(2):
        driver.sizer.bound = 10
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
    seen = [record.value["n"] for record in out.records]
    assert 0 < len(seen) < 100
    driver.let_go()
    objects.put("b.jsonl", _lines(range(100, 120)))
    p, out = _pipeline(below(s3_url, "*.jsonl"))
    driver, executor = take(p, store, takeover=True)
    run_to_the_end(driver, executor)
    assert sorted(seen + [record.value["n"] for record in out.records]) == list(range(120))
    driver.close()
    assert _read(below(s3_url, "*.jsonl"), store) == []


def test_new_objects_are_found_while_a_prefix_is_followed(
    objects: Objects, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.injectors.object_folder.PAUSE", 0)
    p, out = _pipeline(below(s3_url, "*.jsonl"))
    driver, executor = take(p, MemoryStore(), ending=Ending.NEVER)
    for part in range(3):
        objects.put(f"{9 - part}.jsonl", _lines(range(part * 5, part * 5 + 5)))  # names need no order
        while (plan := driver.next_plan()) is not None:
            driver.run(plan, executor)
        assert sorted(record.value["n"] for record in out.records) == list(range(part * 5 + 5))
    driver.close()


# What goes wrong: a test for each row of the table of errors.


def _error(call: Callable[[], object]) -> str:
    with pytest.raises(mw.MillWheelError) as caught:
        call()
    return str(caught.value)


def test_no_object_and_no_bucket_are_named(s3: Server, s3_url: str) -> None:
    assert "no object matches" in _error(lambda: _read(below(s3_url, "*.jsonl")))
    assert "there is no such bucket" in _error(lambda: _read(s3.url("nowhere", "a/*.jsonl")))


def test_an_object_that_was_replaced_is_an_error(objects: Objects, s3_url: str) -> None:
    objects.put("a.jsonl", _lines(range(5)))
    store = MemoryStore()
    assert _read(below(s3_url, "*.jsonl"), store) == list(range(5))
    objects.put("a.jsonl", _lines(range(6)))
    assert "a.jsonl changed since it was read" in _error(lambda: _read(below(s3_url, "*.jsonl"), store))


def test_an_object_that_is_replaced_between_plan_and_read_is_an_error(objects: Objects, s3_url: str) -> None:
    objects.put("a.jsonl", _lines(range(5)))
    p, _ = _pipeline(below(s3_url, "*.jsonl"))
    driver, executor = take(p, MemoryStore())
    plan = driver.next_plan()
    assert plan is not None
    objects.put("a.jsonl", _lines(range(5, 10)))
    assert "a.jsonl changed since it was read" in _error(lambda: driver.run(plan, executor))
    driver.close()


def test_a_table_that_is_replaced_between_plan_and_read_is_an_error(objects: Objects, s3_url: str) -> None:
    objects.put("a.parquet", _table(range(1, 9)))
    p, _ = _pipeline(below(s3_url, "*.parquet"))
    driver, executor = take(p, MemoryStore())
    plan = driver.next_plan()
    assert plan is not None
    objects.put("a.parquet", _table(range(101, 109)))
    assert "a.parquet changed since it was read" in _error(lambda: driver.run(plan, executor))
    driver.close()


def test_no_credentials_and_no_answer_are_said(
    s3: Server, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_path, "open_client", functools.partial(object_path.open_client, patience=0.5))
    nowhere = s3.url("tests", f"away-{uuid.uuid4().hex}", port=1)
    assert "the server cannot be reached" in _error(lambda: _read(below(nowhere, "*.jsonl")))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    # Nobody answers there: the role of a machine is asked for at an address of its network.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://169.254.169.254:1")
    assert "there are no credentials. Set AWS" in _error(lambda: _read(below(s3_url, "none/*.jsonl")))


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_an_object_that_is_back_is_gone_on_with(objects: Objects, s3_url: str, form: str) -> None:
    data = _lines(range(100)) if form == "jsonl" else _table(range(100))
    objects.put(f"a.{form}", data)
    store = MemoryStore()
    p, out = _pipeline(below(s3_url, "*"))
    driver, executor = take(p, store)
    driver.sizer.bound = 10
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    seen = [record.value["n"] for record in out.records]
    assert 0 < len(seen) < 100
    driver.let_go()
    store.close()
    objects.delete([f"a.{form}"])
    message = _error(lambda: _read(below(s3_url, "*"), store))
    assert f"a.{form} was removed before it was read to its end: restore it" in message
    store.close()
    objects.put(f"a.{form}", data)
    assert seen + _read(below(s3_url, "*"), store) == list(range(100))


def test_an_object_that_is_gone_before_it_was_read_is_an_error(objects: Objects, s3_url: str) -> None:
    objects.put("a.jsonl", _lines(range(50)))
    store = MemoryStore()
    p, _ = _pipeline(below(s3_url, "*.jsonl"))
    driver, executor = take(p, store)
    driver.sizer.bound = 10
    plan = driver.next_plan()
    assert plan is not None
    objects.delete(["a.jsonl"])
    with pytest.raises(mw.MillWheelError, match=r"a\.jsonl"):
        driver.run(plan, executor)
    driver.close()


@pytest.mark.parametrize("end", [".gz", ".bz2", ".zst", ".snappy"])
def test_a_damaged_packed_object_is_an_error_or_diverted(objects: Objects, s3_url: str, end: str) -> None:
    whole = PACKERS[end](_lines(range(5_000)))
    objects.put(f"a.jsonl{end}", whole[: len(whole) // 2])
    pattern = below(s3_url, "*")
    assert f"a.jsonl{end} cannot be read (" in _error(lambda: _read(pattern))
    p, _ = _pipeline(pattern, errors="divert")
    notes = mw.sinks.Collect()
    p.sink("in.errors", notes)
    run(p, MemoryStore())
    assert len(notes.records) >= 1


def test_a_bad_line_of_an_object_is_an_error_or_diverted(objects: Objects, s3_url: str) -> None:
    objects.put("a.jsonl", _lines(range(3)) + b"no JSON\n" + _lines(range(3, 5)))
    assert "the line is not JSON" in _error(lambda: _read(below(s3_url, "*")))
    assert _read(below(s3_url, "*"), errors="divert") == list(range(5))


@pytest.mark.parametrize("end", [".bz2", ".zst", ".snappy"])
def test_a_damaged_packed_file_is_an_error_or_diverted(tmp_path: Path, end: str) -> None:
    whole = PACKERS[end](_lines(range(5_000)))
    (tmp_path / f"a.jsonl{end}").write_bytes(whole[: len(whole) // 2])
    pattern = str(tmp_path / "*")
    assert f"a.jsonl{end} cannot be read (" in _error(lambda: _read(pattern))
    p, _ = _pipeline(pattern, errors="divert")
    notes = mw.sinks.Collect()
    p.sink("in.errors", notes)
    run(p, MemoryStore())
    assert len(notes.records) >= 1
    (tmp_path / f"a.jsonl{end}").write_bytes(b"this is not packed at all\n")
    assert f"a.jsonl{end} cannot be read (" in _error(lambda: _read(pattern))


def test_a_package_for_packed_files_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    (tmp_path / "a.jsonl.zst").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert "pip install 'millwheel-spark[zstd]'" in _error(lambda: _read(str(tmp_path / "*")))
