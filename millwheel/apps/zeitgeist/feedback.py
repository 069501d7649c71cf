"""What a person said of anomalies: those that were none raise the bar of their key.

A file has a line for each, as it was told: lines of ``OUT/anomalies`` are copied into it. A run takes in what
is new, each line once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors import Records
from millwheel.model.record import Record

STEP = 0.5
"""Decades that a key's anomalies must be rarer after each that was none."""
MOST = 4.0
"""Decades that the bar is raised in all."""


def open_feedback(path: Path) -> Records:
    """The lines of a file, in order; a run on the same store goes on behind those that it knows."""
    if not path.is_file():
        raise InputError(f"--feedback {path}: there is no such file; copy lines of OUT/anomalies into one")
    lines = path.read_text().splitlines()
    return Records([_record(path, number, line) for number, line in enumerate(lines, 1) if line.strip()])


def _record(path: Path, number: int, line: str) -> Record:
    try:
        told: dict[str, Any] = json.loads(line)
        told = told.get("value", told)
        return Record(value={"key": str(told["key"])}, timestamp=int(told["found"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"--feedback {path}, line {number}: this is no anomaly as it was told (a JSON object "
            f"with key and found): {line[:80]!r}"
        ) from error


def raised(bar: float) -> float:
    """A key's bar after one more anomaly that was none.

    >>> raised(0.0), raised(4.0)
    (0.5, 4.0)
    """
    return min(bar + STEP, MOST)
