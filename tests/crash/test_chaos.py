"""All that can be killed, stopped or filled up on real Spark, for half a minute, or for ten in nightly mode.

``MILLWHEEL_NIGHTLY=1`` sets the nightly mode. Whatever happens, the output is that of an undisturbed run,
record for record.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

from millwheel.store.open import open_store
from millwheel.store.tools.check import check
from tests.crash.victims import Victim, output
from tests.servers.postgres import Cluster, cluster
from tests.servers.processes import Unavailable
from tests.servers.s3 import ENVIRONMENT, Server
from tests.servers.s3 import server as s3_server

SECONDS = 600 if os.environ.get("MILLWHEEL_NIGHTLY") else 30
_WANTED = {"worker killed", "driver killed", "driver taken over"}
_CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'chaos%'"
_MOST_DRIVERS = 8  # of one run; then it is left alone

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(SECONDS + 600)]

_SHAPES: list[dict[str, Any]] = [
    {"compact_below": 0, "target": 0.3, "pace": 0.00001, "store": "postgresql"},
    {"compact_below": 0, "target": 0.3},
    {"compact_below": 10**9, "target": 0.2},
    {"compact_below": 2_000, "target": 0.3, "pace": 0.00001, "store": "s3"},
    {"compact_below": 2_000, "target": 0.3, "weak": True, "step_budget": 0.05},
    {"compact_below": 0, "target": 0.3, "store": "s3"},
    {"compact_below": 10**9, "target": 0.2, "pace": 0.00001, "store": "file"},
    {"compact_below": 0, "target": 0.4, "slots": 2, "master": "local-cluster[2,1,1024]"},
]
"""With a server as their store, that has mishaps of its own. The first three are those of the short mode."""


@pytest.fixture
def database() -> Iterator[Cluster | None]:
    """A PostgreSQL that can be crashed; None where there is none, and those rounds are left out."""
    try:
        with cluster() as found:
            yield found
    except Unavailable as reason:
        print(f"no round with PostgreSQL: {reason}")
        yield None


@pytest.fixture
def storage() -> Iterator[Server | None]:
    """An S3 server that can be killed; None where there is none, and those rounds are left out."""
    try:
        with s3_server() as found:
            found.make_bucket("chaos")
            yield found
    except Unavailable as reason:
        print(f"no round with S3: {reason}")
        yield None


def test_nothing_is_lost_and_nothing_doubled(
    source: Path,
    expected: dict[str, Counter[str]],
    database: Cluster | None,
    storage: Server | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_HOME", os.path.dirname(pyspark.__file__))
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    rng = random.Random(int(os.environ.get("MILLWHEEL_CHAOS_SEED", "1")))
    until = time.monotonic() + SECONDS
    done: Counter[str] = Counter()
    rounds = 0
    servers = {"postgresql": database, "s3": storage}
    shapes = [shape for shape in _SHAPES if servers.get(shape.get("store", ""), "none") is not None]
    while time.monotonic() < until or rounds < 3 or not done.keys() >= _WANTED:
        shape = {**shapes[rounds % len(shapes)], "progress": False}
        rounds += 1
        folder = tmp_path / str(rounds)
        monkeypatch.setenv("MILLWHEEL_COPIES", str(folder / "copies"))
        kind = shape.pop("store", "")
        server = servers.get(kind)
        store = str(folder / "store")
        if isinstance(server, Cluster):
            store = server.make_database(f"chaos-{rounds}")
        elif isinstance(server, Server):
            store = server.url("chaos", str(rounds))
        elif kind == "file":
            store = f"file://{store}"
        # A part of the time belongs to what has a server.
        share = until if server is None else min(until, time.monotonic() + SECONDS / 3)
        _Round(source, folder, shape, rng, done, store, server).run(share)
        assert output(folder / "out") == expected, f"round {rounds}, {shape}, {kind}, after {dict(done)}"
        opened = open_store(store)
        assert not check(opened).problems
        opened.close()
    print(f"{rounds} rounds: {dict(done)}")


class _Round:
    """One run from its beginning to its end, through as many drivers as it takes."""

    def __init__(
        self,
        source: Path,
        folder: Path,
        shape: dict[str, Any],
        rng: random.Random,
        done: Counter[str],
        store: str,
        server: Cluster | Server | None,
    ) -> None:
        self._source = source
        self._folder = folder
        self._shape = shape
        self._rng = rng
        self._done = done
        self._store = store
        self._server = server
        self._stopped: list[Victim] = []
        self._deck: list[str] = []

    def run(self, until: float) -> None:
        """Disturbs it until then, and until it was disturbed in every way that is wanted."""
        try:
            for number in range(100):
                victim = self._start()
                try:
                    if self._live(victim, until, disturb=number < _MOST_DRIVERS):
                        break
                finally:
                    if victim not in self._stopped and victim.process.poll() is None:
                        victim.kill()
            for victim in self._stopped:
                self._wake(victim)
        finally:
            for victim in self._stopped:
                if victim.process.poll() is None:
                    victim.kill()

    def _start(self) -> Victim:
        options = {**self._shape, "takeover": bool(self._stopped)}
        victim = Victim(self._source, self._folder, options, store=self._store)
        while not victim.running.wait(0.2):
            assert victim.process.poll() is None, "".join(victim.errors)
        return victim

    def _draw(self) -> str:
        """What happens next: everything in turns, in an order of its own each time."""
        if not self._deck:
            self._deck += ("worker", "worker", "worker", "executor", "driver", "stop", "disk")
            if isinstance(self._server, Cluster):
                self._deck += ("cut", "cut", "crash")
            elif self._server is not None:
                self._deck += ("crash", "crash")
            self._rng.shuffle(self._deck)
        return self._deck.pop()

    def _live(self, victim: Victim, until: float, *, disturb: bool) -> bool:
        """Whether the pipeline came to its end with this driver."""
        while True:
            wanted = _WANTED - self._done.keys() - ({"driver taken over"} if self._stopped else set())
            quiet = not disturb or (time.monotonic() > until and not wanted)
            if victim.ended(300 if quiet else self._rng.uniform(0.2, 1.5)):
                assert victim.process.returncode == 0, "".join(victim.errors)
                return True
            what = self._draw()
            if what == "driver":
                victim.kill()
                self._done["driver killed"] += 1
                self._lose_disk()
                return False
            if what == "stop" and not self._stopped:
                self._stop(victim)
                return False
            if what == "disk":
                if self._fill(victim):
                    return False
                continue
            if what in ("cut", "crash"):
                self._disturb_server(what)
                continue
            victims = victim.workers() if what == "worker" else _executors(victim)
            if victims:
                _kill(self._rng.choice(victims))
                self._done[f"{what} killed"] += 1

    def _disturb_server(self, what: str) -> None:
        """All its connections are cut, in the middle of whatever; or it crashes, and is there again soon."""
        assert self._server is not None
        if isinstance(self._server, Server):
            self._server.stop()
            self._server.start()
            self._done["object storage crash"] += 1
            return
        if what == "cut":
            self._server.run(_CUT)
        else:
            self._server.stop(signal.SIGQUIT)
            self._server.start()
        self._done["database " + what] += 1

    def _lose_disk(self) -> None:
        """What is kept on a disk of the cluster goes with every other driver that is killed."""
        copies = self._folder / "copies"
        if copies.exists() and not self._stopped and self._rng.random() < 0.5:
            shutil.rmtree(copies)
            self._done["working copies lost"] += 1

    def _stop(self, victim: Victim) -> None:
        """The driver stands still, with all that it has started; another one takes over."""
        for process in [psutil.Process(victim.process.pid), *victim.family()]:
            _send(process, signal.SIGSTOP)
        self._stopped.append(victim)

    def _wake(self, victim: Victim) -> None:
        """It must find that it was taken over, and say by whom."""
        for process in [*victim.family(), psutil.Process(victim.process.pid)]:
            _send(process, signal.SIGCONT)
        ended = victim.ended(120)
        if not ended:
            victim.kill()
        assert ended, "a driver that was taken over did not end"
        text = "".join(victim.errors)
        assert victim.process.returncode != 0, "a driver that was taken over believes that it is done"
        assert "taken over by process" in text or "has taken it over: process" in text, text[-2_000:]
        self._done["driver taken over"] += 1

    def _fill(self, victim: Victim) -> bool:
        """No file of the driver's processes may grow any more: to them, the disk is full."""
        try:
            for process in [psutil.Process(victim.process.pid), *victim.family()]:
                process.rlimit(psutil.RLIMIT_FSIZE, (4096, psutil.RLIM_INFINITY))
        except psutil.Error:
            return False
        ended = victim.ended(60)
        if ended and victim.process.returncode == 0:
            return False  # it had nothing left to write
        if not ended:
            victim.kill()
        self._done["disk filled"] += 1
        return True


def _executors(victim: Victim) -> list[psutil.Process]:
    found = []
    for process in victim.family():
        try:
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _kill(process: psutil.Process) -> None:
    _send(process, signal.SIGKILL)


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.Error):  # it may be gone already
        process.send_signal(number)
