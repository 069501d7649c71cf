"""Modules are small, and every public name says what it is."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "millwheel"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 500

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _is_public(node.name):
            yield node


@functools.cache
def _documented_methods() -> frozenset[str]:
    """Names of methods that some class documents: others implement or override them."""
    return frozenset(
        method.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for method in _definitions(node.body)
        if ast.get_docstring(method)
    )


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_module_is_too_long_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_every_public_module_class_and_function_has_a_docstring(path: Path) -> None:
    tree = ast.parse(path.read_text())
    documented = _documented_methods()
    missing = [] if ast.get_docstring(tree) else [f"{path}: the module"]
    for node in _definitions(tree.body):
        if not ast.get_docstring(node):
            missing.append(f"{path}:{node.lineno}: {node.name}")
        if isinstance(node, ast.ClassDef):
            missing += [
                f"{path}:{method.lineno}: {node.name}.{method.name}"
                for method in _definitions(node.body)
                if not ast.get_docstring(method) and method.name not in documented
            ]
    assert not missing


def test_no_two_modules_have_one_name() -> None:
    """But a connector may be a source and a sink. Applications are for themselves."""
    of_a_name: dict[str, list[str]] = {}
    for path in MODULES:
        if path.is_relative_to(PACKAGE / "apps"):
            continue
        of_a_name.setdefault(path.stem, []).append(_name(path))
    connectors = {"millwheel.injectors", "millwheel.sinks"}
    found = {
        stem: names
        for stem, names in of_a_name.items()
        if len(names) > 1
        and stem not in {"__init__", "__main__"}
        and not {name.rpartition(".")[0] for name in names} <= connectors
    }
    assert not found
