"""What a benchmark leaves: a table on the screen, and a JSON file that says on what machine it ran."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "artifacts" / "bench"


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
    """The machine, the versions, the command and the date."""
    machine = {
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    return {
        "machine": machine,
        "versions": {name: _version(name) for name in _PACKAGES},
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


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
