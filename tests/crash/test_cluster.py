"""A real cluster, of which an executor and a worker are killed on the way; the output does not show it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.victims import Victim, expected_of, output
from tests.servers.cluster import Standalone, driver_environment, python_without, standalone
from tests.servers.processes import Unavailable
from tests.servers.s3 import ENVIRONMENT
from tests.spark.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

_NIGHTLY = pytest.mark.skipif(
    not os.environ.get("MILLWHEEL_NIGHTLY"), reason="the others do more: MILLWHEEL_NIGHTLY=1 runs this too"
)
_OPTIONS = {"compact_below": 0, "target": 0.5, "pace": 0.0001, "progress": False}
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "100ms",
}
_ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.executorIdleTimeout": "5s",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Standalone]:
    try:
        with standalone() as found:
            yield found
    except Unavailable as reason:
        pytest.skip(str(reason))


def _written(folder: Path) -> int:
    """Bytes of output."""
    return sum(path.stat().st_size for path in (folder / "out" / "windows").glob("*.jsonl"))


def _disturb(victim: Victim, cluster: Standalone, folder: Path, *, dawdles: bool) -> None:
    """Kills an executor, and later a worker, each in the middle of the work.

    Where a task dawdles, the executor dies once a second attempt has been made at it: nothing else could be
    why there is one.
    """

    def alive() -> bool:
        assert victim.process.poll() is None, f"it ended too soon: {''.join(victim.errors)[-3000:]}"
        return True

    slow = (folder / "dawdled-again").exists if dawdles else lambda: _written(folder) > 0
    eventually(lambda: alive() and slow(), 400)
    before = _written(folder)
    cluster.executors()[0].kill()
    eventually(lambda: alive() and _written(folder) > before, 200)
    cluster.kill_worker()
    cluster.start_worker()
    assert victim.ended(250), "".join(victim.errors)[-3000:]
    assert victim.process.returncode == 0, "".join(victim.errors)[-3000:]


@pytest.mark.parametrize(
    ("store", "options", "settings"),
    [
        pytest.param("lmdb", {}, {}, marks=_NIGHTLY),
        ("lmdb", {"weak": True, "slow": True}, _SPECULATION),
        ("postgresql", {"slow": True}, _SPECULATION | _ALLOCATION),
        ("s3", {}, {f"spark.executorEnv.{name}": value for name, value in ENVIRONMENT.items()}),
    ],
    ids=[
        *("LMDB", "LMDB, weak productions, speculation", "PostgreSQL, speculation, dynamic allocation"),
        "object storage, workers with disks of their own",
    ],
)
def test_lost_executors_and_workers_do_not_show(
    store: str,
    options: dict[str, Any],
    settings: dict[str, str],
    cluster: Standalone,
    request: pytest.FixtureRequest,
    short_source: Path,
    tmp_path: Path,
) -> None:
    """The driver is a process of its own; executors have a Python without this package."""
    url = ""
    if store == "postgresql":
        url = request.getfixturevalue("postgres").make_database("on-a-cluster")
    elif store == "s3":
        url = request.getfixturevalue("s3").url("tests", "on-a-cluster")
    environment = driver_environment(python_without(tmp_path), settings)
    given = {**_OPTIONS, "master": cluster.master, **options}
    victim = Victim(short_source, tmp_path, given, store=url, env=environment)
    try:
        _disturb(victim, cluster, tmp_path, dawdles="slow" in options)
    finally:
        if victim.process.poll() is None:
            victim.kill()
    assert output(tmp_path / "out") == expected_of(short_source)
    assert (tmp_path / "dawdled-again").exists() == ("slow" in options)
