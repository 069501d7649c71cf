"""Delta and Iceberg tables: one commit for whole epochs, each record once, read back by their formats."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

import millwheel as mw
from millwheel.model.lakehouse import below
from millwheel.sinks import delta, iceberg
from millwheel.sinks.object_staging import ObjectStaging
from millwheel.sinks.staging import Staging
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.servers.s3 import Server
from tests.sinks import lakes
from tests.spark.waiting import eventually
from tests.store.driving import run

KINDS = ["delta", "iceberg"]


class Table:
    """A table of one kind in a folder, the sink for it, and a reader that is not the sink's."""

    def __init__(self, kind: str, folder: Path, url: str = "", buckets: Path = Path("/")) -> None:
        self.kind = kind
        self.folder = folder
        self.url = url
        self.buckets = buckets
        root = buckets / url.removeprefix("s3://").partition("?")[0] if url else folder
        self.place = root / "table" if kind == "delta" else root / "lake" / "ns" / "table"

    @property
    def catalog(self) -> dict[str, str]:
        local = {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db"}
        if not self.url:
            return {**local, "warehouse": f"file://{self.folder}/lake"}
        place, _, query = self.url.partition("?")
        return {**local, "warehouse": f"{place}/lake", **{f"s3.{k}": v for k, v in parse_qsl(query)}}

    def sink(self, **options: Any) -> mw.Sink:
        options = {"every": 3_600, **options}
        if self.kind == "delta":
            return mw.sinks.Delta(below(self.url, "table") if self.url else self.place, **options)
        return mw.sinks.Iceberg(self.catalog, "ns.table", **options)

    def begun(self, *, origin: str = "a", epoch: int = 0, **options: Any) -> mw.Sink:
        """A sink as a driver has opened it, whose store has committed an epoch."""
        sink = self.sink(**options)
        sink.open()
        sink.begin(origin, epoch)
        return sink

    def rows(self) -> list[dict[str, Any]]:
        if self.kind == "delta":
            return lakes.delta_rows(self.place)
        return lakes.iceberg_rows(self.place, self.buckets)

    def values(self) -> list[Any]:
        return sorted((json.loads(row["value"]) for row in self.rows()), key=str)

    def files(self) -> int:
        if self.kind == "delta":
            return len(lakes.delta_files(self.place))
        return len(lakes.iceberg_files(self.place, self.buckets))

    def commits(self) -> int:
        if self.kind == "delta":
            return lakes.delta_commits(self.place)
        return len(lakes.iceberg_snapshots(self.place))

    def staged(self) -> list[str]:
        return [path.name for path in self.place.glob("_millwheel/*/*staged/*")]

    @property
    def rows_class(self) -> Any:
        return delta.DeltaRows if self.kind == "delta" else iceberg.IcebergRows


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(request.param, tmp_path)


def _record(value: Any, *, time: int = 5, key: str = "k") -> mw.Record:
    return mw.Record(value=value, timestamp=time, key=key, stream="out")


def test_a_row_has_the_key_the_timestamp_and_the_value_as_json(table: Table) -> None:
    sink = table.begun()
    sink.write(1, 0, [_record({"a": [1, None]}, key="é", time=mw.DAY + 7), _record(b"\xff", key="\ud800")])
    sink.commit(1)
    sink.close()
    found = sorted(table.rows(), key=lambda row: row["timestamp"], reverse=True)
    assert found[0] == {
        "key": "é",
        "timestamp": datetime.datetime(1970, 1, 2, 0, 0, 0, 7, datetime.timezone.utc),
        "value": '{"a": [1, null]}',
    }
    assert (found[1]["key"], found[1]["value"]) == ("?", '"\\\\xff"')


def test_many_epochs_and_shards_are_one_commit_and_one_file(table: Table) -> None:
    sink = table.begun()
    for epoch in range(1, 21):
        for shard in (0, 1, 0):  # the second time is a retry
            sink.write(epoch, shard, [_record([epoch, shard])])
        sink.commit(epoch)
    sink.write(21, 0, [_record("not committed")])
    assert table.commits() == 0
    sink.close()
    assert (table.commits(), table.files()) == (1, 1)
    assert sorted(table.values()) == [[epoch, shard] for epoch in range(1, 21) for shard in (0, 1)]
    assert table.staged() == ["0000000021-00000000"]


def test_every_epoch_is_a_commit_where_that_is_asked_for(table: Table) -> None:
    sink = table.begun(every=0)
    for epoch in (1, 2):
        sink.write(epoch, 0, [_record(epoch)])
        sink.commit(epoch)
        assert table.values() == list(range(1, epoch + 1))
    sink.commit(3)  # one without rows leaves the table alone
    assert table.commits() == 2


def test_time_publishes_though_no_epoch_follows(table: Table) -> None:
    sink = table.begun(every=0.01)
    sink.write(1, 0, [_record("a")])
    assert table.staged()
    sink.commit(1)
    eventually(lambda: not table.staged())  # a table's files may be half written before
    assert (table.commits(), table.values()) == (1, ["a"])


def test_more_rows_than_fit_are_several_commits_of_whole_epochs(table: Table) -> None:
    sink = table.begun()
    for epoch in range(1, 7):
        for shard in (0, 1):
            sink.write(epoch, shard, [_record([epoch, shard, i]) for i in range(20)])
        sink.commit(epoch)
    again = table.begun(epoch=6, rows=40)  # the next driver has less memory
    assert len(table.values()) == 240
    assert 1 < table.commits() < 6
    again.close()


class Crash(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("point", ["before the commit", "after the commit", "before the drop"])
def test_a_driver_that_is_gone_while_it_publishes_leaves_each_row_once(
    table: Table, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    sink = table.begun()
    for epoch in (1, 2):
        sink.write(epoch, 0, [_record([epoch, i]) for i in range(3)])
        sink.commit(epoch)
    real = table.rows_class.add

    def add(self: Any, *arguments: Any) -> bool:
        if point == "after the commit":
            real(self, *arguments)
        raise Crash

    def drop(self: Any, *arguments: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        if point == "before the drop":
            patch.setattr(ObjectStaging if table.url else Staging, "drop", drop)
        else:
            patch.setattr(table.rows_class, "add", add)
        with pytest.raises(Crash):
            sink.close()
    again = table.begun(epoch=2)
    again.write(3, 0, [_record([3, 0])])
    again.commit(3)
    again.close()
    assert table.values() == [[epoch, i] for epoch in (1, 2) for i in range(3)] + [[3, 0]]
    assert table.staged() == []


def test_an_epoch_that_was_committed_and_not_published_is_published_by_the_next_driver(table: Table) -> None:
    sink = table.begun()
    sink.write(1, 0, [_record("a")])
    sink.commit(1)
    sink.write(2, 0, [_record("b")])
    again = table.begun(epoch=1)
    assert table.values() == ["a"]
    again.write(2, 0, [_record("b")])
    again.commit(2)
    again.close()
    assert table.values() == ["a", "b"]


def test_of_two_drivers_that_commit_at_once_one_succeeds(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = table.begun()
    stale.write(1, 0, [_record("a")])
    stale.commit(1)
    other: list[mw.Sink] = []
    load = table.rows_class._load

    def overtaken(self: Any) -> Any:
        loaded = load(self)
        if len(other) == 0:
            other.append(table.sink())
            table.begun(epoch=1)  # takes over between the stale driver's read and its commit
        return loaded

    calls = 0

    def at_the_commit(self: Any) -> Any:
        nonlocal calls
        calls += 1
        return load(self) if calls == 1 else overtaken(self)  # the first one reads the marker

    monkeypatch.setattr(table.rows_class, "_load", at_the_commit)
    stale.close()
    assert other
    assert table.values() == ["a"]
    assert table.commits() == 1


def test_other_writers_of_the_table_do_not_disturb(table: Table) -> None:
    first, second = table.begun(every=0), table.begun(every=0, origin="b")
    for epoch in (1, 2):
        for name, sink in (("first", first), ("second", second)):
            sink.write(epoch, 0, [_record([name, epoch])])
            sink.commit(epoch)
    # Both are in this process, which has one publisher of a table: each begins again, as a driver would.
    table.begun(origin="a", epoch=2)
    table.begun(origin="b", epoch=2)
    assert table.values() == [[name, epoch] for name in ("first", "second") for epoch in (1, 2)]


def test_fields_are_columns_and_a_new_field_is_a_new_column(table: Table) -> None:
    sink = table.begun(schema={"n": "int64"})
    sink.write(1, 0, [_record({"n": 1, "other": 2})])
    sink.commit(1)
    sink.close()
    sink = table.begun(schema={"n": "int64", "name": "string"}, epoch=1)
    sink.write(2, 0, [_record({"n": 2, "name": "x"}), _record({"name": "y"})])
    sink.commit(2)
    sink.close()
    found = {(row.get("n"), row.get("name")) for row in table.rows()}
    assert found == {(1, None), (2, "x"), (None, "y")}


def test_rows_that_were_staged_before_a_column_was_added_have_none_there(table: Table) -> None:
    sink = table.begun(schema={"n": "int64"})
    sink.write(1, 0, [_record({"n": 1})])
    sink.commit(1)
    again = table.begun(schema={"n": "int64", "name": "string"}, epoch=1)
    again.write(2, 0, [_record({"n": 2, "name": "x"})])
    again.commit(2)
    again.close()
    assert {(row.get("n"), row.get("name")) for row in table.rows()} == {(1, None), (2, "x")}


def test_the_newest_row_of_each_key_stays_where_it_upserts(table: Table) -> None:
    sink = table.begun(upsert_on="key", every=0)
    for epoch in range(1, 4):
        sink.write(epoch, 0, [_record([epoch, i], key=f"k{i % 3}") for i in range(epoch * 2)])
        sink.commit(epoch)
    assert {row["key"]: json.loads(row["value"]) for row in table.rows()} == {
        "k0": [3, 3],
        "k1": [3, 4],
        "k2": [3, 5],
    }
    assert len(table.rows()) == 3


def test_an_upsert_that_comes_again_after_a_crash_does_not_bring_old_rows_back(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.begun(upsert_on=["key", "n"], schema={"n": "int64", "v": "string"}, every=0)
    sink.write(1, 0, [_record({"n": 1, "v": "old"}), _record({"n": 2, "v": "kept"})])
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "drop", lambda *arguments: None)
        sink.commit(1)
    sink.write(2, 0, [_record({"n": 1, "v": "new"})])
    sink.commit(2)
    table.begun(upsert_on=["key", "n"], schema={"n": "int64", "v": "string"}, epoch=2).close()
    assert {(row["n"], row["v"]) for row in table.rows()} == {(1, "new"), (2, "kept")}


def test_partitions_are_by_day_or_by_a_column(table: Table) -> None:
    options = {"schema": {"country": "string", "n": "int64"}, "partition_by": ["country", "date"]}
    sink = table.begun(**options)
    times = [0, mw.DAY - 1, mw.DAY, -1, mw.MAX_TIME, mw.MIN_TIME]
    sink.write(1, 0, [_record({"country": "de", "n": i}, time=time) for i, time in enumerate(times)])
    sink.write(1, 1, [_record({"country": "fr", "n": 6}), _record({"n": 7})])
    sink.commit(1)
    sink.close()
    day = "date" if table.kind == "delta" else "timestamp_day"
    folders = {
        str(path.parent.relative_to(table.place)).removeprefix("data/")
        for path in table.place.rglob("*.parquet")
    }
    days = ["0001-01-01", "1969-12-31", "1970-01-01", "1970-01-02", "9999-12-31"]
    null = "__HIVE_DEFAULT_PARTITION__" if table.kind == "delta" else "null"
    expected = [("de", each) for each in days] + [("fr", "1970-01-01"), (null, "1970-01-01")]
    assert folders == {f"country={country}/{day}={each}" for country, each in expected}
    assert sorted(row["n"] for row in table.rows()) == list(range(8))


def test_two_streams_share_a_table_and_a_run_publishes_at_its_end(table: Table) -> None:
    p = mw.Pipeline("tables")
    p.inject("in", mw.injectors.Records([_record(i, time=i) for i in range(50)], per_epoch=7))
    p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
    p.sink("in", table.sink())
    p.sink("out", table.sink())
    run(p, MemoryStore())
    assert table.values() == sorted([*range(50), *range(50)], key=str)
    assert table.commits() == 1


def test_delta_makes_few_files_of_many(tmp_path: Path) -> None:
    table = Table("delta", tmp_path)
    sink = table.begun(every=0, compact_after=5)
    for epoch in range(1, 12):
        sink.write(epoch, 0, [_record(epoch)])
        sink.commit(epoch)
    assert table.files() == 2
    assert table.values() == sorted(range(1, 12), key=str)
    again = table.begun(epoch=11)  # the marker has survived the compaction
    again.close()
    assert len(table.values()) == 11


def test_tables_of_one_name_in_two_catalogs_are_two_tables(tmp_path: Path) -> None:
    tables = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        tables.append(Table("iceberg", tmp_path / name))
    p = mw.Pipeline("tables")
    p.inject("in", mw.injectors.Records([_record(i, time=i) for i in range(30)], per_epoch=7))
    for table in tables:
        p.sink("in", table.sink(every=0))
    run(p, MemoryStore())
    for table in tables:
        assert table.values() == sorted(range(30), key=str)


def test_iceberg_names_the_epoch_in_the_snapshot(tmp_path: Path) -> None:
    table = Table("iceberg", tmp_path)
    sink = table.begun(every=0)
    sink.write(1, 0, [_record(1)])
    sink.commit(1)
    (summary,) = lakes.iceberg_snapshots(table.place)
    assert (summary["millwheel.store"], summary["millwheel.epoch"]) == ("a", "1")


@pytest.fixture(params=KINDS)
def remote(request: pytest.FixtureRequest, tmp_path: Path, s3: Server, s3_url: str) -> Table:
    """A table on object storage, which is read from the disk of its server."""
    return Table(request.param, tmp_path, s3_url, s3.folder / "data")


@pytest.mark.parametrize("point", ["before the commit", "after the commit", "before the drop"])
def test_on_object_storage_a_driver_that_is_gone_leaves_each_row_once(
    remote: Table, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    test_a_driver_that_is_gone_while_it_publishes_leaves_each_row_once(remote, monkeypatch, point)


def test_on_object_storage_one_driver_of_two_succeeds(remote: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    test_of_two_drivers_that_commit_at_once_one_succeeds(remote, monkeypatch)


def test_a_server_of_objects_that_is_killed_loses_nothing(
    remote: Table, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "client_options", _impatient(delta.client_options))
    sink = remote.begun(every=0, upsert_on="key")
    sink.write(1, 0, [_record(1, key="a"), _record(1, key="b")])
    sink.commit(1)
    sink.write(2, 0, [_record(2, key="b"), _record(2, key="c")])
    real = remote.rows_class.add

    def killed(self: Any, *arguments: Any) -> bool:
        s3.stop()
        try:
            return bool(real(self, *arguments))
        finally:
            s3.start()

    with monkeypatch.context() as patch:
        patch.setattr(remote.rows_class, "add", killed)
        assert "the table cannot be written (" in _error(lambda: sink.commit(2))
    again = remote.begun(epoch=2, upsert_on="key")
    again.close()
    assert sorted((row["key"], row["value"]) for row in remote.rows()) == [("a", "1"), ("b", "2"), ("c", "2")]


def _impatient(options: Callable[[str], tuple[str, dict[str, str]]]) -> Callable[[str], Any]:
    def changed(uri: str) -> Any:
        place, found = options(uri)
        return place, {**found, "max_retries": "0", "retry_timeout": "1s"}

    return changed


def test_a_run_stages_on_object_storage_and_leaves_nothing_there(remote: Table) -> None:
    p = mw.Pipeline("tables")
    p.inject("in", mw.injectors.Records([_record(i, time=i) for i in range(50)], per_epoch=7))
    p.sink("in", remote.sink(every=0))
    run(p, MemoryStore())
    assert remote.values() == sorted(range(50), key=str)
    assert remote.staged() == []


# What goes wrong: a test for each row of the table of errors.


def _error(call: Callable[[], object]) -> str:
    with pytest.raises(mw.MillWheelError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("value", [{"n": "many"}, "no dict", {"n": 2**70}], ids=str)
def test_a_value_that_does_not_fit_the_schema_says_so(table: Table, value: Any) -> None:
    sink = table.begun(schema={"n": "int64"})
    message = _error(lambda: sink.write(1, 0, [_record(value)]))
    assert "a value has no field 'n' that is int64" in message
    assert "map()" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schema": {"key": "string"}}, "key is already a column of the table"),
        ({"schema": {"n": "no type"}}, "the type of 'n' is 'no type', which is not an Arrow type"),
        ({"partition_by": "country"}, "partition_by names country, which is not one of the columns"),
        ({"upsert_on": ["key", "n"]}, "upsert_on names n, which is not one of the columns"),
        ({"upsert_on": [3]}, "upsert_on takes names of columns"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_cannot_be_are_refused_when_the_sink_is_made(
    table: Table, options: dict[str, Any], words: str
) -> None:
    assert words in _error(lambda: table.sink(**options))


def test_a_table_with_another_type_or_other_partitions_is_refused_before_anything_is_written(
    table: Table,
) -> None:
    table.begun(schema={"n": "int64", "s": "string"}, partition_by="s").close()
    assert "the table's column 'n' is int64, not string: change schema=" in _error(
        lambda: table.begun(schema={"n": "string", "s": "string"})
    )
    message = _error(lambda: table.begun(schema={"n": "int64", "s": "string"}, partition_by="n"))
    assert "the table is partitioned by s, not by n: leave partition_by out" in message
    table.begun(schema={"n": "int64", "s": "string"}).close()


def test_a_table_that_goes_away_is_an_error_and_nothing_is_lost(table: Table) -> None:
    sink = table.begun()
    sink.write(1, 0, [_record("a")])
    sink.commit(1)
    hidden = table.place / ("_delta_log" if table.kind == "delta" else "metadata")
    away = hidden.with_name("away")
    hidden.rename(away)
    message = _error(sink.close)
    assert "the table cannot be written (" in message
    assert message.endswith("run again; nothing is lost")
    away.rename(hidden)
    table.begun(epoch=1).close()
    assert table.values() == ["a"]


def test_writers_that_always_come_first_are_an_error_in_the_end(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.begun()
    sink.write(1, 0, [_record("a")])
    sink.commit(1)
    with monkeypatch.context() as patch:
        patch.setattr(table.rows_class, "add", lambda *arguments: False)
        assert "other writers came first 20 times" in _error(sink.close)
    table.begun(epoch=1).close()
    assert table.values() == ["a"]


def test_a_compaction_that_fails_is_a_warning_and_the_next_commit_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table("delta", tmp_path)
    sink = table.begun(every=0, compact_after=2)
    failing = True

    def compact(self: Any) -> None:
        if failing:
            raise mw.MillWheelError("no room")
        original(self)

    original = table.rows_class.compact
    monkeypatch.setattr(table.rows_class, "compact", compact)
    for epoch in range(1, 6):
        failing = epoch < 3
        sink.write(epoch, 0, [_record(epoch)])
        sink.commit(epoch)
    assert "small files were not compacted: no room" in caplog.text
    assert table.values() == sorted(range(1, 6), key=str)
    assert table.files() == 2
    sink.close()


def test_a_package_that_is_missing_says_how_to_install_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake" if table.kind == "delta" else "pyiceberg", None)
    assert f"pip install 'millwheel-spark[{table.kind}]'" in _error(table.sink)


def test_iceberg_wants_a_namespace_and_a_catalog(tmp_path: Path) -> None:
    assert "'namespace.name'" in _error(lambda: mw.sinks.Iceberg({"type": "sql"}, "name"))
    assert "a catalog's name or its properties" in _error(
        lambda: mw.sinks.Iceberg(3, "ns.t")  # type: ignore[arg-type]
    )
