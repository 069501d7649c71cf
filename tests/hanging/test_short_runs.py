"""Runs that succeed say nothing at their end: neither this process, nor Spark's Python workers and JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hanging.short_runs import RUNS, TOTAL

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("productions", ["strong", "weak"])
def test_runs_that_succeed_leave_no_error_on_the_screen(productions: str, tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.hanging.short_runs", os.fspath(tmp_path), productions],
        cwd=_ROOT,
        env={**os.environ, "SPARK_LOCAL_DIRS": os.fspath(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == [str(TOTAL)] * RUNS
    assert found.stderr == ""
