"""Feedback on anomalies: false alarms raise the threshold of their key.

A file has a line for each, as in ``OUT/anomalies``, from which lines are copied. A run takes in what
is new, each line once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors import Records
from millwheel.model.record import Record
from millwheel.model.time import SECOND

STEP = 0.5
"""Decades that a key's anomalies must be rarer after each that was none."""
MOST = 4.0
"""Decades that the bar is raised in all."""
LAST_DAY = 253_370_764_800 * SECOND
"""The timestamp of feedback (the year 9999): it has no event time, and must hold no watermark."""


def open_feedback(path: Path) -> Records | None:
    """The lines of a file, in order; None if it has none.

    A run on the same store skips those it has read.
    """
    if not path.is_file():
        raise InputError(f"--feedback {path}: there is no such file; copy lines of OUT/anomalies into one")
    lines = path.read_text().splitlines()
    records = [_record(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    return Records(records) if records else None


def _record(path: Path, number: int, line: str) -> Record:
    try:
        told: dict[str, Any] = json.loads(line)
        told = told.get("value", told)
        return Record(value={"key": str(told["key"]), "found": int(told["found"])}, timestamp=LAST_DAY)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"--feedback {path}, line {number}: this is no anomaly as reported (a JSON object "
            f"with key and found): {line[:80]!r}"
        ) from error


def raised(bar: float) -> float:
    """A key's bar after one more anomaly that was none.

    >>> raised(0.0), raised(4.0)
    (0.5, 4.0)
    """
    return min(bar + STEP, MOST)
