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


def expected_of(source: Path) -> dict[str, Counter[str]]:
    """What the pipeline must give, from plain Python over the same files."""
    windows: Counter[tuple[str, str, int]] = Counter()
    seen: set[int] = set()
    for path in sorted(source.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["id"] not in seen:
                seen.add(record["id"])
                windows[record["query"], record["region"], record["time"] // mw.SECOND] += 1
    first = [
        (query, (bucket + 1) * mw.SECOND - 1, {"query": query, "region": region, "count": count})
        for (query, region, bucket), count in windows.items()
    ]
    regions: dict[tuple[str, int], list[int]] = {}
    for (_, region, bucket), count in windows.items():
        regions.setdefault((region, bucket), []).append(count)
    closed: Counter[str] = Counter()
    second = []
    for (region, bucket), counts in sorted(regions.items(), key=lambda item: item[0][1]):
        closed[region] += 1
        value = {"total": sum(counts), "queries": len(counts), "closed": closed[region]}
        second.append((region, (bucket + 1) * mw.SECOND - 1, value))
    return {"windows": bag(first), "regions": bag(second)}


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
