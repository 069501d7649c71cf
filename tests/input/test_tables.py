"""Delta and Iceberg tables as injectors: each row once, commit by commit, whatever the cutting."""

from __future__ import annotations

import base64
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

import millwheel as mw
from millwheel.injectors import table_log
from millwheel.master.ending import Ending
from millwheel.model.batch import RecordBatch
from millwheel.model.field_columns import FieldColumns
from millwheel.model.injector import FieldNames
from millwheel.model.lakehouse import below, client_options
from millwheel.store.memory import MemoryStore
from millwheel.worker import route
from tests.servers.s3 import Server
from tests.store.driving import run, run_to_the_end, take


class Table:
    """A table that others write."""

    def __init__(self, kind: str, folder: Path, url: str = "") -> None:
        self.kind = kind
        self.folder = folder
        self.uri = below(url, "table") if url else str(folder / "table")
        place, _, query = url.partition("?")
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"{place}/lake" if url else f"file://{folder}/lake",
            **{f"s3.{name}": value for name, value in parse_qsl(query)},
        }

    def injector(self, **options: Any) -> mw.Injector:
        options = {"timestamp": "t", **options}
        if self.kind == "delta":
            return mw.injectors.Delta(self.uri, **options)
        return mw.injectors.Iceberg(self.catalog, "ns.table", **options)

    def append(self, *numbers: int, **more: Any) -> None:
        rows = [{"n": n, "part": f"p{n % 2}", "t": n + 1, **more} for n in numbers]
        data = pa.Table.from_pylist(rows)
        if self.kind == "delta":
            place, options = client_options(self.uri)
            deltalake.write_deltalake(
                place,
                data,
                mode="append",
                partition_by=["part"],
                schema_mode="merge",
                storage_options=options,
            )
            return
        catalog = load_catalog("millwheel", **self.catalog)
        catalog.create_namespace_if_not_exists("ns")
        table = catalog.create_table_if_not_exists("ns.table", data.schema)
        with table.transaction() as change:
            with change.update_schema() as schema:
                schema.union_by_name(data.schema)
            change.append(data)

    def rewrite(self) -> None:
        """Compacts, as others do."""
        assert self.kind == "delta"
        deltalake.DeltaTable(self.uri).optimize.compact()

    def delete(self) -> None:
        if self.kind == "delta":
            deltalake.DeltaTable(self.uri).delete("n = 1")
        else:
            load_catalog("millwheel", **self.catalog).load_table("ns.table").delete("n == 1")


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(request.param, tmp_path)


def _pipeline(injector: mw.Injector) -> tuple[mw.Pipeline, mw.sinks.Collect]:
    p = mw.Pipeline("tables")
    out = mw.sinks.Collect()
    p.inject("in", injector)
    p.sink("in", out)
    return p, out


def _numbers(out: mw.sinks.Collect) -> list[int]:
    return [record.value["n"] for record in out.records]


def test_each_run_gives_the_rows_that_were_appended_since(table: Table) -> None:
    store = MemoryStore()
    table.append(*range(10))
    table.append(*range(10, 15))
    for expected in (range(15), range(15, 22), range(0)):
        p, out = _pipeline(table.injector())
        run(p, store)
        assert sorted(_numbers(out)) == list(expected)
        if expected == range(15):
            table.append(*range(15, 20))
            table.append(20, 21)


def test_a_value_has_all_columns_also_those_of_folders_and_those_that_came_later(table: Table) -> None:
    table.append(1)
    table.append(2, extra="x")
    p, out = _pipeline(table.injector(id="n"))
    run(p, MemoryStore())
    assert sorted((record.value for record in out.records), key=lambda value: value["n"]) == [
        {"n": 1, "part": "p1", "t": 2, "extra": None},
        {"n": 2, "part": "p0", "t": 3, "extra": "x"},
    ]
    assert {record.timestamp for record in out.records} == {2, 3}


