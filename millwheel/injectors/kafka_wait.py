"""Waits for Kafka messages, so that the driver need not poll the brokers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger("millwheel.kafka")

_FETCH_KB = 16  # fetched ahead: the messages are read elsewhere, here only their arrival matters
_WAIT_MS = 500  # that a broker waits for a message; a new one is answered at once
_CHECK_EVERY = 0.2  # seconds between checks whether to continue waiting
_AGAIN = 0.1  # seconds after an error

Places = Mapping[tuple[str, int], int]
"""By topic and partition: the offset after the last known message."""


class Waiter:
    """Calls once, from its thread, when a message arrives after the given offsets."""

    def __init__(self, kafka: Any, config: Mapping[str, Any], wake: Callable[[], None]) -> None:
        self._kafka = kafka
        self._consumer = kafka.Consumer(
            {
                **config,
                "enable.partition.eof": False,
                "fetch.wait.max.ms": _WAIT_MS,
                "queued.max.messages.kbytes": _FETCH_KB,
                "fetch.message.max.bytes": _FETCH_KB << 10,
            },
            logger=logger,
        )
        self._wake = wake
        self._lock = threading.Condition()
        self._wanted: Places | None = None
        self._armed: Places | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="millwheel-kafka", daemon=True)
        self._thread.start()

    def arm(self, places: Places) -> None:
        """Waits after these offsets, unless it does already."""
        with self._lock:
            if self._armed != places:
                self._wanted = self._armed = dict(places)
                self._lock.notify()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while (places := self._next()) is not None:
            try:
                at = [self._kafka.TopicPartition(*place, offset) for place, offset in places.items()]
                self._consumer.assign(at)
                while not self._interrupted():
                    message = self._consumer.poll(_CHECK_EVERY)
                    if message is not None and message.error() is None:
                        self._came()
                        break
            except self._kafka.KafkaException as error:  # unavailable brokers: the driver polls in any case
                logger.debug("waiting for messages failed: %s", error)
                threading.Event().wait(_AGAIN)

    def _next(self) -> Places | None:
        with self._lock:
            while self._wanted is None and not self._closed:
                self._lock.wait()
            found, self._wanted = self._wanted, None
            return None if self._closed else found

    def _interrupted(self) -> bool:
        with self._lock:
            return self._closed or self._wanted is not None

    def _came(self) -> None:
        """Handles an arrival; stops fetching until the next wait."""
        self._consumer.unassign()
        with self._lock:
            self._armed = self._wanted
        self._wake()
