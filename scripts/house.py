"""Measures the code itself: its size, its longest parts, and how far a thing travels through it.

    python scripts/house.py              # the working tree
    python scripts/house.py 253c999      # another revision, in a worktree of its own

A *walk* is traced, not read: the windowed count of the benchmarks runs in one process with a mark in one
record, and every call that has the mark among its arguments or returns it is noted. *Files* are the modules
in which the thing was seen, *crossings* the different pairs (caller, callee) of modules between which it was
passed. For a commit they are those on the stack when the store is written.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

SECOND = 1_000_000
BEGIN = 1_300_000_000 * SECOND
MARKED = "query-marked"
MARKED_TIME = BEGIN + 123_457
APPLICATION = "zeitgeist"
WALKS = ("record", "watermark", "timer", "commit")

_RECORDS = 2_000  # enough that the engine takes the path of large batches
_ITEMS = 5_000  # of a container that are searched
_DEPTH = 4
_BIAS = 2**63  # times are stored with it
_ENCODED = 600  # bytes of a key of the store


def measure(root: Path) -> dict[str, Any]:
    """The figures of a checkout."""
    modules = {
        path: path.read_text()
        for path in sorted((root / "millwheel").rglob("*.py"))
        if APPLICATION not in path.relative_to(root).as_posix()
    }
    lengths = {path.relative_to(root).as_posix(): len(text.splitlines()) for path, text in modules.items()}
    functions = sorted(
        (
            (node.end_lineno - node.lineno + 1, f"{path.relative_to(root).as_posix()}:{name}")
            for path, text in modules.items()
            for name, node in _functions(ast.parse(text))
        ),
        reverse=True,
    )
    return {
        "lines": sum(lengths.values()),
        "modules": len(lengths),
        "over 300": {name: n for name, n in sorted(lengths.items(), key=lambda item: -item[1]) if n > 300},
        "longest functions": functions[:10],
        "walks": _walks_of(root),
    }


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}"
            if not isinstance(node, ast.ClassDef):
                yield name, node
            yield from _functions(node, f"{name}.")


def _walks_of(root: Path) -> dict[str, Any]:
    """The walks, traced in a process that imports that checkout's code."""
    done = subprocess.run(
        [sys.executable, os.path.abspath(__file__), "--walks"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.fspath(root)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class Tracer:
    """Notes between which modules a marked thing is passed."""

    def __init__(self, package: str, marks: dict[str, Callable[[Any], bool]]) -> None:
        self._package = package + os.sep
        self._marks = marks
        self.files: dict[str, set[str]] = {walk: set() for walk in WALKS}
        self.crossings: dict[str, set[tuple[str, str]]] = {walk: set() for walk in WALKS}

    def __call__(self, frame: FrameType, event: str, given: Any) -> None:
        if event not in ("call", "return") or not self._is_ours(frame):
            return
        code = frame.f_code
        if event == "call":
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            passed = [frame.f_locals.get(name) for name in names if name not in ("self", "cls")]
            if code.co_name == "write" and "/store/" in code.co_filename:
                self._note_stack(frame)
        else:
            passed = [given]
        for walk, is_marked in self._marks.items():
            if any(_holds(each, is_marked) for each in passed):
                self._note(walk, frame)

    def _is_ours(self, frame: FrameType | None) -> bool:
        return frame is not None and frame.f_code.co_filename.startswith(self._package)

    def _note(self, walk: str, frame: FrameType) -> None:
        here, caller = self._name(frame), frame.f_back
        self.files[walk].add(here)
        if caller is not None and self._is_ours(caller) and self._name(caller) != here:
            self.crossings[walk].add((self._name(caller), here))

    def _note_stack(self, frame: FrameType) -> None:
        each: FrameType | None = frame
        while each is not None and self._is_ours(each):
            self._note("commit", each)
            each = each.f_back

    def _name(self, frame: FrameType) -> str:
        return frame.f_code.co_filename[len(self._package) :]


def _holds(value: Any, is_marked: Callable[[Any], bool], depth: int = 0) -> bool:
    """Whether a value is marked, or has something marked in it."""
    if isinstance(value, str | bytes | bytearray | memoryview | int):
        return is_marked(value)
    if depth == _DEPTH or value is None:
        return False
    if isinstance(value, dict):
        return any(
            _holds(part, is_marked, depth + 1) for pair in list(value.items())[:_ITEMS] for part in pair
        )
    if isinstance(value, list | tuple | set | frozenset):
        return any(_holds(part, is_marked, depth + 1) for part in list(value)[:_ITEMS])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (getattr(value, field.name, None) for field in dataclasses.fields(value))
        return any(_holds(part, is_marked, depth + 1) for part in fields)
    slots = getattr(type(value), "__slots__", ())
    if type(value).__module__.startswith("millwheel") and slots:
        return any(_holds(getattr(value, name, None), is_marked, depth + 1) for name in slots)
    return False


def _marked_by_text(*texts: str) -> Callable[[Any], bool]:
    encoded = [text.encode() for text in texts]

    def is_marked(value: Any) -> bool:
        if isinstance(value, str):
            return any(text in value for text in texts)
        if isinstance(value, bytes | bytearray | memoryview):
            data = bytes(value)
            return any(text in data for text in encoded)
        return False

    return is_marked


def _marked_by_time(time: int) -> Callable[[Any], bool]:
    def is_marked(value: Any) -> bool:
        if isinstance(value, int):
            return value == time
        if isinstance(value, bytes | bytearray | memoryview) and len(value) < _ENCODED:
            return (time + _BIAS).to_bytes(8, "big") in bytes(value)
        return False

    return is_marked


def _trace() -> dict[str, Any]:
    """Runs the windowed count of the checkout in the current folder, with a mark in one record."""
    import millwheel
    from benchmarks import data, profile

    newest = MARKED_TIME + 20 * SECOND
    window = (MARKED_TIME // SECOND + 1) * SECOND
    tracer = Tracer(
        os.path.dirname(os.path.abspath(millwheel.__file__)),
        {
            "record": _marked_by_text(MARKED),
            "watermark": _marked_by_time(newest - data.DISORDER),
            "timer": _marked_by_time(window),
        },
    )
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "in"
        folder.mkdir()
        lines = [{"time": BEGIN + number * 11, "query": f"query-{number}"} for number in range(_RECORDS)]
        lines[_RECORDS // 2] = {"time": MARKED_TIME, "query": MARKED}
        later = [{"time": newest + number, "query": f"query-{number}"} for number in range(_RECORDS)]
        for number, part in enumerate((lines, later)):  # what the second begins with is the first's watermark
            text = "".join(json.dumps(line) + "\n" for line in part)
            (folder / f"log-{number}.jsonl").write_text(text)
        profile._EPOCH = _RECORDS
        sys.setprofile(tracer)
        profile.profile(data.Input(folder, _RECORDS, 2 * _RECORDS, 2), Path(work))
        sys.setprofile(None)
    return {
        walk: {
            "files": len(tracer.files[walk]),
            "crossings": len(tracer.crossings[walk]),
            "seen in": sorted(tracer.files[walk]),
            "passed": sorted(f"{caller} > {callee}" for caller, callee in tracer.crossings[walk]),
        }
        for walk in WALKS
    }


def _print(revision: str, found: dict[str, Any]) -> None:
    print(f"## {revision}\n")
    print(f"- {found['lines']:,} lines in {found['modules']} modules of `millwheel/`, without Zeitgeist")
    over = found["over 300"]
    print(f"- {len(over)} modules over 300 lines: {', '.join(f'`{name}` {n}' for name, n in over.items())}")
    print("\n| walk | files | crossings |\n|---|---|---|")
    for walk, figures in found["walks"].items():
        print(f"| {walk} | {figures['files']} | {figures['crossings']} |")
    print("\n| longest functions | lines |\n|---|---|")
    for lines, name in found["longest functions"]:
        print(f"| `{name}` | {lines} |")
    print()


def main() -> None:
    """Measures the revisions that are named, or the working tree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("revisions", nargs="*", metavar="REVISION")
    parser.add_argument("--walks", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with the files and crossings of each walk"
    )
    options = parser.parse_args()
    if options.walks:
        print(json.dumps(_trace()))
        return
    root = Path(__file__).resolve().parents[1]
    found = {}
    if not options.revisions:
        found["working tree"] = measure(root)
    for revision in options.revisions:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "checkout"
            subprocess.run(
                ["git", "-C", root, "worktree", "add", "-q", "--detach", place, revision], check=True
            )
            try:
                found[revision] = measure(place)
            finally:
                subprocess.run(["git", "-C", root, "worktree", "remove", "--force", place], check=True)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for revision, figures in found.items():
        _print(revision, figures)


if __name__ == "__main__":
    main()
