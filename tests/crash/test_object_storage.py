"""An S3 server that is killed and started again in the middle of a run: the output does not show it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from millwheel.store.open import open_store
from millwheel.store.tools.check import check
from tests.crash.away import EPOCHS, Disturbed, output_of, pipeline, sinks_in_memory
from tests.servers.processes import Unavailable
from tests.servers.s3 import Server, server
from tests.spark.waiting import eventually
from tests.store.driving import run_to_the_end, take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def expected() -> dict[str, Counter[str]]:
    sinks = sinks_in_memory()
    run_to_the_end(*take(pipeline({**sinks}), open_store("memory:")))
    return output_of(sinks)


@pytest.fixture
def killed() -> Iterator[Server]:
    """A server of the test's own."""
    try:
        with server() as found:
            found.make_bucket("tests")
            yield found
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_a_server_that_is_killed_and_started_again_changes_nothing(
    killed: Server, expected: dict[str, Counter[str]]
) -> None:
    sinks = sinks_in_memory()
    threads: list[threading.Thread] = []

    def restart() -> None:
        killed.stop()
        threads.append(threading.Thread(target=killed.start))
        threads[-1].start()

    p = pipeline({**sinks})
    p.sink("windows", Disturbed(restart))
    store = open_store(killed.url("tests", "state"), shards=2)
    run_to_the_end(*take(p, store, slots=2))
    for thread in threads:
        thread.join()
    assert len(threads) == 2
    assert output_of(sinks) == expected
    assert check(store).problems == []
    store.close()


@pytest.mark.spark
def test_on_spark_a_server_that_is_killed_twice_is_waited_for(
    killed: Server, spark: SparkSession, tmp_path: Path, expected: dict[str, Counter[str]]
) -> None:
    sinks = {stream: mw.sinks.JsonLines(tmp_path / stream) for stream in ("windows", "totals")}
    url = killed.url("tests", "state")
    with mw.start(pipeline({**sinks}), store=url, spark=spark, compact_below=0) as job:
        for epochs in (4, 12):
            eventually(lambda epochs=epochs: job.status().epochs >= epochs)  # type: ignore[misc]
            killed.stop()
            killed.start()
        eventually(lambda: job.status().records_in == 30 * EPOCHS)
    found = {
        stream: Counter(f"{record.key} {record.timestamp} {record.value}" for record in sink.records())
        for stream, sink in sinks.items()
    }
    # A pipeline that follows does not end its last window.
    assert all(found[stream] <= expected[stream] for stream in found)
    assert sum(found["windows"].values()) >= sum(expected["windows"].values()) - 11
