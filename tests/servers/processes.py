"""Processes of servers: a free port, waiting until one answers, and an end for each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable

_PATIENCE = 60  # seconds until a server must answer, on a busy machine


class Unavailable(Exception):
    """A server cannot be had here; its text is the reason that a test is skipped for."""


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def await_answer(answers: Callable[[], bool], process: subprocess.Popen[bytes], what: str) -> None:
    """Waits until a server answers; an error where it ended instead, or never does."""
    end = time.monotonic() + _PATIENCE
    while not answers():
        if process.poll() is not None:
            raise Unavailable(f"{what} ended with {process.returncode} when it was started")
        if time.monotonic() > end:
            stop(process)
            raise Unavailable(f"{what} did not answer within {_PATIENCE} seconds")
        time.sleep(0.05)


def listens(port: int) -> bool:
    """Whether somebody listens on a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    """Ends a process that was started here, and waits for it."""
    if process.poll() is None:
        os.kill(process.pid, number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
