"""Tables that millwheel wrote, read by DuckDB: what another engine finds is what was sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.sinks import duck
from tests.store.driving import run


class Table:
    """A table of one kind in a folder."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._folder = folder
        self.place = folder / "table" if kind == "delta" else folder / "lake" / "ns" / "table"

    def sink(self, **options: Any) -> mw.Sink:
        if self.kind == "delta":
            return mw.sinks.Delta(self.place, **options)
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{self._folder}/catalog.db",
            "warehouse": f"file://{self._folder}/lake",
        }
        return mw.sinks.Iceberg(catalog, "ns.table", **options)

    def write(self, values: list[Any], name: str, **options: Any) -> None:
        """Runs a pipeline with a store of its own, in several epochs."""
        p = mw.Pipeline(name)
        records = [mw.Record(key=f"k{i % 7}", timestamp=i, value=value) for i, value in enumerate(values)]
        p.inject("in", mw.injectors.Records(records, per_epoch=10))
        p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
        p.sink("out", self.sink(**options))
        run(p, MemoryStore())

    def rows(self) -> list[dict[str, Any]]:
        return duck.rows(self.kind, self.place, self._folder)


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(request.param, tmp_path)


def test_duckdb_reads_each_row_once_of_many_commits(table: Table) -> None:
    table.write([{"n": n} for n in range(60)], "one", every=0, **_compacting(table))
    found = sorted(table.rows(), key=lambda row: row["timestamp"])
    assert [json.loads(row["value"])["n"] for row in found] == list(range(60))
    assert [row["key"] for row in found] == [f"k{n % 7}" for n in range(60)]


def test_duckdb_reads_a_table_in_partitions_to_which_a_column_was_added(table: Table) -> None:
    schema = {"n": "int64", "country": "string"}
    values = [{"n": n, "country": ("de", "fr")[n % 2]} for n in range(20)]
    table.write(values, "one", schema=schema, partition_by="country")
    more = [{"n": n, "country": "it", "name": f"name {n}"} for n in range(20, 30)]
    table.write(more, "two", schema={**schema, "name": "string"}, partition_by="country")
    found = {(row["n"], row["country"], row["name"]) for row in table.rows()}
    assert found == {(v["n"], v["country"], v.get("name")) for v in [*values, *more]}
    assert len(table.rows()) == 30


def test_duckdb_reads_the_newest_row_of_each_key_where_it_upserts(table: Table) -> None:
    table.write([{"n": n} for n in range(50)], "one", every=0, upsert_on="key")
    found = {row["key"]: json.loads(row["value"])["n"] for row in table.rows()}
    assert found == {f"k{n % 7}": n for n in range(43, 50)}
    assert len(table.rows()) == 7


def _compacting(table: Table) -> dict[str, int]:
    """Delta compacts after some commits; Iceberg has no such option."""
    return {"compact_after": 2} if table.kind == "delta" else {}
