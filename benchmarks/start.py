"""The start: time to the first result, with an archive of the JVM's classes (CDS) and without, in turns.

Two measurements. In one, from `mw.run` to the first output, with the part that Spark takes. In the other,
every system of the field from an empty process to the first bytes of its output, on a small input: with the
start of Python, of a JVM and of a cluster. millwheel makes and uses its archive by itself; for the peers on a
JVM one is made here, of what a first run has loaded, and given to the JVM by JAVA_TOOL_OPTIONS.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import data, results
from benchmarks.peers import environments, systems
from millwheel.spark import class_archive

_ROOT = Path(__file__).resolve().parent.parent
_SWITCHES = {"with": "on", "without": "off"}
_OPTIONS = "JAVA_TOOL_OPTIONS"
_OWN = ("millwheel", "millwheel, operators")
_ON_A_JVM = ("Spark groupBy", "transformWithState", "Flink SQL", "PyFlink")
_OTHERS = ("plain loop", "Bytewax", "Pathway")
_QUICK = ("millwheel, operators", "plain loop", "Spark groupBy")
_RECORDS = 20_000
_KEYS = 1_000
_PATIENCE = 120.0  # seconds until a JVM has written its archive


def run(*, quick: bool = False, rounds: int = 5) -> dict[str, Any]:
    """Makes the archives that there are not, starts in turns, prints tables and writes the artifacts."""
    label = results.name("start", quick=quick)
    seconds = _pipelines(rounds)
    medians = {
        name: {part: statistics.median(one[part] for one in found) for part in found[0]}
        for name, found in seconds.items()
    }
    peers, absent = _systems(rounds, quick=quick)
    result = {
        "quick": quick,
        "rounds": rounds,
        "seconds": seconds,
        "medians": medians,
        "systems": {
            name: {switch: round(statistics.median(found), 2) for switch, found in both.items()}
            for name, both in peers.items()
        },
        "seconds_of_systems": peers,
        "absent": absent,
    }
    results.save(label, result)
    rows = [[name, found["session"], found["first"]] for name, found in medians.items()]
    print(results.table(["archive of classes", "seconds to Spark", "to the first output"], rows))
    print()
    shown = [[name, *(_shown(both.get(switch)) for switch in _SWITCHES)] for name, both in _medians(result)]
    print(
        results.table(["from an empty process", *(f"s {switch} an archive" for switch in _SWITCHES)], shown)
    )
    for name, reason in absent.items():
        print(f"{name}: {reason}")
    return result


def _medians(result: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    return list(result["systems"].items())


def _shown(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f}"


def _pipelines(rounds: int) -> dict[str, list[dict[str, float]]]:
    """From `mw.run` to the first output."""
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
    return seconds


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


def _systems(rounds: int, *, quick: bool) -> tuple[dict[str, dict[str, list[float]]], dict[str, str]]:
    """From an empty process to the first bytes of output, by system; and what could not be measured."""
    wanted = _QUICK if quick else (*_OWN, *_OTHERS, *_ON_A_JVM)
    chosen = [system for system in systems.SYSTEMS if system.name in wanted]
    found: dict[str, dict[str, list[float]]] = {}
    absent: dict[str, str] = {}
    with results.scratch("start") as work:
        source = data.generate(work / "in", keys=_KEYS, records=_RECORDS, files=2)
        ways = {}
        for system in chosen:
            try:
                ways[system.name] = _ways(system, source, work, quick=quick)
            except (environments.Unavailable, systems.Failed) as error:
                absent[system.name] = str(error)
        for number in range(rounds):
            for system in chosen:
                for way, environment in ways.get(system.name, {}).items():
                    try:
                        took = systems.first_result(system, source, work / "run", _RECORDS, environment)
                    except systems.Failed as error:
                        absent[system.name] = str(error)
                        continue
                    found.setdefault(system.name, {}).setdefault(way, []).append(round(took, 2))
                    said = f"{system.name}, {way} an archive: {took:.1f} s"
                    print(f"round {number + 1} of {rounds}, {said}", flush=True)
    return found, absent


def _ways(
    system: systems.System, source: data.Input, work: Path, *, quick: bool
) -> dict[str, Mapping[str, str]]:
    """The environments in which a system is started: with an archive and without, or the latter alone."""
    if system.name in _OWN:
        return {way: {class_archive.SWITCH: switch} for way, switch in _SWITCHES.items()}
    if system.name in _ON_A_JVM and not quick:
        archive = work / f"{system.name.replace(' ', '-')}.jsa"
        options = {_OPTIONS: f"-XX:ArchiveClassesAtExit={archive}"}
        systems.first_result(system, source, work / "run", _RECORDS, options)
        _await(archive)
        return {"with": {_OPTIONS: f"-XX:SharedArchiveFile={archive}"}, "without": {}}
    systems.first_result(system, source, work / "run", _RECORDS, {})  # its files are read for the first time
    return {"without": {}}


def _await(archive: Path) -> None:
    """Waits until a JVM that is ending has written its archive."""
    deadline = time.monotonic() + _PATIENCE
    size = 0
    while not size or archive.stat().st_size != size:
        size = archive.stat().st_size if archive.exists() else 0
        if time.monotonic() > deadline:
            raise systems.Failed(f"no archive of classes was written within {_PATIENCE:.0f} seconds")
        time.sleep(1.0)
