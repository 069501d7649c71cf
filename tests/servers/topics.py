"""Messages in and out of a test's broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

_PATIENCE = 30  # seconds


def send(servers: str, topic: str, values: Iterable[Any], *, partition: int = 0, **options: Any) -> None:
    """Sends values as JSON (bytes as they are), keyed by their number unless a key is given."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    until = time.monotonic() + _PATIENCE
    # A broker has a partition a moment after whoever made it was answered.
    while partition not in producer.list_topics(topic, timeout=_PATIENCE).topics[topic].partitions:
        assert time.monotonic() < until, f"{topic} has no partition {partition}"
    failures: list[object] = []
    for number, value in enumerate(values):
        data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
        given = {"key": str(number), "timestamp": number + 1, **options}
        producer.produce(
            topic,
            data,
            partition=partition,
            on_delivery=lambda error, _: failures.append(error) if error is not None else None,
            **given,
        )
        producer.poll(0)
    assert producer.flush(_PATIENCE) == 0
    assert not failures


def receive(servers: str, topic: str, *, partitions: int = 1) -> list[Message]:
    """All committed messages of a topic, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "a reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found: list[Message] = []
    try:
        for partition in range(partitions):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(30)
                assert message is not None, "the broker does not answer"
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    break
    finally:
        consumer.close()
    return found
