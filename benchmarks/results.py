"""What a benchmark leaves: a table on the screen, and a JSON file with the machine and the code measured."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_BUSY_FOR = 1.0  # seconds
_ROOT = Path(__file__).resolve().parent.parent
FOLDER = _ROOT / "artifacts" / "bench"
KEPT = _ROOT / "docs" / "figures"
"""The results of full runs that docs/performance.md is made from."""


def artifact(name: str) -> Path:
    """A file of the results' folder, which is made."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    return FOLDER / name


def name(benchmark: str, *, quick: bool) -> str:
    """What a benchmark's artifacts are called: a quick run does not replace the figures of a full one."""
    return f"{benchmark}-quick" if quick else benchmark


def save(name: str, result: dict[str, Any]) -> Path:
    """Writes the result of a benchmark, with what one must know to take it again."""
    path = artifact(f"{name}.json")
    path.write_text(json.dumps({**circumstances(), **result}, indent=2) + "\n")
    return path


def circumstances() -> dict[str, Any]:
    """The machine, the versions, the command, the date, and the code."""
    machine = {
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        "system": platform.platform(),
        "busy_before": busy_before(),
    }
    return {
        "machine": machine,
        "versions": {name: _version(name) for name in _PACKAGES},
        **moment(),
    }


def moment() -> dict[str, str]:
    """The command, the date in UTC, and the code."""
    return {
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        **measured_code(),
    }


@functools.cache
def busy_before() -> float:
    """The percentage of all cores that other work took in the second before the run; asked for once."""
    import psutil  # here: the tests of what a benchmark computes need no processes

    return float(psutil.cpu_percent(interval=_BUSY_FOR))


@functools.cache
def measured_code() -> dict[str, str]:
    """The commit that is checked out, and the hash of the package's tree in it; asked for once.

    Commits that change docs alone leave the tree as it is, and so does a rebase. Without a checkout, or
    with changes that are not committed, there is no hash.
    """
    revision = git("rev-parse", "--short=10", "HEAD")
    if not revision:
        return {"revision": "unknown", "code": ""}
    if git("status", "--porcelain", "--", "millwheel"):
        return {"revision": f"{revision} with changes", "code": ""}
    return {"revision": revision, "code": git("rev-parse", "HEAD:millwheel")}


def git(*arguments: str) -> str:
    """What git says of this checkout, or nothing where there is none."""
    try:
        done = subprocess.run(["git", "-C", os.fspath(_ROOT), *arguments], capture_output=True, text=True)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout.strip()


_PACKAGES = ("millwheel-spark", "pyspark", "lmdb", "orjson", "msgpack")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A folder for stores, checkpoints and input, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"millwheel-{name}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns that line up: text to the left, numbers to the right."""
    cells = [list(head), *([text(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    numeric = [all(isinstance(row[column], int | float) for row in rows) for column in range(len(head))]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def verdict(passed: bool) -> str:
    """How a target is reported; nothing is raised, as machines differ."""
    return "PASS" if passed else "FAIL"


def text(value: object) -> str:
    """A number as people read it."""
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) < 1_000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
