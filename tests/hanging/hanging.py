"""A pipeline whose hook hangs, crashes, leaves or has no memory for one key, as long as a file is there."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import millwheel as mw

_ROOM = 100_000_000  # bytes


class Hanging(mw.Computation):
    """Counts a key's records; for one key it does something else as long as a file is there."""

    def __init__(self, sign: Path, how: str, key: str = "3") -> None:
        self.sign = sign
        self.how = how
        self.bad = key

    def process_record(self, record: mw.Record) -> None:
        if self.key == self.bad and self.sign.exists():
            _do(self.how, self.sign, self.state)
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("counts", self.state["n"])


def _do(how: str, sign: Path, state: dict[str, Any]) -> None:
    if how == "exit":
        os._exit(3)
    if how == "crash":
        ctypes.string_at(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory is short
    if how == "one large allocation":
        _run_out_of_memory(1 << 30, [])
    if how == "many small ones":
        _run_out_of_memory(1_000, [])
    if how == "the state":
        _run_out_of_memory(1_000, state.setdefault("pieces", []))
    (sign.parent / "hangs").touch()
    while sign.exists():
        time.sleep(0.05)


def _run_out_of_memory(size: int, pieces: list[bytes]) -> None:
    """Allocates pieces of a size until the limit of this process is reached, which stays as it is."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM, resource.RLIM_INFINITY))
    while True:
        pieces.append(bytes(size))


def pipeline(folder: Path | None = None, how: str = "", sink: mw.Sink | None = None) -> mw.Pipeline:
    """Forty records of seven keys; without arguments, as the environment says."""
    folder = folder or Path(os.environ["HANGING"])
    how = how or os.environ.get("HANGING_HOW", "hang")
    records = [mw.Record(value={"user": n % 7, "n": n}, timestamp=n, id=n) for n in range(40)]
    p = mw.Pipeline("hanging")
    p.inject("in", mw.injectors.Records(records, per_epoch=20))
    p.add(Hanging(folder / "sign", how), inputs={"in": mw.by("user")}, outputs=["counts"])
    p.sink("counts", sink or mw.sinks.JsonLines(folder / "out"))
    return p


def counts(folder: Path) -> dict[str, list[Any]]:
    """What came out, by key."""
    found: dict[str, list[Any]] = {}
    for record in mw.sinks.JsonLines(folder / "out").records():
        found.setdefault(record.key, []).append(record.value)
    return found


WHOLE = {str(key): list(range(1, (40 - key + 6) // 7 + 1)) for key in range(7)}
"""What comes out when nothing hangs."""
