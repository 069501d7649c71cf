"""Reads tables with DuckDB, whose readers of Delta and Iceberg share no code with the packages that write.

Its extensions come from PyPI, and nothing is downloaded when a test runs.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest


def rows(kind: str, table: Path, folder: Path) -> list[dict[str, Any]]:
    """The rows of a table; ``folder`` is for DuckDB's own files."""
    if kind == "delta":
        return _query(folder, ["delta"], f"SELECT * FROM delta_scan('{table}')")
    newest = max((table / "metadata").glob("*.metadata.json"), key=lambda path: path.name)
    return _query(folder, ["avro", "iceberg"], f"SELECT * FROM iceberg_scan('{newest}')")


def _query(folder: Path, extensions: list[str], query: str) -> list[dict[str, Any]]:
    duckdb = pytest.importorskip("duckdb")
    settings = {"extension_directory": str(folder / "duckdb"), "autoinstall_known_extensions": False}
    with duckdb.connect(config=settings) as connection:
        for name in extensions:
            connection.execute(f"LOAD '{_extension(name)}'")
        found: list[dict[str, Any]] = connection.execute(query).to_arrow_table().to_pylist()
    return found


def _extension(name: str) -> Path:
    """The file of an extension, for the DuckDB that is installed."""
    package = pytest.importorskip(f"duckdb_extension_{name}", reason=f"DuckDB's extension {name} is not here")
    version = importlib.import_module("duckdb").__version__
    return Path(package.__path__[0]) / "extensions" / f"v{version}" / f"{name}.duckdb_extension"
