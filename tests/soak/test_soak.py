"""The short form of the soak: a few hundred epochs at low load leave nothing behind.

The long form is ``python -m benchmarks soak``; epoch times are its business, as machines have moods.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from benchmarks import soak

GROWS_NOT = (
    "live_heap_bytes",
    "driver_bytes",
    "worker_bytes",
    "driver_threads",
    "local_files",
    "local_bytes",
    "store_bytes",
)


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_nothing_grows_over_a_few_hundred_epochs(spark: SparkSession) -> None:
    found = soak.run(epochs=300, limit=180)
    assert found["epochs"] >= 300
    grown = {
        name: found["metrics"][name] for name in GROWS_NOT if not found["metrics"][name].get("flat", True)
    }
    assert grown == {}
