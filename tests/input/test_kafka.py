"""A topic is injected, each message once: from a real broker, which may go away, and topics that may too."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

import millwheel as mw
from millwheel.injectors import kafka as module
from millwheel.master.ending import Ending
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.servers.kafka import Broker
from tests.servers.topics import send
from tests.store.driving import run, take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Kafka = mw.injectors.Kafka
MakeTopic = Callable[..., str]


@pytest.fixture
def topic(kafka: Broker) -> Iterator[MakeTopic]:
    """Makes topics of the test's own; what tasks have opened is forgotten with it."""
    yield lambda partitions=1, **config: kafka.make_topic(f"t-{uuid.uuid4().hex}", partitions, **config)
    module.cursors.clear()


def _pipeline(injector: mw.Injector) -> tuple[mw.Pipeline, mw.sinks.Collect, mw.sinks.Collect]:
    p = mw.Pipeline("kafka")
    p.inject("in", injector)
    p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
    good, bad = mw.sinks.Collect(), mw.sinks.Collect()
    p.sink("out", good)
    if injector.errors == "divert":
        p.sink("in.errors", bad)
    return p, good, bad


def _values(sink: mw.sinks.Collect) -> list[Any]:
    return sorted(record.value for record in sink.records)


def test_a_run_reads_to_the_end_and_the_next_one_goes_on(kafka: Broker, topic: MakeTopic) -> None:
    name, store = topic(2), MemoryStore()
    send(kafka.servers, name, range(100))
    send(kafka.servers, name, range(100, 150), partition=1)
    p, good, _ = _pipeline(Kafka(kafka.servers, name))
    report = run(p, store)
    assert _values(good) == list(range(150))
    assert report.lag == {"in": 0}
    send(kafka.servers, name, range(150, 160))
    p, more, _ = _pipeline(Kafka(kafka.servers, name))
    run(p, store)
    assert _values(more) == list(range(150, 160))


def test_records_have_the_key_and_the_timestamp_of_the_message(kafka: Broker, topic: MakeTopic) -> None:
    name = topic()
    send(kafka.servers, name, [{"a": 1}], key="é", timestamp=1_700_000_000_123)
    send(kafka.servers, name, [None], key=b"\xff", timestamp=2)
    injector = Kafka(kafka.servers, name)
    injector.open(follow=False)
    ((partition, end),) = injector.poll().items()
    first, second = injector.read(partition, None, end)
    assert (first.key, first.value, first.timestamp) == ("é", {"a": 1}, 1_700_000_000_123_000)
    assert (second.key.encode("utf-8", "surrogateescape"), second.value) == (b"\xff", None)
    injector.close()


def test_a_function_sees_headers_and_all_else(kafka: Broker, topic: MakeTopic) -> None:
    name = topic()
    send(kafka.servers, name, [b"x", b"skip"], headers=[("trace", b"1"), ("trace", b"2"), ("none", None)])

    def value(message: mw.injectors.Message) -> Any:
        if message.value == b"skip":
            return None
        headers = [message.header(name) for name in ("trace", "none", "absent")]
        return [message.topic, message.partition, message.offset, message.key, message.value, *headers]

    p, good, _ = _pipeline(Kafka(kafka.servers, name, value=value))
    run(p, MemoryStore())
    assert _values(good) == [[name, 0, 0, b"0", b"x", b"2", None, None]]


def test_a_function_may_give_whole_records_and_fields_may_name_time_and_id(
    kafka: Broker, topic: MakeTopic
) -> None:
    name = topic()
    send(kafka.servers, name, [{"t": 7, "id": "a"}, {"t": 8, "id": "a"}], key="k")
    p, good, _ = _pipeline(Kafka(kafka.servers, name, timestamp="t", unit="s", id="id"))
    report = run(p, MemoryStore())
    assert [record.timestamp for record in good.records] == [7 * mw.SECOND]
    assert report.duplicates == {"C": 1}
    whole = Kafka(kafka.servers, name, value=lambda m: mw.Record(value=m.offset, timestamp=5, key="x"))
    p, good, _ = _pipeline(whole)
    run(p, MemoryStore())
    assert [(record.key, record.timestamp, record.value) for record in good.records] == [
        ("x", 5, 0),
        ("x", 5, 1),
    ]


