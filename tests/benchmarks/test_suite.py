"""All benchmarks one after the other: each has a quick form, and what fails or cannot run is reported."""

from __future__ import annotations

import importlib
import inspect
import sys

import pytest

from benchmarks import __main__, suite
from tests.servers.processes import Unavailable


@pytest.mark.parametrize("name", suite.NAMES)
def test_every_benchmark_has_a_quick_form(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    entry = getattr(module, "main", None) or module.run
    assert "quick" in inspect.signature(entry).parameters
    assert 0 < suite.LENGTHS[name].quick < suite.LENGTHS[name].full


def test_the_quick_forms_take_fifteen_minutes_together() -> None:
    assert sum(length.quick for length in suite.LENGTHS.values()) <= suite.QUICK_LIMIT * suite.AT_ONCE


def _outcome(program: str, limit: float = 30.0) -> suite.Outcome:
    return suite.outcome("one", [sys.executable, "-c", program], limit, lambda line: None)


def test_one_that_ends_well_has_no_reason() -> None:
    assert _outcome("print('a table')")._replace(seconds=0) == suite.Outcome("one", 0)


def test_one_that_fails_is_reported_with_its_last_line() -> None:
    found = _outcome("print('a table'); raise SystemExit('no such thing')")
    assert (found.failed, found.reason) == (True, "exit status 1: no such thing")


def test_one_that_takes_too_long_is_ended_with_what_it_started() -> None:
    program = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "time.sleep(60)"
    )
    found = _outcome(program, limit=1.0)
    assert (found.failed, found.reason) == (True, "it took longer than 1 seconds")
    assert found.seconds < 30


def test_one_that_cannot_run_here_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*, quick: bool) -> None:
        raise Unavailable("no strace")

    monkeypatch.setattr("benchmarks.syncs.run", run)
    monkeypatch.setattr("sys.argv", ["benchmarks", "syncs", "--quick"])
    assert __main__.main() == suite.SKIPPED
    said = capsys.readouterr().out
    found = _outcome(f"print({said!r}); raise SystemExit({suite.SKIPPED})")
    assert (found.failed, found.reason) == (False, "no strace")


def test_the_summary_has_each_with_its_seconds_and_the_status_is_that_of_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {
        "lag": suite.Outcome("lag", 1.5),
        "syncs": suite.Outcome("syncs", 0.5, reason="no strace"),
        "idle": suite.Outcome("idle", 2.0, True, "exit status 1: no such thing"),
    }
    monkeypatch.setattr(suite, "outcome", lambda name, *_: found[name])
    assert suite.run(("lag", "syncs"), quick=True) == 0
    assert suite.run(("lag", "syncs", "idle"), quick=True) == 1
    said = capsys.readouterr().out.splitlines()
    assert "lag            1.5  ok" in said
    assert "syncs          0.5  skipped: no strace" in said
    assert "idle           2.0  FAILED: exit status 1: no such thing" in said
    assert said[-1] == "3 benchmarks in 0 seconds, 1 skipped, 1 failed: idle"


def test_a_quick_run_has_one_round_unless_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr("benchmarks.in_order.run", lambda *, quick=False, rounds=5: found.append(rounds))
    for arguments in (["--quick"], ["--quick", "--rounds", "2"], []):
        monkeypatch.setattr("sys.argv", ["benchmarks", "in_order", *arguments])
        __main__.main()
    assert found == [1, 2, 5]
