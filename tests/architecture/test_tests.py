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

OTHERS = {
    *("_exit", "_replace", "_actions", "_SubParsersAction"),
    *("_PARTITION_EOF", "_gateway", "_jvm", "_jsc", "_spark"),
}
"""Of Python, confluent-kafka and Spark, which have no other name for it."""

PRIVATE: dict[str, tuple[int, str]] = {
    "days/test_changed_at_once.py": (4, "a change and a crash at an exact moment"),
    "days/world.py": (2, "a crash at the commit"),
    "model/test_record.py": (1, "a record as a worker builds it"),
    "operators/test_partials.py": (2, "counts what is packed"),
    "simulator/test_planted_bugs.py": (5, "plants a bug"),
    "sinks/test_parquet.py": (3, "a crash at each step"),
    "sinks/test_tables.py": (2, "another writer at the commit"),
}
"""By file: the number of private names of the engine that it uses at most, and why.

The numbers only become smaller."""


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
    listed, _ = PRIVATE.get(_name(path), (0, ""))
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