def _by_operators(table: Table) -> tuple[mw.Pipeline, mw.sinks.Collect]:
    """The folders' sums and means of columns, of which one came later."""
    p, out = mw.Pipeline("lake"), mw.sinks.Collect()
    window = p.inject("rows", table.injector(unit="us")).key_by("part").window(mw.windows.tumbling(7))
    window.aggregate("out", n=mw.agg.sum("n"), late=mw.agg.mean("late"), rows=mw.agg.count()).sink(out)
    return p, out


def test_windows_of_a_table_read_as_columns_are_those_of_its_records(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "WORTH_IT", 1)
    table.append(*range(40))
    table.append(*range(40, 100), late=2.5)

    def outcome() -> list[Any]:
        store = MemoryStore(2)
        p, out = _by_operators(table)
        run(p, store)
        return sorted((record.value for record in out.records), key=lambda v: (v["key"], v["start"]))

    columns = outcome()
    read = table_log.TableLog.read_batches
    monkeypatch.setattr(
        table_log.TableLog,
        "read_fields",
        lambda self, partition, start, end, fields: read(self, partition, start, end),
    )
    wanted = []
    for key in ("p0", "p1"):
        for start in range(0, 105, 7):
            inside = [n for n in range(100) if f"p{n % 2}" == key and start <= n + 1 < start + 7]
            late = 2.5 if inside and inside[-1] >= 40 else None
            if inside:
                window = {"key": key, "start": start, "end": start + 7}
                wanted.append({**window, "n": sum(inside), "late": late, "rows": len(inside)})
    assert columns == wanted
    assert outcome() == wanted


@pytest.mark.parametrize("options", [{}, {"id": "n"}], ids=["columns", "records with IDs"])
def test_a_table_is_read_as_columns_where_its_records_have_no_ids(
    table: Table, options: dict[str, str]
) -> None:
    table.append(*range(30))
    injector = table.injector(unit="us", **options)
    injector.open(follow=False)
    ((partition, end),) = injector.poll().items()
    names = FieldNames(["part"], ["n"], columns=True)
    found = list(injector.read_fields(partition, None, end, names) or ())
    assert {isinstance(part, RecordBatch) for part in found} == {bool(options)}
    records = [record for part in found for record in whole_records(part)]
    assert records == [
        record for part in injector.read_batches(partition, None, end) or () for record in part.records()
    ]
    assert sorted(time for part in found for time in map(int, part.timestamps)) == list(range(1, 31))


def whole_records(part: RecordBatch | FieldColumns) -> list[mw.Record]:
    batch = part if isinstance(part, RecordBatch) else part.records()
    return list(batch.records())


def test_it_is_cut_anywhere_and_a_driver_that_comes_back_goes_on(table: Table) -> None:
    table.append(*range(20))
    store = MemoryStore()
    p, out = _pipeline(table.injector())
    driver, executor = take(p, store)
    seen: list[int] = []
    for _ in range(3):
        driver.sizer.bound = 3
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
    seen += _numbers(out)
    assert len(seen) == 9
    driver.let_go()
    table.append(*range(20, 30))  # while nobody looks; this one reads it, too
    p, out = _pipeline(table.injector())
    driver, executor = take(p, store, takeover=True)
    driver.sizer.bound = 4
    run_to_the_end(driver, executor)
    assert sorted(seen + _numbers(out)) == list(range(30))
    driver.close()


def test_a_table_that_is_followed_gives_rows_as_they_come_and_its_watermark_follows(table: Table) -> None:
    injector = table.injector(slack=2)
    p, out = _pipeline(injector)
    driver, executor = take(p, MemoryStore(), ending=Ending.NEVER)
    assert driver.next_plan() is None  # there is no table yet
    table.append(*range(10))
    for last in (10, 20):
        while (plan := driver.next_plan()) is not None:
            driver.run(plan, executor)
        assert sorted(_numbers(out)) == list(range(last))
        (watermark,) = driver.sources.watermarks.values()
        assert watermark == last - 2
        table.append(*range(10, 20))
    driver.close()


