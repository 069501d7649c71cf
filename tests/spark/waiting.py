"""Waits for a condition, never for a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LIMIT = 60.0  # seconds, on a machine that is busy with other things
_BETWEEN = 0.01


def eventually(condition: Callable[[], bool], limit: float = LIMIT) -> None:
    """Returns once the condition holds; fails if it does not within the limit."""
    pause = threading.Event()
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        pause.wait(_BETWEEN)
