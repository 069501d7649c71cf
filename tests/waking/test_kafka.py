"""A topic that is followed calls when a message comes; meanwhile the brokers are asked seldom."""

from __future__ import annotations

import pickle
import threading
import uuid

import millwheel as mw
from tests.servers.kafka import Broker
from tests.servers.topics import send

_PATIENCE = 60.0


def test_each_message_that_comes_while_nothing_is_known_to_be_there_calls(kafka: Broker) -> None:
    topic = kafka.make_topic(f"t-{uuid.uuid4().hex}", 2)
    injector = mw.injectors.Kafka(kafka.servers, topic)
    injector.open(follow=True)
    called = threading.Event()
    try:
        assert injector.notify(called.set)
        injector.poll()
        for number in range(5):
            known = injector.poll()
            assert injector.poll() == known  # nothing is new: it waits from here on
            send(kafka.servers, topic, [number], partition=number % 2)
            assert called.wait(_PATIENCE), "the injector did not call"
            called.clear()
            assert injector.poll() != known
        pickle.loads(pickle.dumps(injector))
    finally:
        injector.close()


def test_a_run_that_ends_does_not_wait(kafka: Broker) -> None:
    topic = kafka.make_topic(f"t-{uuid.uuid4().hex}", 1)
    injector = mw.injectors.Kafka(kafka.servers, topic)
    injector.open(follow=False)
    try:
        assert not injector.notify(lambda: None)
    finally:
        injector.close()
