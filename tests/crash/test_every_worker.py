"""Four workers with disks of their own, and their state in object storage: each is lost in turn."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.store.open import open_store
from millwheel.store.tools.check import check
from tests.crash import visits
from tests.crash.victims import Process
from tests.servers.cluster import driver_environment, python_without, standalone
from tests.servers.processes import Unavailable
from tests.servers.s3 import ENVIRONMENT, Server
from tests.spark.waiting import eventually

KEYS = 1_000_000


@pytest.mark.skipif(
    not os.environ.get("MILLWHEEL_NIGHTLY"),
    reason="minutes: MILLWHEEL_NIGHTLY=1 runs it; test_cluster loses two",
)
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_each_of_four_workers_may_be_lost_with_its_disk(s3: Server, tmp_path: Path) -> None:
    (source := tmp_path / "source").mkdir()
    visits.write(source, KEYS)
    url, out = s3.url("tests", "every-worker"), tmp_path / "out"
    environment = driver_environment(
        python_without(tmp_path), {f"spark.executorEnv.{name}": value for name, value in ENVIRONMENT.items()}
    )
    try:
        with standalone(workers=visits.SLOTS) as cluster:
            arguments = [str(Path(visits.__file__)), str(source), url, str(out), cluster.master]
            run = Process(arguments, env=environment)

            def written() -> int:
                assert run.process.poll() is None, f"it ended too soon: {''.join(run.errors)[-3000:]}"
                return sum(path.stat().st_size for path in out.glob("*.jsonl"))

            before = 0
            for _ in range(visits.SLOTS):
                eventually(lambda: written() > before, 300)  # noqa: B023 - it is called here
                cluster.kill_worker()
                cluster.start_worker()  # at an address of its own, so with an empty disk
                before = written()
            assert run.ended(1_200), "".join(run.errors)[-3000:]
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert run.process.returncode == 0, "".join(run.errors)[-3000:]
    found = sorted((record.key, record.value) for record in mw.sinks.JsonLines(out).records())
    assert found == sorted((f"k{key}", visit) for key in range(KEYS) for visit in (1, 2))
    store = open_store(url)
    assert check(store).problems == []
    store.close()
