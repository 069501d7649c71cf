from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import millwheel as mw
from millwheel.store.memory import MemoryStore
from tests.store import driving

# A busy machine is no reason for a property to fail.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

Run = Callable[[mw.Pipeline], mw.Report]


@pytest.fixture(params=["here", pytest.param("spark", marks=pytest.mark.spark)])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a pipeline to its end, in this process and on Spark; the next call goes on with its store."""
    if request.param == "here":
        store = MemoryStore()
        return lambda pipeline: driving.run(pipeline, store)
    spark = request.getfixturevalue("spark")
    return lambda pipeline: mw.run(pipeline, store=tmp_path / "store of the run", spark=spark)
