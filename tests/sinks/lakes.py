"""Reads tables by their open formats alone, and not with the packages that wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq


def delta_files(table: Path) -> dict[str, dict[str, Any]]:
    """The files of a Delta table that its log names, with their partition values."""
    files: dict[str, dict[str, Any]] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action:
                files[unquote(action["add"]["path"])] = action["add"]["partitionValues"]
            if "remove" in action:
                del files[unquote(action["remove"]["path"])]
    return files


def delta_rows(table: Path) -> list[dict[str, Any]]:
    """The rows of a Delta table."""
    found: list[dict[str, Any]] = []
    for path, partition in delta_files(table).items():
        rows = pq.ParquetFile(table / path).read().to_pylist()
        found += [{**row, **partition} for row in rows]
    return found


def delta_commits(table: Path) -> int:
    """The number of commits that wrote rows."""
    texts = [path.read_text() for path in (table / "_delta_log").glob("*.json")]
    return sum('"txn"' in text for text in texts)


def _metadata(table: Path) -> dict[str, Any]:
    newest = max((table / "metadata").glob("*.metadata.json"), key=lambda path: path.name)
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


def iceberg_files(table: Path, buckets: Path = Path("/")) -> list[str]:
    """The data files that an Iceberg table's current snapshot names; ``buckets`` is a server's folder."""
    metadata = _metadata(table)
    current = [s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"]]
    found = []
    for snapshot in current:
        with open(_path(snapshot["manifest-list"], buckets), "rb") as manifests:
            for manifest in list(fastavro.reader(manifests)):
                with open(_path(manifest["manifest_path"], buckets), "rb") as entries:
                    live = [entry for entry in fastavro.reader(entries) if entry["status"] != 2]
                assert {entry["data_file"].get("content", 0) for entry in live} <= {0}
                found += [_path(entry["data_file"]["file_path"], buckets) for entry in live]
    return found


def iceberg_rows(table: Path, buckets: Path = Path("/")) -> list[dict[str, Any]]:
    """The rows of an Iceberg table's current snapshot."""
    parts = [pq.ParquetFile(path).read() for path in iceberg_files(table, buckets)]
    if not parts:
        return []
    rows: list[dict[str, Any]] = pa.concat_tables(parts, promote_options="default").to_pylist()
    return rows


def iceberg_snapshots(table: Path) -> list[dict[str, Any]]:
    """The summaries of a table's snapshots, oldest first."""
    return [snapshot["summary"] for snapshot in _metadata(table).get("snapshots", [])]


def _path(location: str, buckets: Path) -> str:
    scheme, _, path = location.rpartition("://")
    return str(buckets / path) if scheme == "s3" else path
