"""Python workers and whole drivers are killed at random moments; the output does not show it."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from tests.crash.victims import Victim, output

KILLS = 20
_DRIVERS = 2  # killed in a round at most: each costs a start of Spark

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ("wide", {"compact_below": 0, "target": 0.3, "in_order": True, "progress": False}),
        ("compact", {"compact_below": 10**9, "target": 0.2, "progress": False}),
    ],
)
def test_the_output_is_that_of_an_undisturbed_run_whatever_is_killed(
    shape: str, options: dict[str, Any], source: Path, expected: dict[str, Counter[str]], tmp_path: Path
) -> None:
    """Also the output of a computation that takes its records in order: kills come while records wait."""
    rng = random.Random(shape)
    kills = Counter[str]()
    rounds = 0
    while kills["worker"] + kills["driver"] < KILLS // 2:
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
                finished = _disturb(victim, rng, kills, folder, may_kill_driver=driver_kills < _DRIVERS)
                driver_kills += not finished
            finally:
                if victim.process.poll() is None:
                    victim.kill()
        assert output(folder / "out") == expected
        if "in_order" in options:
            assert _followed(folder) == _expected_to_follow(source)
    assert kills["worker"] > 0
    assert kills["driver"] > 0
    assert kills["driver with output"] > 0


def _disturb(
    victim: Victim, rng: random.Random, kills: Counter[str], folder: Path, *, may_kill_driver: bool
) -> bool:
    """Kills workers, and perhaps the driver, at random moments; True when the pipeline came to its end.

    The first driver dies at any moment, the others once there is output: then windows were emitted, and
    records wait for the watermark.
    """
    lives = rng.randint(2, 4)
    while True:
        if victim.ended(rng.uniform(0.1, 1.2)):
            assert victim.process.returncode == 0, "".join(victim.errors)
            return True
        written = any(folder.glob("out/*/*"))
        if lives == 0 and may_kill_driver and (written or not kills["driver"]):
            kills["driver with output"] += written
            victim.kill()
            kills["driver"] += 1
            return False
        workers = victim.workers()
        if workers and lives > 0:
            rng.choice(workers).kill()
            kills["worker"] += 1
            lives -= 1


def _followed(folder: Path) -> Counter[tuple[str, int, str]]:
    records = mw.sinks.JsonLines(folder / "out" / "followed").records()
    return Counter((record.key, record.timestamp, json.dumps(record.value)) for record in records)


def _expected_to_follow(source: Path) -> Counter[tuple[str, int, str]]:
    """By region and second: how many records there were before its end."""
    seen: dict[int, tuple[str, int]] = {}
    for path in source.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            seen[record["id"]] = (record["region"], record["time"] // mw.SECOND)
    wanted: Counter[tuple[str, int, str]] = Counter()
    by_second = Counter(seen.values())
    total: Counter[str] = Counter()
    for (region, second), count in sorted(by_second.items(), key=lambda item: item[0][1]):
        total[region] += count
        wanted[region, (second + 1) * mw.SECOND, json.dumps(total[region])] += 1
    return wanted