def test_a_table_on_object_storage_is_read_there(tmp_path: Path, s3: Server, s3_url: str) -> None:
    for kind in ("delta", "iceberg"):
        (tmp_path / kind).mkdir()
        table = Table(kind, tmp_path / kind, s3_url)
        table.append(*range(5))
        store = MemoryStore()
        p, out = _pipeline(table.injector())
        run(p, store)
        assert sorted(_numbers(out)) == list(range(5))
        table.append(*range(5, 9))
        p, out = _pipeline(table.injector())
        run(p, store)
        assert sorted(_numbers(out)) == list(range(5, 9))


def test_a_compaction_is_passed_over(tmp_path: Path) -> None:
    table = Table("delta", tmp_path)
    table.append(0, 2)
    store = MemoryStore()
    run(_pipeline(table.injector())[0], store)
    table.append(4, 6)
    table.rewrite()
    table.append(8)
    p, out = _pipeline(table.injector())
    run(p, store)
    assert sorted(_numbers(out)) == [4, 6, 8]


# What goes wrong: a test for each row of the table of errors.


def _error(call: Callable[[], object]) -> str:
    with pytest.raises(mw.InputError) as caught:
        call()
    return str(caught.value)


def test_a_table_that_is_not_there_and_a_column_that_is_not_are_named(table: Table) -> None:
    assert "there is no such table" in _error(lambda: run(_pipeline(table.injector())[0], MemoryStore()))
    table.append(1)
    message = _error(lambda: run(_pipeline(table.injector(timestamp="time"))[0], MemoryStore()))
    assert "has no column 'time', which is the timestamp; it has n, part, t" in message


def test_a_commit_that_removes_rows_is_an_error_and_nothing_is_skipped(table: Table) -> None:
    table.append(1, 2, 3)
    store = MemoryStore()
    run(_pipeline(table.injector())[0], store)
    table.delete()
    table.append(4)
    for _ in range(2):
        assert "removes or changes rows" in _error(lambda: run(_pipeline(table.injector())[0], store))


def test_what_is_removed_before_it_was_read_is_an_error(table: Table) -> None:
    table.append(1)
    store = MemoryStore()
    run(_pipeline(table.injector())[0], store)
    table.append(2)
    table.append(3)
    if table.kind == "delta":
        (tmp,) = Path(table.uri, "_delta_log").glob("*0000001.json")
        deltalake.DeltaTable(table.uri).create_checkpoint()
        tmp.unlink()
    else:
        loaded = load_catalog("millwheel", **table.catalog).load_table("ns.table")
        first, second, _ = (snapshot.snapshot_id for snapshot in loaded.snapshots())
        loaded.maintenance.expire_snapshots().by_ids([first, second]).commit()
    assert "was removed before it was read" in _error(lambda: run(_pipeline(table.injector())[0], store))


def test_a_file_that_is_gone_is_named(table: Table) -> None:
    table.append(1)
    folder = Path(table.uri) if table.kind == "delta" else table.folder / "lake" / "ns" / "table" / "data"
    (path,) = folder.rglob("*.parquet")
    p = _pipeline(table.injector())[0]
    driver, executor = take(p, MemoryStore())
    plan = driver.next_plan()
    assert plan is not None
    path.unlink()
    with pytest.raises(mw.MillWheelError, match=path.name):
        driver.run(plan, executor)
    driver.close()


def test_a_table_that_cannot_be_reached_is_an_error(table: Table) -> None:
    table.append(1)
    store = MemoryStore()
    run(_pipeline(table.injector())[0], store)
    if table.kind == "delta":
        log = Path(table.uri) / "_delta_log"
        for path in log.glob("*.json"):
            path.write_text("{")
    else:
        shutil.rmtree(table.folder / "lake" / "ns" / "table" / "metadata")
    assert "the table cannot be read (" in _error(lambda: run(_pipeline(table.injector())[0], store))


