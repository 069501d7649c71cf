"""All benchmarks, each in a process of its own, one after the other: the seconds of each, and what failed.

A process of its own, as a Spark driver's memory is set once, and as a failure is then its own. A benchmark
that needs what this machine does not have (PostgreSQL, strace, Go) is skipped with the reason.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from benchmarks import results

SKIPPED = 77
"""The exit status of a benchmark that cannot run here, as of a test that is skipped in Automake."""
SKIPPED_TEXT = "skipped: "
QUICK_LIMIT = 900
"""Seconds of all quick runs, on two cores."""
AT_ONCE = 2
"""Quick runs that share the cores: they show that a benchmark works, and are no figures."""
_PATIENCE = 3  # times as long as expected, before a quick run is ended: machines differ
_GRACE = 30.0  # seconds in which a benchmark that is to end removes its files


class Length(NamedTuple):
    """Seconds: the limit of a full run, and what a quick one takes on two cores beside another one."""

    full: int
    quick: int


LENGTHS = {
    "field": Length(14_400, 75),
    "profile": Length(300, 8),
    "path": Length(1_800, 12),
    "compare": Length(1_800, 60),
    "throughput": Length(1_800, 30),
    "latency": Length(1_800, 80),
    "lag": Length(600, 30),
    "skew": Length(600, 8),
    "balance": Length(1_800, 30),
    "hotkey": Length(900, 25),
    "slots": Length(900, 30),
    "scale": Length(900, 20),
    "timers": Length(600, 20),
    "guarantees": Length(1_200, 35),
    "sweeps": Length(3_600, 35),
    "recovery": Length(1_800, 32),
    "lost_worker": Length(3_600, 75),
    "takeover": Length(1_200, 30),
    "start": Length(600, 45),
    "syncs": Length(300, 8),
    "idle": Length(600, 35),
    "growth": Length(4_500, 25),
    "dedup": Length(900, 6),
    "in_order": Length(600, 10),
    "joins": Length(3_600, 30),
    "cache": Length(1_200, 20),
    "overhead": Length(1_200, 12),
    "looking": Length(600, 12),
    "nab": Length(600, 30),
    "planted": Length(900, 20),
    "wikipedia": Length(600, 12),
    "zeitgeist": Length(1_800, 40),
    "watched": Length(3_600, 30),
    "nexmark": Length(1_800, 35),
    "nexmark_field": Length(7_200, 50),
    "io": Length(1_200, 35),
    "s3_input": Length(1_800, 35),
    "memory": Length(2_400, 25),
    "postgres": Length(1_200, 25),
    "objects": Length(1_200, 40),
    "manykeys": Length(2_400, 20),
    "soak": Length(5_400, 30),
}
NAMES = tuple(LENGTHS)


class Outcome(NamedTuple):
    """How one of them ended; without a reason it is well."""

    name: str
    seconds: float
    failed: bool = False
    reason: str = ""


def run(names: tuple[str, ...] = NAMES, *, quick: bool) -> int:
    """Runs them, prints a summary, and gives the exit status: 0 if none failed."""
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE if quick else 1) as workers:
        outcomes = list(workers.map(lambda name: _one(name, quick=quick), names))
    rows = [[one.name, round(one.seconds, 1), _said(one)] for one in outcomes]
    print(results.table(["benchmark", "seconds", "outcome"], rows))
    failed = [one.name for one in outcomes if one.failed]
    skipped = sum(bool(one.reason) for one in outcomes) - len(failed)
    seconds = time.monotonic() - began
    if quick:
        within = results.verdict(seconds <= QUICK_LIMIT)
        print(f"{within}  {seconds:,.0f} seconds, goal at most {QUICK_LIMIT} on two cores")
    print(
        f"{len(outcomes)} benchmarks in {seconds:,.0f} seconds, "
        f"{skipped} skipped, {len(failed)} failed{': ' * bool(failed)}{', '.join(failed)}"
    )
    return 1 if failed else 0


def _one(name: str, *, quick: bool) -> Outcome:
    command = [sys.executable, "-m", "benchmarks", name, *(["--quick"] if quick else [])]
    limit = LENGTHS[name].quick * _PATIENCE if quick else LENGTHS[name].full
    if not quick:
        print(f"== {name}", flush=True)
    lines: list[str] = []
    found = outcome(name, command, limit, lines.append if quick else _show)
    if quick:  # as a whole: another one ran beside it
        print("\n".join([f"== {name}", *lines]), flush=True)
    return found


def _show(line: str) -> None:
    print(line, flush=True)


def _said(outcome: Outcome) -> str:
    if outcome.failed:
        return f"FAILED: {outcome.reason}"
    return f"{SKIPPED_TEXT}{outcome.reason}" if outcome.reason else "ok"


def outcome(name: str, command: list[str], limit: float, show: Callable[[str], None]) -> Outcome:
    """Runs one, whose lines are shown; ends it, and all that it started, after the limit."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    lines: list[str] = []
    reader = threading.Thread(target=_echo, args=(process, lines, show), daemon=True)
    reader.start()
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        return Outcome(name, time.monotonic() - began, True, f"it took longer than {limit:,.0f} seconds")
    finally:
        _end(process)
    seconds = time.monotonic() - began
    reader.join(_GRACE)  # what it printed last
    if code == SKIPPED:
        reasons = [line.removeprefix(SKIPPED_TEXT) for line in lines if line.startswith(SKIPPED_TEXT)]
        return Outcome(name, seconds, reason=reasons[-1] if reasons else "no reason given")
    if code:
        last = lines[-1] if lines else "no output"
        return Outcome(name, seconds, True, f"exit status {code}: {last}")
    return Outcome(name, seconds)


def _echo(process: subprocess.Popen[str], lines: list[str], show: Callable[[str], None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.rstrip())
        show(lines[-1])


def _end(process: subprocess.Popen[str]) -> None:
    """Ends what is still there of a benchmark: first it itself, which then removes its files."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    with contextlib.suppress(ProcessLookupError):  # nothing is left of it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
