"""Tests use what everybody may use, and stand alone."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests").rglob("*.py"))

OTHERS = {"_exit", "_replace", "_PARTITION_EOF", "_gateway", "_jvm", "_jsc", "_spark"}
"""Of Python, confluent-kafka and Spark, which have no other name for it."""

PRIVATE: dict[str, int] = {
    "benchmarks/test_cache.py": 1,
    "benchmarks/test_field.py": 3,
    "cache/test_layout.py": 1,
    "cache/test_reads.py": 1,
    "cli/test_bench.py": 2,
    "codecs/test_dataclasses.py": 3,
    "codecs/test_errors.py": 1,
    "conftest.py": 2,
    "days/test_changed_at_once.py": 4,
    "days/world.py": 2,
    "delivery/test_dealing.py": 2,
    "differential/test_planted_bugs.py": 1,
    "hanging/test_activity.py": 1,
    "input/test_fields.py": 2,
    "input/test_files_following.py": 2,
    "input/test_files_formats.py": 1,
    "input/test_files_on_objects.py": 1,
    "input/test_files_splitting.py": 2,
    "input/test_generator.py": 1,
    "input/test_kafka.py": 1,
    "input/test_units.py": 1,
    "invariants/test_growth.py": 1,
    "late/test_unfinished_epochs.py": 1,
    "master/test_options.py": 4,
    "model/test_record.py": 1,
    "operators/test_columns.py": 1,
    "operators/test_partials.py": 3,
    "resident/test_on_spark.py": 18,
    "simulator/hosts.py": 1,
    "simulator/test_planted_bugs.py": 16,
    "simulator/test_simulator.py": 2,
    "sinks/test_jsonlines.py": 5,
    "sinks/test_kafka.py": 8,
    "sinks/test_parquet.py": 10,
    "sinks/test_postgres.py": 4,
    "sinks/test_tables.py": 2,
    "spark/test_archive.py": 5,
    "spark/test_cluster.py": 1,
    "spark/test_collecting.py": 2,
    "spark/test_frames.py": 2,
    "spark/test_parcels.py": 11,
    "store/driving.py": 2,
    "store/test_bundles.py": 4,
    "store/test_marks.py": 2,
    "store/test_object_input.py": 8,
    "store/test_object_log.py": 4,
    "store/test_object_snapshots.py": 5,
    "store/test_postgres.py": 4,
    "store/test_postgres_writes.py": 4,
    "store/test_private.py": 1,
    "store/test_runs.py": 2,
    "timers/test_loops.py": 1,
    "topology/test_forget.py": 4,
    "topology/test_requests.py": 5,
    "waking/test_files.py": 5,
    "waking/test_waker.py": 6,
    "watch/test_load.py": 3,
    "watch/test_logs.py": 1,
    "watch/test_page.py": 1,
    "watch/test_server.py": 1,
    "watermarks/test_partitions.py": 1,
    "watermarks/test_percentile_positions.py": 1,
}
"""By file: how many private names of the engine it uses at most. The numbers only ever become smaller.

Most of them plant a bug, or make a limit small enough for a test."""


def _name(path: Path) -> str:
    return path.relative_to(ROOT / "tests").as_posix()


def _is_private(name: str) -> bool:
    return re.fullmatch(r"_[A-Za-z0-9]\w*(?<!_)", name) is not None and name not in OTHERS


def _private_names(path: Path) -> Iterator[str]:
    """Private names of other modules that a file reads, sets, patches or imports."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls")
    }
    for node in nodes:
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own:
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("millwheel", "benchmarks")):
            yield from (alias.name for alias in node.names if _is_private(alias.name))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("setattr", "patch", "object"):
            for given in node.args[:2]:
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    last = given.value.rpartition(".")[2]
                    if _is_private(last) and last not in own:
                        yield given.value


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_a_test_uses_no_private_name_but_those_listed(path: Path) -> None:
    found = Counter(_private_names(path))
    listed = PRIVATE.get(_name(path), 0)
    assert found.total() <= listed, f"use the public way, or make one: {dict(found)}"


def test_the_list_names_files_that_are_there() -> None:
    assert PRIVATE.keys() <= {_name(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_a_test_file_imports_no_other(path: Path) -> None:
    found = [
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.")
        if (node.module or "").rpartition(".")[2].startswith("test_")
    ]
    assert not found, "what two files need is a module of its own beside them"