def test_a_table_that_is_back_is_gone_on_with(table: Table) -> None:
    table.append(1)
    store = MemoryStore()
    run(_pipeline(table.injector())[0], store)
    table.append(2)
    folder = (
        Path(table.uri) / "_delta_log" if table.kind == "delta" else table.folder / "lake/ns/table/metadata"
    )
    whole = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for path in whole:
        path.write_bytes(b"{")
    assert "the table cannot be read (" in _error(lambda: run(_pipeline(table.injector())[0], store))
    for path, data in whole.items():
        path.write_bytes(data)
    store.close()  # as the end of the process does
    p, out = _pipeline(table.injector())
    run(p, store)
    assert _numbers(out) == [2]


def test_delete_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg reads them and writes none: here the file of rows stands for one."""
    from pyiceberg.table import DataScan, FileScanTask

    table = Table("iceberg", tmp_path)
    table.append(1)
    original = DataScan.plan_files

    def with_deletes(self: Any) -> list[FileScanTask]:
        return [FileScanTask(task.file, delete_files={task.file}) for task in original(self)]

    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    message = _error(lambda: run(_pipeline(table.injector())[0], MemoryStore()))
    assert "it has delete files, which are not supported: rewrite them first (rewrite_data_files)" in message


def test_an_old_format_without_numbers_is_refused(tmp_path: Path) -> None:
    table = Table("iceberg", tmp_path)
    catalog = load_catalog("millwheel", **table.catalog)
    catalog.create_namespace_if_not_exists("ns")
    data = pa.table({"t": [1]})
    made = catalog.create_table("ns.table", data.schema, properties={"format-version": "1"})
    made.append(data)
    assert "it has format version 1" in _error(lambda: run(_pipeline(table.injector())[0], MemoryStore()))


def test_mapped_columns_are_refused(tmp_path: Path) -> None:
    table = Table("delta", tmp_path)
    table.append(1)
    (log,) = Path(table.uri, "_delta_log").glob("*.json")
    log.write_text(
        log.read_text().replace('"configuration":{}', '"configuration":{"delta.columnMapping.mode":"name"}')
    )
    message = _error(lambda: run(_pipeline(table.injector())[0], MemoryStore()))
    assert "inject spark.readStream.format('delta') with SparkStream" in message


def _delete_by_vector(table: Table) -> None:
    """Deletes the first row of a Delta table's file as Spark does: by a bitmap in the log, inline."""
    log = Path(table.uri) / "_delta_log"
    actions = [
        json.loads(line) for path in sorted(log.glob("*.json")) for line in path.read_text().splitlines()
    ]
    (add,) = [action["add"] for action in actions if "add" in action]
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 0)  # one container, with the row 0
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    text = base64.b85encode(data + b"\x00" * (-len(data) % 4)).decode()
    vector = {
        "storageType": "i",
        "pathOrInlineDv": text.translate(str.maketrans(_B85, _Z85)),
        "sizeInBytes": len(data),
        "cardinality": 1,
    }
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    removed = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    made = [{"protocol": protocol}, {"remove": removed}, {"add": {**add, "deletionVector": vector}}]
    number = len(list(log.glob("*.json")))
    (log / f"{number:020d}.json").write_text("\n".join(map(json.dumps, made)) + "\n")


_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def test_a_table_whose_rows_are_deleted_by_vectors_is_refused(tmp_path: Path) -> None:
    table = Table("delta", tmp_path)
    table.append(2, 4, 6)
    _delete_by_vector(table)
    message = _error(lambda: run(_pipeline(table.injector())[0], MemoryStore()))
    assert "rows of it are deleted by vectors" in message or "deletion vectors" in message
    assert "REORG TABLE" in message


def test_rows_that_are_deleted_by_vectors_after_they_were_read_are_refused(tmp_path: Path) -> None:
    table, store = Table("delta", tmp_path), MemoryStore()
    table.append(2, 4, 6)
    run(_pipeline(table.injector())[0], store)
    _delete_by_vector(table)
    message = _error(lambda: run(_pipeline(table.injector())[0], store))
    assert "version 1 removes or changes rows" in message
