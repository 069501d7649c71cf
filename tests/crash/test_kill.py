"""Python workers and whole drivers are killed at random moments; the output does not show it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

import millwheel as mw

KILLS = 20
RECORDS = 120_000
SECONDS = 60
VICTIM = Path(__file__).with_name("victim.py")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Queries out of order by less than two seconds; one in fifty comes twice, with its ID."""
    folder = tmp_path_factory.mktemp("source")
    rng = random.Random(11)
    lines: list[str] = []
    for number in range(RECORDS):
        time = 1_700_000_000 * mw.SECOND + number * SECONDS * mw.SECOND // RECORDS
        record = {
            "id": number,
            "time": time - rng.randrange(2 * mw.SECOND),
            "query": f"q{int(200 * rng.random() ** 3)}",
            "region": rng.choice(["eu", "us", "asia", "africa"]),
        }
        lines.append(json.dumps(record))
        if rng.random() < 0.02:
            lines.append(lines[-1])
    share = len(lines) // 4 + 1
    for part in range(4):
        text = "\n".join(lines[part * share : (part + 1) * share]) + "\n"
        (folder / f"{part}.jsonl").write_text(text)
    return folder


@pytest.fixture(scope="module")
def expected(source: Path) -> dict[str, Counter[str]]:
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
    return {"windows": _bag(first), "regions": _bag(second)}


def _bag(records: list[tuple[str, int, Any]]) -> Counter[str]:
    return Counter(json.dumps(record, sort_keys=True) for record in records)


def _output(folder: Path) -> dict[str, Counter[str]]:
    return {
        stream: _bag([(r.key, r.timestamp, r.value) for r in mw.sinks.JsonLines(folder / stream).records()])
        for stream in ("windows", "regions")
    }


class Victim:
    """The pipeline in a process of its own."""

    def __init__(self, source: Path, folder: Path, options: dict[str, Any]) -> None:
        arguments = [str(source), str(folder / "store"), str(folder / "out"), json.dumps(options)]
        self.process = subprocess.Popen(
            [sys.executable, str(VICTIM), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
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


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ("wide", {"compact_below": 0, "target": 0.3, "progress": False}),
        ("compact", {"compact_below": 10**9, "target": 0.2, "progress": False}),
    ],
)
def test_the_output_is_that_of_an_undisturbed_run_whatever_is_killed(
    shape: str, options: dict[str, Any], source: Path, expected: dict[str, Counter[str]], tmp_path: Path
) -> None:
    rng = random.Random(shape)
    kills = Counter[str]()
    rounds = 0
    while kills.total() < KILLS // 2:
        rounds += 1
        assert rounds <= 5, f"the pipeline ends too soon to be killed: {kills}"
        folder = tmp_path / str(rounds)
        finished = False
        driver_kills = 0
        while not finished:
            victim = Victim(source, folder, options)
            try:
                while not victim.running.wait(0.2):
                    assert victim.process.poll() is None, "".join(victim.errors)
                finished = _disturb(victim, rng, kills, may_kill_driver=driver_kills < 3)
                driver_kills += not finished
            finally:
                if victim.process.poll() is None:
                    victim.kill()
        assert _output(folder / "out") == expected
    assert kills["worker"] > 0
    assert kills["driver"] > 0


def _disturb(victim: Victim, rng: random.Random, kills: Counter[str], *, may_kill_driver: bool) -> bool:
    """Kills workers, and perhaps the driver, at random moments; True when the pipeline came to its end."""
    lives = rng.randint(1, 3)
    while True:
        if victim.ended(rng.uniform(0.1, 1.2)):
            assert victim.process.returncode == 0, "".join(victim.errors)
            return True
        if lives == 0 and may_kill_driver:
            victim.kill()
            kills["driver"] += 1
            return False
        workers = victim.workers()
        if workers and lives > 0:
            rng.choice(workers).kill()
            kills["worker"] += 1
            lives -= 1
