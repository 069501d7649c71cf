"""The start: from `mw.run` to the first output, with the archive of Spark's classes and without, in turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import results
from millwheel.spark import class_archive

_ROOT = Path(__file__).resolve().parent.parent
_SWITCHES = {"with": "on", "without": "off"}


def run(*, quick: bool = False, rounds: int = 7) -> dict[str, Any]:
    """Makes the archive if there is none, starts in turns, prints a table and writes the artifacts."""
    rounds = min(rounds, 2) if quick else rounds
    place = class_archive.folder()
    assert place is not None, "a user without a home has no cache folder"
    if class_archive.Archive(place).find() is None:
        _start("on")
        program = f"from millwheel.warm_up import make; make({os.fspath(place)!r})"
        subprocess.run([sys.executable, "-c", program], check=True, cwd=_ROOT)
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in _SWITCHES}
    for _ in range(rounds):
        for name, switch in _SWITCHES.items():
            seconds[name].append(_start(switch))
    medians = {
        name: {part: statistics.median(one[part] for one in found) for part in found[0]}
        for name, found in seconds.items()
    }
    result = {"quick": quick, "rounds": rounds, "seconds": seconds, "medians": medians}
    results.save(results.name("start", quick=quick), result)
    rows = [[name, found["session"], found["first"]] for name, found in medians.items()]
    print(results.table(["archive of classes", "seconds to Spark", "to the first output"], rows))
    return result


def _start(switch: str) -> dict[str, float]:
    """One start, in a process of its own."""
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.pipelines.first"],
        check=True,
        cwd=_ROOT,
        env={**os.environ, class_archive.SWITCH: switch},
        stdout=subprocess.PIPE,
    )
    seconds: dict[str, float] = json.loads(found.stdout)
    return seconds