def test_offsets_are_committed_to_the_group_after_the_epoch(kafka: Broker, topic: MakeTopic) -> None:
    name, group = topic(), uuid.uuid4().hex
    send(kafka.servers, name, range(30))
    p, _, _ = _pipeline(Kafka(kafka.servers, name, group=group))
    run(p, MemoryStore())
    reader = Consumer({"bootstrap.servers": kafka.servers, "group.id": group})
    (found,) = reader.committed([TopicPartition(name, 0)], timeout=30)
    reader.close()
    assert found.offset == 30


def test_messages_that_come_are_followed_and_the_lag_is_known(kafka: Broker, topic: MakeTopic) -> None:
    name = topic()
    injector = Kafka(kafka.servers, name)
    p, good, _ = _pipeline(injector)
    driver, executor = take(p, MemoryStore(), ending=Ending.NEVER)
    assert driver.next_plan() is None
    send(kafka.servers, name, range(5))
    plan = driver.next_plan()
    assert plan is not None
    assert driver.report().lag == {"in": 5}
    assert injector.lag == {f"{name}/0": 5}
    driver.run(plan, executor)
    assert driver.report().lag == {"in": 0}
    assert injector.lag == {f"{name}/0": 0}
    assert _values(good) == list(range(5))
    assert not driver.sources.exhausted
    driver.close()


def test_an_idle_partition_holds_the_watermark_no_more(kafka: Broker, topic: MakeTopic) -> None:
    name, now = topic(2), [0]
    send(kafka.servers, name, range(5))
    p, _, _ = _pipeline(Kafka(kafka.servers, name, slack=0, idle_after=mw.MINUTE))
    driver, executor = take(p, MemoryStore(), ending=Ending.NEVER, clock=lambda: now[0])
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    assert driver.authority.inputs["C"] == mw.MIN_TIME
    now[0] = mw.MINUTE
    driver.next_plan()
    send(kafka.servers, name, [5], timestamp=6)
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    assert driver.authority.inputs["C"] == 6 * mw.MILLISECOND
    assert driver.report().idle_partitions == {"in": [f"{name}/1"]}
    driver.close()


def test_only_committed_transactions_are_read_and_gaps_in_the_offsets_do_no_harm(
    kafka: Broker, topic: MakeTopic
) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(name, str(number).encode(), timestamp=number + 1)
        producer.flush(30)
        producer.commit_transaction(30) if number % 2 else producer.abort_transaction(30)
    injector = Kafka(kafka.servers, name)
    injector.open(follow=False)
    ((partition, end),) = injector.poll().items()
    assert end == 12
    for step in (1, 2, 3, 5, 12):
        found: list[int] = []
        start: Any = None
        while start != end:
            cut = injector.bound(partition, start, end, step)
            found += [record.value for record in injector.read(partition, start, cut)]
            start = cut
        assert found == [1, 3, 5]
    injector.close()


