"""A JVM that ends before there is an epoch: a message, not py4j's traceback."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JNetworkError

from millwheel.errors import EngineGone
from millwheel.spark.jvm import check_before_epochs


def _context(process: Any) -> Any:
    return cast(Any, SimpleNamespace(_gateway=SimpleNamespace(proc=process)))


def test_a_jvm_that_was_killed_is_named_with_what_to_do() -> None:
    process = subprocess.Popen(["sleep", "60"])
    check_before_epochs(_context(process), "the start")
    process.kill()
    with pytest.raises(EngineGone, match=r"the start: Spark's JVM has ended \(it was killed by SIGKILL\)"):
        check_before_epochs(_context(process), "the start", Py4JNetworkError("the answer is empty"))


def test_of_a_jvm_that_somebody_else_started_nothing_is_said() -> None:
    check_before_epochs(_context(None), "the start", ConnectionRefusedError())
