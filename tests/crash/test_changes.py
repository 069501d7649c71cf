"""Fifty changes under load, with kills in between: what is not touched does not feel them.

Records come in while computations are added and removed, Python workers are killed, and the driver a few
times, at any moment of a change. What the computations that stay put out is that of an undisturbed run,
record for record.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest

from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.tools.check import check
from tests.crash.victims import Process, expected_of, output
from tests.spark.waiting import eventually

CHANGES = 50
DRIVER_KILLS = 3
ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


class Changing(Process):
    """The pipeline, and the words that it is told."""

    def __init__(self, source: Path, folder: Path, variants: list[int]) -> None:
        arguments = [str(source), str(folder / "store"), str(folder / "out"), json.dumps(variants)]
        super().__init__(["-m", "tests.crash.changing", *arguments], cwd=ROOT)
        self._heard = 0

    def hear(self) -> str:
        """The next thing that it says; that it died is none."""
        eventually(lambda: len(self.output) > self._heard or self.process.poll() is not None, limit=200)
        assert len(self.output) > self._heard, "".join(self.errors[-30:])
        self._heard += 1
        return self.output[self._heard - 1].strip()

    def tell(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def kill_worker(self, rng: random.Random) -> bool:
        """Kills one of Spark's Python workers, if there is one."""
        try:
            rng.choice(self.workers()).kill()
        except (psutil.Error, IndexError):
            return False
        return True


class Feed:
    """Queries that come while the pipeline changes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._rng = random.Random(3)
        self._sent = 0

    def send(self, count: int) -> None:
        """Queries out of order by less than two seconds; some come twice, with their ID."""
        lines: list[str] = []
        for _ in range(count):
            record = {
                "id": self._sent,
                "time": 10**12 + self._sent * 2_000 - self._rng.randrange(1_900_000),
                "query": f"q{int(100 * self._rng.random() ** 3)}",
                "region": self._rng.choice(["eu", "us", "asia", "africa"]),
            }
            lines += [json.dumps(record)] * (2 if self._rng.random() < 0.02 else 1)
            self._sent += 1
        hidden = self.folder / ".next"
        hidden.write_text("\n".join(lines) + "\n")
        hidden.rename(self.folder / f"{self._sent:08d}.jsonl")


def test_what_stays_is_not_disturbed_by_what_comes_and_goes(tmp_path: Path) -> None:
    rng = random.Random(8)
    feed = Feed(tmp_path / "source")
    feed.send(2_000)
    kills: Counter[str] = Counter()
    now = 0
    kill_driver_at = set(rng.sample(range(4, CHANGES - 4), DRIVER_KILLS))
    victim = Changing(feed.folder, tmp_path, [now])
    try:
        assert victim.hear() == "running 0"
        for change in range(1, CHANGES + 1):
            feed.send(rng.randrange(200, 1_200))
            # A name that comes again finds its state; every fourth time there is one that was never there.
            wanted = rng.choice([variant for variant in range(8) if variant != now & 7])
            wanted |= 8 | change << 4 if change % 4 == 0 else 0
            victim.tell(f"apply {wanted}")
            if change in kill_driver_at:
                threading.Event().wait(rng.uniform(0.0, 0.5))  # at any moment of the change
                victim.kill()
                kills["driver"] += 1
                victim = Changing(feed.folder, tmp_path, [wanted, now])
                now = int(victim.hear().removeprefix("running "))
                continue
            if rng.random() < 0.5 and victim.kill_worker(rng):
                kills["worker"] += 1
            assert victim.hear() == f"applied {wanted}"
            now = wanted
        victim.tell("end")
        assert victim.hear() == "ended"
        assert victim.process.wait(60) == 0
    finally:
        if victim.process.poll() is None:
            victim.kill()
    print(f"{CHANGES} changes, {dict(kills)}")
    assert output(tmp_path / "out") == expected_of(feed.folder)
    assert kills["driver"] == DRIVER_KILLS
    assert kills["worker"] >= 5, kills
    store = LmdbStore(tmp_path / "store")
    assert not check(store).problems
    store.close()
