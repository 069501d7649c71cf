"""Avro files, on disk and on object storage: split by their blocks, each record once."""

from __future__ import annotations

import datetime
import io
import itertools
import random
from pathlib import Path
from typing import Any

import fastavro
import pytest

import millwheel as mw
from millwheel.injectors import avro
from millwheel.model.lakehouse import below
from millwheel.objects import open_objects
from millwheel.store.memory import MemoryStore
from tests.store.driving import run

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "n", "type": "long"}, {"name": "t", "type": "long"}],
}


def _avro(numbers: range, *, codec: str = "null", interval: int = 200, schema: Any = SCHEMA) -> bytes:
    data = io.BytesIO()
    fastavro.writer(
        data, schema, [{"n": n, "t": n + 1} for n in numbers], codec=codec, sync_interval=interval
    )
    return data.getvalue()


def _read(pattern: Any, store: MemoryStore | None = None, **options: Any) -> list[Any]:
    p = mw.Pipeline("avro")
    out = mw.sinks.Collect()
    p.inject("in", mw.injectors.Files(str(pattern), timestamp="t", **options)).sink(out)
    run(p, store or MemoryStore())
    return [record.value["n"] for record in out.records]


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy"])
def test_records_are_read_however_blocks_are_packed(tmp_path: Path, codec: str) -> None:
    (tmp_path / "a.avro").write_bytes(_avro(range(1000), codec=codec))
    (tmp_path / "b.avro").write_bytes(_avro(range(1000, 1010), codec=codec))
    store = MemoryStore()
    assert sorted(_read(tmp_path / "*.avro", store)) == list(range(1010))
    assert _read(tmp_path / "*.avro", store) == []
    (tmp_path / "c.avro").write_bytes(_avro(range(5)))
    assert _read(tmp_path / "*.avro", store) == list(range(5))


def test_they_are_read_on_object_storage(s3_url: str) -> None:
    open_objects(s3_url).put("in/a.avro", _avro(range(5000)))
    assert _read(below(s3_url, "in/*.avro")) == list(range(5000))


@pytest.mark.parametrize("seed", range(5))
def test_however_a_file_is_cut_each_record_is_read_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "a.avro"
    path.write_bytes(_avro(range(3000), interval=chance.choice((20, 300, 5000))))
    size = path.stat().st_size
    cuts = sorted({0, size, *(chance.randrange(size) for _ in range(30))})
    pieces = [
        [value["n"] for batch in avro.batches(str(path), *piece, "t", None, None) for value in batch.values]
        for piece in itertools.pairwise(cuts)
    ]
    assert [n for piece in pieces for n in piece] == list(range(3000))
    assert sum(map(bool, pieces)) > 1


def test_epochs_are_cut_by_the_size_of_a_record(tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    path.write_bytes(_avro(range(10_000, 13_000)))
    size = path.stat().st_size
    assert 2000 < avro.count(str(path), size) < 4500
    assert 0 < avro.cut(str(path), 0, size, 100) < size // 10
    assert avro.cut(str(path), 0, size, 10**9) == size


def test_logical_types_become_what_records_carry(tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "Sale",
        "fields": [
            {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "n", "type": ["null", "string"]},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
    row = {
        "t": datetime.datetime(1970, 1, 1, 0, 0, 2, tzinfo=datetime.timezone.utc),
        "n": None,
        "day": datetime.date(2020, 1, 2),
        "tags": ["a"],
    }
    with open(tmp_path / "a.avro", "wb") as file:
        fastavro.writer(file, schema, [row])
    p = mw.Pipeline("avro")
    out = mw.sinks.Collect()
    p.inject("in", mw.injectors.Files(str(tmp_path / "*"), timestamp="t")).sink(out)
    run(p, MemoryStore())
    (record,) = out.records
    assert record.timestamp == 2 * mw.SECOND
    assert record.value == {"t": 2_000_000, "n": None, "day": "2020-01-02", "tags": ["a"]}


def test_a_schema_that_is_larger_than_the_first_read_is_found(tmp_path: Path) -> None:
    wide = {**SCHEMA, "doc": "x" * 200_000}
    (tmp_path / "a.avro").write_bytes(_avro(range(10), schema=wide))
    assert _read(tmp_path / "*.avro") == list(range(10))


def test_files_of_other_schemas_are_read_beside_each_other(tmp_path: Path) -> None:
    more = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "x", "type": "int", "default": 5}]}
    (tmp_path / "a.avro").write_bytes(_avro(range(10)))
    (tmp_path / "b.avro").write_bytes(_avro(range(10, 20), schema=more))
    assert sorted(_read(tmp_path / "*.avro")) == list(range(20))


def _cut_short(data: bytes) -> bytes:
    return data[:-30]


def _damaged(data: bytes) -> bytes:
    return data[:-16] + b"0" * 16


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not Avro at all", r"a\.avro cannot be read \(it does not begin as Avro does\): .*replace it"),
        (b"Obj\x01\x02", r"a\.avro cannot be read \(its header"),
        (_cut_short(_avro(range(500))), r"a\.avro cannot be read \(near byte .*it may be cut short"),
        (_damaged(_avro(range(500))), r"a\.avro cannot be read \(near byte"),
        (_avro(range(5), schema={**SCHEMA, "fields": [{"name": "n", "type": "long"}]}), "no column 't'"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.avro").write_bytes(data)
    with pytest.raises(mw.InputError, match=message):
        _read(tmp_path / "*.avro")


def test_a_file_that_is_written_anew_with_another_schema_is_an_error(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "a.avro").write_bytes(_avro(range(10)))
    _read(tmp_path / "*.avro", store)
    more = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "x", "type": "int", "default": 5}]}
    (tmp_path / "a.avro").write_bytes(_avro(range(20), schema=more))
    with pytest.raises(mw.InputError, match=r"a\.avro changed"):
        _read(tmp_path / "*.avro", store)


def test_times_in_another_unit_are_noticed(tmp_path: Path) -> None:
    data = io.BytesIO()
    fastavro.writer(data, SCHEMA, [{"n": 0, "t": 1_700_000_000}])
    (tmp_path / "a.avro").write_bytes(data.getvalue())
    with pytest.raises(mw.InputError, match='unit="s"'):
        _read(tmp_path / "*.avro")
    assert _read(tmp_path / "*.avro", unit="s") == [0]
