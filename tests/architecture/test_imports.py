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

BELOW = {
    "version": (),
    "errors": (),
    "model": ("errors",),
    "http_server": ("model",),
    "disk": (),
    "objects": ("model", "disk"),
    "store": ("objects",),
    "watermark": ("model",),
    "worker": ("watermark", "store"),
    "master": ("worker",),
    "operators": ("model",),
    "injectors": ("model", "http_server", "objects"),
    "lookups": ("injectors",),
    "sinks": ("model", "objects"),
    "spark": ("master", "version"),
    "watch": ("master", "http_server", "version"),
    "testing": ("watch", "sinks"),
    "tracebacks": ("errors",),
    "waking": ("model",),
    "job": ("watch", "waking"),
    "launch": ("job", "objects", "spark", "tracebacks"),
    "tables": ("watch", "spark"),
    "warm_up": ("launch", "injectors", "sinks"),
    "__init__": ("launch", "tables", "operators", "lookups", "sinks", "testing"),
    "apps": ("launch", "operators", "injectors", "sinks"),
    "zeitgeist": ("apps",),
    "cli": ("apps", "tables"),
    "__main__": ("cli",),
}
"""By room, lowest first: the rooms right below it. It may import those, and all below them."""
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


def _rooms_below(room: str) -> set[str]:
    return {room}.union(*(_rooms_below(below) for below in BELOW[room]))


def _room(name: str) -> str:
    """The part of the package that a module is in: a folder, or a module beside them."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in BELOW else "__init__"


def test_every_room_has_its_place_in_the_order() -> None:
    found = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert found == set(BELOW)
    names = list(BELOW)
    upward = [
        f"{room}: {below}"
        for room in names
        for below in BELOW[room]
        if below not in names[: names.index(room)]
    ]
    assert not upward


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_only_those_below_it(room: str) -> None:
    allowed = _rooms_below(room)
    found = []
    for path in MODULES:
        if _room(_name(path)) != room:
            continue
        for line, name in _imports(path, functions=True, type_checking=True):
            if name.split(".")[0] == "millwheel" and _room(name) not in allowed:
                found.append(f"{path}:{line}: {name}")
            if name.split(".")[0] in SPARK and "spark" not in allowed:
                found.append(f"{path}:{line}: {name}")
    assert not found


def test_no_two_modules_import_each_other() -> None:
    """Also not by way of others, in whatever order they are imported."""
    names = {_name(path).removesuffix(".__init__"): path for path in MODULES}
    graph = {
        name: {
            target
            for _, found in _imports(path, functions=False, type_checking=False)
            for target in [found if found in names else found.rpartition(".")[0]]
            if target in names and target not in (name, "millwheel")
        }
        for name, path in names.items()
    }
    done: set[str] = set()

    def follow(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way, name))
        if name not in done:
            for target in sorted(graph[name]):
                follow(target, (*way, name))
            done.add(name)

    for name in graph:
        follow(name, ())


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
