"""Python workers and whole drivers are killed at random moments; the output does not show it."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crash.victims import Victim, output

KILLS = 20

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


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
        assert output(folder / "out") == expected
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
