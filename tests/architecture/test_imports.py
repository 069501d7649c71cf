"""Imports point downward, and only ``millwheel/spark`` knows Spark."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "millwheel"
MODULES = sorted(PACKAGE.rglob("*.py"))

ALLOWED = {
    "model": {"model", "errors"},
    "store": {"store", "objects", "model", "errors"},
    "watermark": {"watermark", "model", "errors"},
    "worker": {"worker", "watermark", "store", "model", "errors"},
    "master": {"master", "worker", "watermark", "store", "model", "errors"},
    "operators": {"operators", "model", "errors"},
    "injectors": {"injectors", "objects", "model", "http_server", "errors"},
    "sinks": {"sinks", "objects", "model", "errors"},
    "watch": {"watch", "master", "worker", "watermark", "store", "model", "http_server", "errors", "version"},
}
SPARK = {"pyspark", "py4j"}


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _statements(body: list[ast.stmt], *, functions: bool, type_checking: bool) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, and on demand those of its functions."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if functions:
                yield from _statements(node.body, functions=functions, type_checking=type_checking)
            continue
        if _is_type_checking(node) and not type_checking:
            assert isinstance(node, ast.If)
            yield from _statements(node.orelse, functions=functions, type_checking=type_checking)
            continue
        yield node
        for part in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, part, []), functions=functions, type_checking=type_checking)
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body, functions=functions, type_checking=type_checking)


def _imports(path: Path, *, functions: bool, type_checking: bool) -> Iterator[tuple[int, str]]:
    """What a module imports, with the line: full names of modules."""
    tree = ast.parse(path.read_text(), str(path))
    for node in _statements(tree.body, functions=functions, type_checking=type_checking):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_only_the_spark_package_imports_spark_when_it_is_imported(path: Path) -> None:
    if path.is_relative_to(PACKAGE / "spark"):
        return
    found = [
        f"{path}:{line}: {name}"
        for line, name in _imports(path, functions=False, type_checking=False)
        if name.split(".")[0] in SPARK or name.startswith("millwheel.spark")
    ]
    assert not found


@pytest.mark.parametrize("layer", sorted(ALLOWED))
def test_a_layer_imports_only_those_below_it(layer: str) -> None:
    found = []
    for path in sorted((PACKAGE / layer).rglob("*.py")):
        for line, name in _imports(path, functions=True, type_checking=True):
            parts = name.split(".")
            if parts[0] == "millwheel" and (len(parts) < 2 or parts[1] not in ALLOWED[layer]):
                found.append(f"{path}:{line}: {name}")
            if parts[0] in SPARK:
                found.append(f"{path}:{line}: {name}")
    assert not found


def test_importing_millwheel_does_not_import_spark() -> None:
    script = "import sys, millwheel; print([name for name in ('pyspark', 'py4j') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_listed_once() -> None:
    import millwheel

    assert len(set(millwheel.__all__)) == len(millwheel.__all__)
    assert [name for name in millwheel.__all__ if not hasattr(millwheel, name)] == []


def test_the_layers_exist() -> None:
    assert [layer for layer in ALLOWED if not list((PACKAGE / layer).glob("*.py"))] == []
