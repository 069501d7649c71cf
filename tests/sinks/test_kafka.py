"""A consumer that reads committed messages sees each production once, whatever happened to the producers."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

import millwheel as mw
from millwheel.sinks import kafka as module
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.servers.kafka import Broker
from tests.servers.topics import receive
from tests.store.driving import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Kafka = mw.sinks.Kafka


def _record(value: Any, *, time: int = 5_000, key: str = "k") -> mw.Record:
    return mw.Record(value=value, timestamp=time, key=key)


@pytest.fixture
def topic(kafka: Broker) -> Iterator[str]:
    yield kafka.make_topic(f"t-{uuid.uuid4().hex}")
    module.writers.clear()


@pytest.fixture
def values(kafka: Broker, topic: str) -> Callable[[], list[str]]:
    """What a reader of the topic sees."""
    return lambda: [message.value().decode() for message in receive(kafka.servers, topic)]


@pytest.fixture
def sink(kafka: Broker, topic: str) -> mw.sinks.Kafka:
    return _begun(kafka, topic, uuid.uuid4().hex)


def _begun(kafka: Broker, topic: str, origin: str) -> mw.sinks.Kafka:
    sink = Kafka(kafka.servers, topic)
    sink.open()
    sink.begin(origin, 0)
    return sink


def test_a_message_has_the_key_the_value_and_the_timestamp(
    kafka: Broker, topic: str, sink: mw.sinks.Kafka
) -> None:
    sink.write(1, 0, [_record({"a": [1, b"x"]}, key="é", time=1_700_000_000_123_456)])
    (message,) = receive(kafka.servers, topic)
    assert message.key() == "é".encode()
    assert message.value() == b'{"a": [1, "x"]}'
    assert message.timestamp()[1] == 1_700_000_000_123


def test_a_function_makes_the_bytes(kafka: Broker, topic: str, values: Callable[[], list[str]]) -> None:
    sink = Kafka(kafka.servers, topic, value=lambda record: f"<{record.value}>".encode())
    sink.begin(uuid.uuid4().hex, 0)
    sink.write(1, 0, [_record(1)])
    assert values() == ["<1>"]


@pytest.mark.parametrize("process", ["the same process", "another process"])
def test_an_epoch_that_is_written_again_is_there_once(
    sink: mw.sinks.Kafka, values: Callable[[], list[str]], process: str
) -> None:
    def again(epoch: int, shard: int, records: list[mw.Record]) -> None:
        if process != "the same process":
            module.writers.clear()
        sink.write(epoch, shard, records)

    for _ in range(2):
        again(1, 0, [_record(1), _record(2)])
        again(1, 1, [_record(3)])
    again(2, 0, [_record(4)])
    again(1, 0, [_record(1), _record(2)])  # a straggler
    assert sorted(values()) == ["1", "2", "3", "4"]


def test_an_attempt_that_was_overtaken_by_another_process_adds_nothing(
    sink: mw.sinks.Kafka, values: Callable[[], list[str]]
) -> None:
    sink.write(1, 0, [_record(1)])
    mine = dict(module.writers)
    module.writers.clear()
    sink.write(2, 0, [_record(2)])  # the other process
    module.writers.clear()
    module.writers.update(mine)
    sink.write(2, 0, [_record(2)])
    sink.write(3, 0, [_record(3)])
    assert values() == ["1", "2", "3"]


def test_a_producer_that_died_in_its_transaction_leaves_nothing_to_be_seen(
    kafka: Broker, topic: str, sink: mw.sinks.Kafka, values: Callable[[], list[str]]
) -> None:
    name = f"millwheel-{sink.origin[:12]}-{topic}-0"
    dead = Producer({"bootstrap.servers": kafka.servers, "transactional.id": name})
    dead.init_transactions(30)
    dead.begin_transaction()
    dead.produce(topic, b"half of it")
    dead.flush(30)
    sink.write(1, 0, [_record("whole")])
    assert values() == ['"whole"']


def test_a_new_store_counts_its_epochs_from_one_again(
    kafka: Broker, topic: str, sink: mw.sinks.Kafka, values: Callable[[], list[str]]
) -> None:
    sink.write(1, 0, [_record("a")])
    _begun(kafka, topic, uuid.uuid4().hex).write(1, 0, [_record("b")])
    assert values() == ['"a"', '"b"']


def test_a_topic_that_is_not_there_is_named_before_anything_runs(kafka: Broker) -> None:
    with pytest.raises(mw.MillWheelError, match=r"'absent'.*no such topic"):
        Kafka(kafka.servers, "absent").open()


def test_a_broker_that_is_not_there_is_named_before_anything_runs() -> None:
    with pytest.raises(mw.MillWheelError, match=r"Kafka\('127\.0\.0\.1:1', 't'\)"):
        Kafka("127.0.0.1:1", "t", patience=0.5).open()


class Failing(mw.Sink):
    """Comes after the other sink of its stream, and fails at each third write: that is written again."""

    def __init__(self, at: Callable[[int], None] = lambda epoch: None) -> None:
        self._failed: set[int] = set()
        self._at = at

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        self._at(epoch)
        if epoch % 3 == 0 and epoch not in self._failed:
            self._failed.add(epoch)
            raise OSError("the disk is on fire")


def _pipeline(sink: mw.Sink, other: mw.Sink, records: int = 60) -> mw.Pipeline:
    p = mw.Pipeline("to kafka")
    given = [_record(i, time=(i + 1) * 1_000) for i in range(records)]
    p.inject("in", mw.injectors.Records(given, per_epoch=5))
    p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
    p.sink("out", sink)
    p.sink("out", other)
    return p


def test_epochs_that_are_run_again_by_another_driver_are_there_once(
    kafka: Broker, topic: str, values: Callable[[], list[str]]
) -> None:
    store, failing = MemoryStore(), Failing()
    for _ in range(10):
        module.writers.clear()
        try:
            run(_pipeline(Kafka(kafka.servers, topic), failing), store)
            break
        except Exception as error:
            if "on fire" not in str(error):
                raise
    assert [int(value) for value in values()] == list(range(60))


def test_a_broker_that_crashes_and_comes_back_has_each_message_once(
    kafka: Broker, topic: str, values: Callable[[], list[str]]
) -> None:
    threads: list[threading.Thread] = []

    def crash(epoch: int) -> None:
        if epoch == 4 and not threads:
            kafka.stop(signal.SIGKILL)
            threads.append(threading.Thread(target=kafka.start))
            threads[0].start()

    store, failing = MemoryStore(), Failing(crash)
    for _ in range(10):
        try:
            run(_pipeline(Kafka(kafka.servers, topic), failing), store)
            break
        except Exception as error:
            if "on fire" not in str(error):
                raise
    threads[0].join()
    assert [int(value) for value in values()] == list(range(60))


@pytest.mark.spark
def test_tasks_of_spark_write_it(
    kafka: Broker, topic: str, values: Callable[[], list[str]], spark: SparkSession, tmp_path: Path
) -> None:
    p = mw.Pipeline("to kafka")
    p.inject("in", mw.injectors.Records([_record(i, time=i + 1, key=f"{i}") for i in range(10_000)]))
    p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
    p.sink("out", Kafka(kafka.servers, topic))
    mw.run(p, store=tmp_path / "store", spark=spark)
    assert sorted(int(value) for value in values()) == list(range(10_000))
