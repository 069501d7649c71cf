"""A database that crashes, restarts or fails over in the middle of a run: the output is as if it had not."""

from __future__ import annotations

import signal
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
from tests.servers.postgres import Cluster, cluster, standby
from tests.servers.processes import Unavailable
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
def server() -> Iterator[Cluster]:
    try:
        with cluster() as found:
            yield found
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_a_crash_and_a_restart_in_the_middle_change_nothing(
    server: Cluster, expected: dict[str, Counter[str]]
) -> None:
    sinks = sinks_in_memory()
    how = iter((signal.SIGQUIT, signal.SIGINT))
    threads: list[threading.Thread] = []

    def restart() -> None:
        server.stop(next(how))
        threads.append(threading.Thread(target=server.start))
        threads[-1].start()

    p = pipeline({**sinks})
    p.sink("windows", Disturbed(restart))
    store = open_store(server.url(), shards=2)
    run_to_the_end(*take(p, store, slots=2))
    for thread in threads:
        thread.join()
    assert len(threads) == 2
    assert output_of(sinks) == expected
    assert check(store).problems == []
    store.close()


def test_a_standby_that_is_promoted_goes_on_where_the_primary_was(
    server: Cluster, expected: dict[str, Counter[str]]
) -> None:
    sinks = sinks_in_memory()
    with standby(server) as second:
        threads: list[threading.Thread] = []

        def fail_over() -> None:
            if not threads:
                server.stop(signal.SIGQUIT)
                threads.append(threading.Thread(target=second.promote))
                threads[-1].start()

        p = pipeline({**sinks})
        p.sink("windows", Disturbed(fail_over))
        hosts = server.url().replace(f":{server.port}/", f":{server.port},127.0.0.1:{second.port}/")
        store = open_store(hosts, shards=2)
        run_to_the_end(*take(p, store, slots=2))
        threads[0].join()
        assert output_of(sinks) == expected
        assert check(store).problems == []
        store.close()


@pytest.mark.spark
def test_on_spark_a_database_that_crashes_twice_is_waited_for(
    server: Cluster, spark: SparkSession, tmp_path: Path, expected: dict[str, Counter[str]]
) -> None:
    sinks = {stream: mw.sinks.JsonLines(tmp_path / stream) for stream in ("windows", "totals")}
    with mw.start(
        pipeline({**sinks}), store=f"{server.url()}?schema=crashed", spark=spark, compact_below=0
    ) as job:
        for epochs in (4, 12):
            eventually(lambda epochs=epochs: job.status().epochs >= epochs)  # type: ignore[misc]
            server.stop(signal.SIGQUIT)
            server.start()
        eventually(lambda: job.status().records_in == 30 * EPOCHS)
    found = {
        stream: Counter(f"{record.key} {record.timestamp} {record.value}" for record in sink.records())
        for stream, sink in sinks.items()
    }
    # A pipeline that follows does not end its last window.
    assert all(found[stream] <= expected[stream] for stream in found)
    assert sum(found["windows"].values()) >= sum(expected["windows"].values()) - 11
