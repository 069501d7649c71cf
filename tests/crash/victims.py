"""The pipeline that tests kill, as they see it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

import millwheel as mw

VICTIM = Path(__file__).with_name("victim.py")


def bag(records: list[tuple[str, int, Any]]) -> Counter[str]:
    return Counter(json.dumps(record, sort_keys=True) for record in records)


def output(folder: Path) -> dict[str, Counter[str]]:
    return {
        stream: bag([(r.key, r.timestamp, r.value) for r in mw.sinks.JsonLines(folder / stream).records()])
        for stream in ("windows", "regions")
    }


class Process:
    """A driver in a process of its own, which says ``running`` when its epochs begin."""

    def __init__(self, arguments: list[str], **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self.running = threading.Event()
        self.output: list[str] = []
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.output), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, pipe: Any, lines: list[str]) -> None:
        for line in pipe:
            lines.append(line)
            if line.strip() == "running":
                self.running.set()

    def family(self) -> list[psutil.Process]:
        """Every process below the driver."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def workers(self) -> list[psutil.Process]:
        """Spark's Python workers: below the daemon that forks them."""
        found = []
        for process in self.family():
            try:
                if "pyspark.daemon" in " ".join(process.cmdline()) and not process.children():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def ended(self, seconds: float) -> bool:
        """Whether it came to its end within a time."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        for thread in self._threads:
            thread.join(10)
        return True

    def kill(self) -> None:
        """Kills the driver, and waits for Spark's JVM to notice and go."""
        family = self.family()
        self.process.kill()
        self.process.wait()
        _, alive = psutil.wait_procs(family, timeout=20)
        for process in alive:
            process.kill()


class Victim(Process):
    """The pipeline of ``victim.py``."""

    def __init__(
        self, source: Path, folder: Path, options: dict[str, Any], *, store: str = "", **process: Any
    ) -> None:
        places = [str(source), store or str(folder / "store"), str(folder / "out")]
        super().__init__([str(VICTIM), *places, json.dumps(options)], **process)
