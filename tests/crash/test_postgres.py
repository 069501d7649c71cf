"""A database that crashes, restarts or fails over in the middle of a run: the output is as if it had not."""

from __future__ import annotations

import itertools
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from millwheel.store.open import open_store
from millwheel.store.tools.check import check
from tests.servers.postgres import Cluster, cluster, standby
from tests.servers.processes import Unavailable
from tests.spark.waiting import eventually
from tests.store.driving import run_to_the_end, take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EPOCHS = 24


class Windows(mw.Computation):
    """Counts a key's records per window of two epochs."""

    def process_record(self, record: mw.Record) -> None:
        window = record.timestamp // 2000
        self.state[window] = self.state.get(window, 0) + 1
        self.set_timer(str(window), 2000 * (window + 1))

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("windows", [timer.timestamp, self.state.pop(int(timer.tag))])


class Totals(mw.Computation):
    """Adds up, under another key: a second level."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + record.value[1]
        self.produce("totals", self.state["n"])


def _pipeline(sinks: dict[str, mw.Sink], per_epoch: int = 30) -> mw.Pipeline:
    p = mw.Pipeline("failing over")
    records = [
        mw.Record(value=0, timestamp=1000 * epoch + number, key=f"k{number % 11}", id=1000 * epoch + number)
        for epoch in range(_EPOCHS)
        for number in range(30)
    ]
    p.inject("in", mw.injectors.Records(records, per_epoch=per_epoch))
    p.add(Windows(), inputs={"in": mw.by_key}, outputs=["windows"])
    p.add(Totals(), inputs={"windows": lambda record: record.key[-1]}, outputs=["totals"])
    for stream, sink in sinks.items():
        p.sink(stream, sink)
    return p


def _sinks() -> dict[str, mw.sinks.Collect]:
    return {"windows": mw.sinks.Collect(), "totals": mw.sinks.Collect()}


def _output(sinks: dict[str, mw.sinks.Collect]) -> dict[str, Counter[str]]:
    return {
        stream: Counter(f"{record.key} {record.timestamp} {record.value}" for record in sink.records)
        for stream, sink in sinks.items()
    }


@pytest.fixture(scope="module")
def expected() -> dict[str, Counter[str]]:
    sinks = _sinks()
    run_to_the_end(*take(_pipeline({**sinks}), open_store("memory:")))
    return _output(sinks)


@pytest.fixture
def server() -> Iterator[Cluster]:
    try:
        with cluster() as found:
            yield found
    except Unavailable as reason:
        pytest.skip(str(reason))


class _Disturbed(mw.Sink):
    """Calls something in the middle of some epochs, while tasks run and before they have committed."""

    def __init__(self, disturb: Callable[[], None]) -> None:
        self._disturb = disturb
        self._writes = itertools.count()

    def write(self, epoch: int, shard: int, records: object) -> None:
        if next(self._writes) in (6, 15):
            self._disturb()


def test_a_crash_and_a_restart_in_the_middle_change_nothing(
    server: Cluster, expected: dict[str, Counter[str]]
) -> None:
    sinks = _sinks()
    how = iter((signal.SIGQUIT, signal.SIGINT))
    threads: list[threading.Thread] = []

    def restart() -> None:
        server.stop(next(how))
        threads.append(threading.Thread(target=server.start))
        threads[-1].start()

    p = _pipeline({**sinks})
    p.sink("windows", _Disturbed(restart))
    store = open_store(server.url(), shards=2)
    run_to_the_end(*take(p, store, slots=2))
    for thread in threads:
        thread.join()
    assert len(threads) == 2
    assert _output(sinks) == expected
    assert check(store).problems == []
    store.close()


def test_a_standby_that_is_promoted_goes_on_where_the_primary_was(
    server: Cluster, expected: dict[str, Counter[str]]
) -> None:
    sinks = _sinks()
    with standby(server) as second:
        threads: list[threading.Thread] = []

        def fail_over() -> None:
            if not threads:
                server.stop(signal.SIGQUIT)
                threads.append(threading.Thread(target=second.promote))
                threads[-1].start()

        p = _pipeline({**sinks})
        p.sink("windows", _Disturbed(fail_over))
        hosts = server.url().replace(f":{server.port}/", f":{server.port},127.0.0.1:{second.port}/")
        store = open_store(hosts, shards=2)
        run_to_the_end(*take(p, store, slots=2))
        threads[0].join()
        assert _output(sinks) == expected
        assert check(store).problems == []
        store.close()


@pytest.mark.spark
def test_on_spark_a_database_that_crashes_twice_is_waited_for(
    server: Cluster, spark: SparkSession, tmp_path: Path, expected: dict[str, Counter[str]]
) -> None:
    sinks = {stream: mw.sinks.JsonLines(tmp_path / stream) for stream in ("windows", "totals")}
    with mw.start(
        _pipeline({**sinks}), store=f"{server.url()}?schema=crashed", spark=spark, compact_below=0
    ) as job:
        for epochs in (4, 12):
            eventually(lambda epochs=epochs: job.status().epochs >= epochs)  # type: ignore[misc]
            server.stop(signal.SIGQUIT)
            server.start()
        eventually(lambda: job.status().records_in == 30 * _EPOCHS)
    found = {
        stream: Counter(f"{record.key} {record.timestamp} {record.value}" for record in sink.records())
        for stream, sink in sinks.items()
    }
    # A pipeline that follows does not end its last window.
    assert all(found[stream] <= expected[stream] for stream in found)
    assert sum(found["windows"].values()) >= sum(expected["windows"].values()) - 11
