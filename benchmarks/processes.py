"""What the processes of a Spark driver on this machine use: Python, the JVM, and the Python workers."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType

import psutil  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Usage:
    """One process at one moment, in bytes."""

    role: str
    """``driver``, ``jvm``, ``daemon`` (which forks the workers) or ``worker``."""
    pid: int
    rss: int
    private: int
    """Without pages that are shared or belong to a file: a mapped store is cache, not memory in use."""
    threads: int


def usages() -> list[Usage]:
    """This process and its descendants, those of them that play a role."""
    driver = psutil.Process()
    found = [_usage("driver", driver)]
    for jvm in java_processes():
        found.append(_usage("jvm", jvm))
        for daemon in _children(jvm):
            found.append(_usage("daemon", daemon))
            found += [_usage("worker", worker) for worker in _children(daemon)]
    # One that has ended and was not waited for yet has no memory any more.
    return [usage for usage in found if usage is not None and usage.rss]


def cpu_seconds() -> float:
    """The CPU time that this process and its descendants have used, those that have ended among them."""
    driver = psutil.Process()
    total = 0.0
    for process in (driver, *driver.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def java_processes() -> list[psutil.Process]:
    """The JVMs that this process started: one, where Spark runs."""
    return [process for process in psutil.Process().children() if _is_java(process)]


def _is_java(process: psutil.Process) -> bool:
    try:
        return "java" in process.name()
    except psutil.Error:
        return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.Error:
        return []


def _usage(role: str, process: psutil.Process) -> Usage | None:
    """None for a process that ended while it was looked at."""
    try:
        memory = process.memory_info()
        shared = getattr(memory, "shared", 0)
        return Usage(role, process.pid, memory.rss, max(memory.rss - shared, 0), process.num_threads())
    except psutil.Error:
        return None


class Peaks:
    """Looks at the processes every now and then, beside what runs, and keeps the most of each.

    A peak between two looks is missed, so the interval is well below the length of an epoch.
    """

    def __init__(self, interval: float = 0.2) -> None:
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peaks", daemon=True)
        self.rss: dict[tuple[str, int], int] = {}
        self.private: dict[tuple[str, int], int] = {}

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def of(self, role: str) -> list[int]:
        """The processes of a role, by number."""
        return sorted(pid for found, pid in self.rss if found == role)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            for usage in usages():
                place = (usage.role, usage.pid)
                self.rss[place] = max(self.rss.get(place, 0), usage.rss)
                self.private[place] = max(self.private.get(place, 0), usage.private)