@pytest.mark.parametrize(
    ("bad", "options", "message"),
    [
        (b"{oops", {}, "offset 1: the message is not JSON"),
        (b"\xff\xfe", {"value": "text"}, "offset 1: the message is not UTF-8"),
        ({"u": 1}, {"timestamp": "t"}, "offset 1: the message has no field 't'"),
        ({"t": "soon"}, {"timestamp": "t"}, "is 'soon', which is not a number"),
        ({"t": 1, "id": [1]}, {"timestamp": "t", "id": "id"}, "the ID field 'id' is [1]"),
        (b"x", {"value": lambda m: 1 // (m.offset - 1)}, "the function raised ZeroDivisionError"),
    ],
    ids=[
        "not JSON",
        "not UTF-8",
        "no timestamp",
        "no time",
        "no ID",
        "a function that raises",
    ],
)
def test_a_poison_message_stops_or_is_diverted(
    kafka: Broker, topic: MakeTopic, bad: Any, options: Any, message: str
) -> None:
    name = topic()
    good_value = b"fine" if options.get("value") == "text" else {"t": 1, "id": "a"}
    send(
        kafka.servers,
        name,
        [good_value, bad, {**good_value, "id": "b"} if isinstance(good_value, dict) else b"f"],
    )
    p, _, _ = _pipeline(Kafka(kafka.servers, name, **options))
    with pytest.raises(mw.InputError) as caught:
        run(p, MemoryStore())
    assert message in str(caught.value)
    p, good, poor = _pipeline(Kafka(kafka.servers, name, errors="divert", **options))
    run(p, MemoryStore())
    assert len(good.records) == 2
    (diverted,) = poor.records
    assert message in diverted.value["error"]
    assert diverted.value["partition"] == f"{name}/0"


def test_a_topic_that_does_not_exist_is_named(kafka: Broker) -> None:
    p, _, _ = _pipeline(Kafka(kafka.servers, "absent"))
    with pytest.raises(mw.InputError, match="there is no topic 'absent'"):
        run(p, MemoryStore())


def _delete(kafka: Broker, name: str) -> None:
    client = AdminClient({"bootstrap.servers": kafka.servers})
    client.delete_topics([name])[name].result(30)


def test_a_topic_that_disappears_is_an_error_that_says_so(kafka: Broker, topic: MakeTopic) -> None:
    name = topic()
    send(kafka.servers, name, range(5))
    injector = Kafka(kafka.servers, name, patience=2)
    injector.open(follow=True)
    injector.poll()
    _delete(kafka, name)

    def poll_on() -> None:
        while True:
            injector.poll()

    with pytest.raises(mw.InputError, match=r"there is no topic|[Uu]nknown topic"):
        poll_on()
    injector.close()


def test_a_topic_that_is_made_anew_is_an_error_and_nothing_is_skipped(
    kafka: Broker, topic: MakeTopic
) -> None:
    name, store = topic(), MemoryStore()
    send(kafka.servers, name, range(5))
    p, _, _ = _pipeline(Kafka(kafka.servers, name))
    run(p, store)
    _delete(kafka, name)
    for attempt in range(100):
        try:
            kafka.make_topic(name)
            break
        except Exception:  # it is being deleted
            assert attempt < 99
    send(kafka.servers, name, range(3))
    p, _, _ = _pipeline(Kafka(kafka.servers, name, patience=0.2))
    with pytest.raises(mw.InputError, match="ends at 3, and was read to 5: was the topic created again"):
        run(p, store)


def test_messages_that_were_deleted_before_they_were_read_are_an_error(
    kafka: Broker, topic: MakeTopic
) -> None:
    name = topic()
    send(kafka.servers, name, range(10))
    injector = Kafka(kafka.servers, name)
    injector.open(follow=False)
    ((partition, end),) = injector.poll().items()
    client = AdminClient({"bootstrap.servers": kafka.servers})
    (deleted,) = client.delete_records([TopicPartition(name, 0, 5)]).values()
    deleted.result(30)
    with pytest.raises(mw.InputError, match="no longer has offset 2"):
        list(injector.read(partition, 2, end))
    injector.close()


def test_a_broker_that_crashes_and_comes_back_loses_nothing(kafka: Broker, topic: MakeTopic) -> None:
    name = topic(2)
    send(kafka.servers, name, range(500))
    send(kafka.servers, name, range(500, 1_000), partition=1)
    injector = Kafka(kafka.servers, name)
    p, good, _ = _pipeline(injector)
    driver, executor = take(p, MemoryStore(), ending=Ending.NEVER)
    driver.sizer.bound = 300
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    kafka.stop(signal.SIGKILL)
    returned = threading.Thread(target=kafka.start)
    returned.start()
    while len(good.records) < 1_000:
        driver.sizer.bound = 300
        plan = driver.next_plan()
        if plan is not None:
            driver.run(plan, executor)
    returned.join()
    driver.close()
    assert _values(good) == list(range(1_000))


def test_a_broker_that_stays_away_is_an_error_that_says_where() -> None:
    p, _, _ = _pipeline(Kafka("127.0.0.1:1", "t", patience=0.5))
    with pytest.raises(mw.InputError, match=r"Kafka\('127\.0\.0\.1:1', t\)"):
        run(p, MemoryStore())


def test_a_new_store_may_begin_behind_the_newest_message(kafka: Broker, topic: MakeTopic) -> None:
    name, store = topic(2), MemoryStore()
    send(kafka.servers, name, range(10))
    p, good, _ = _pipeline(Kafka(kafka.servers, name, start="latest"))
    report = run(p, store)
    assert good.records == []
    assert report.low_watermarks == {"C": mw.MAX_TIME}
    for start, numbers in (("earliest", range(10, 15)), ("latest", range(15, 20))):
        send(kafka.servers, name, numbers, partition=1)
        p, good, _ = _pipeline(Kafka(kafka.servers, name, start=start))  # type: ignore[arg-type]
        run(p, store)
        assert _values(good) == list(numbers)


@pytest.mark.parametrize("before", [0, 3], ids=["an empty topic", "a topic with messages"])
def test_what_comes_while_a_pipeline_is_down_is_read_although_it_had_read_nothing(
    kafka: Broker, topic: MakeTopic, before: int
) -> None:
    name, store = topic(), MemoryStore()
    send(kafka.servers, name, range(before))
    p, _, _ = _pipeline(Kafka(kafka.servers, name, start="latest"))
    driver, _ = take(p, store, ending=Ending.NEVER)
    plan = driver.next_plan()
    assert plan is not None
    driver.journal.plan(plan, driver.graph)  # and there it ends: the next driver finds the plan
    driver.close()
    send(kafka.servers, name, range(before, before + 4))
    p, good, _ = _pipeline(Kafka(kafka.servers, name, start="latest"))
    driver, executor = take(p, store, ending=Ending.NEVER)
    while (plan := driver.next_plan()) is not None:
        driver.run(plan, executor)
    driver.close()
    assert _values(good) == list(range(before, before + 4))


def test_partitions_that_a_topic_gets_later_are_read_from_their_beginning(
    kafka: Broker, topic: MakeTopic
) -> None:
    name, store = topic(), MemoryStore()
    send(kafka.servers, name, range(3))
    p, _, _ = _pipeline(Kafka(kafka.servers, name, start="latest"))
    run(p, store)
    client = AdminClient({"bootstrap.servers": kafka.servers})
    client.create_partitions([NewPartitions(name, 2)])[name].result(30)
    send(kafka.servers, name, range(3, 9), partition=1)
    p, good, _ = _pipeline(Kafka(kafka.servers, name, start="latest"))
    run(p, store)
    assert _values(good) == list(range(3, 9))


@pytest.mark.parametrize("options", [{"unit": "h"}, {"value": "xml"}, {"start": "now"}], ids=str)
def test_an_option_that_is_wrong_says_what_there_is(options: Any) -> None:
    with pytest.raises(mw.InputError, match=r"is one of|is json, text|is earliest or latest"):
        Kafka("b:1", "t", **options)


@pytest.mark.spark
def test_tasks_of_spark_read_it(kafka: Broker, topic: MakeTopic, spark: SparkSession, tmp_path: Path) -> None:
    name = topic(2)
    send(kafka.servers, name, range(6_000))
    send(kafka.servers, name, range(6_000, 12_000), partition=1)
    p, good, _ = _pipeline(Kafka(kafka.servers, name))
    mw.run(p, store=tmp_path / "store", spark=spark)
    assert _values(good) == list(range(12_000))
