"""Records as Kafka messages, in transactions."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.model.extras import import_extra
from millwheel.model.record import Record
from millwheel.model.secrets import hide, is_secret
from millwheel.model.sink import Sink
from millwheel.sinks.json_values import to_plain

logger = logging.getLogger("millwheel.kafka")

_BACKOFF_MS = 1_000  # between attempts to connect: the default of ten seconds makes a restart slow
_CRITICAL = 0  # the log level of the client; errors are raised
_MARKER_LIMIT = 5.0  # seconds for a call that takes milliseconds
_PATIENCE = 30.0  # seconds to wait for brokers in one step of a transaction


class Kafka(Sink):
    """Sends records to a topic, exactly once for readers of committed messages.

    A message has the record's key, its value as JSON (or the bytes that the function ``value`` makes of a
    record), and its timestamp in milliseconds. ``settings`` are other settings of the client. Readers must
    set ``isolation.level=read_committed``.

    The messages of a shard and its epoch are one transaction, together with a marker: the committed offset
    of a consumer group of the shard is the epoch. A later attempt fences earlier ones,
    and does nothing if the marker has the epoch. A marker lasts as long as the broker keeps
    the offsets of unused groups (``offsets.retention.minutes``, a week by default).
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        value: Callable[[Record], bytes] | None = None,
        patience: float = _PATIENCE,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._servers = servers
        self._topic = topic
        self._value = value or _json
        self._patience = patience
        self._settings = dict(settings or {})
        self.origin = ""

    def __repr__(self) -> str:
        return f"Kafka({self._servers!r}, {self._topic!r})"

    def _config(self, **more: Any) -> dict[str, Any]:
        plain = {"bootstrap.servers": self._servers, "reconnect.backoff.max.ms": _BACKOFF_MS}
        return {**plain, **self._settings, **more}

    def open(self) -> None:
        kafka = _import()
        try:
            consumer = kafka.Consumer(
                self._config(**{"group.id": "millwheel", "allow.auto.create.topics": False}), logger=logger
            )
            try:
                found = consumer.list_topics(self._topic, timeout=self._patience).topics[self._topic]
            finally:
                consumer.close()
        except kafka.KafkaException as error:
            raise self._error(error) from None
        if found.error is not None:
            raise MillWheelError(f"{self!r}: there is no such topic ({found.error.str()}): create it")

    def begin(self, origin: str, epoch: int) -> None:
        self.origin = origin

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        if not records:
            return
        messages = [(_key(record.key), self._value(record), record.timestamp // 1_000) for record in records]
        kafka = _import()
        name = f"millwheel-{self.origin[:12]}-{self._topic}-{shard}"
        try:
            writer = writers.get(name)
            if writer is None or writer.epoch >= epoch:
                writer = self._writer(name)
            if writer.epoch < epoch and not self._send(writer, epoch, messages):
                # Another attempt has taken the name, or the broker lost it: check the marker again.
                writer = self._writer(name)
                if writer.epoch < epoch and not self._send(writer, epoch, messages):
                    raise MillWheelError(f"{self!r}: other attempts at epoch {epoch} keep fencing this one")
        except kafka.KafkaException as error:
            writers.pop(name, None)
            raise self._error(error) from None
        except BaseException:
            writers.pop(name, None)
            raise

    def _writer(self, name: str) -> _Writer:
        writers.pop(name, None)
        ids = {"transactional.id": name, "transaction.timeout.ms": 60_000}
        writer = _Writer(self._config(**ids), self._config(**{"group.id": name}), self._topic, self._patience)
        writers[name] = writer
        return writer

    def _send(self, writer: _Writer, epoch: int, messages: list[tuple[bytes, bytes, int]]) -> bool:
        """Sends a transaction; False if this writer can no longer be used."""
        kafka = _import()
        try:
            writer.send(epoch, messages)
            return True
        except _Stuck:
            return False
        except kafka.KafkaException as error:
            cause = error.args[0]
            if cause.fatal() or cause.code() in (kafka.KafkaError._FENCED, kafka.KafkaError._STATE):
                return False
            raise

    def _error(self, error: Any) -> MillWheelError:
        secrets = [str(value) for name, value in self._settings.items() if is_secret(name)]
        said = hide(error.args[0].str(), secrets)
        if error.args[0].code() in _silent(_import().KafkaError):
            return MillWheelError(
                f"{self!r}: the brokers did not answer within {self._patience:g} seconds ({said}): check "
                "that they run, and that this machine reaches them"
            )
        return MillWheelError(f"{self!r}: {said}")


class _Writer:
    """A producer with its transactional ID, and the last epoch committed under it."""

    def __init__(
        self, producing: dict[str, Any], consuming: dict[str, Any], topic: str, patience: float
    ) -> None:
        kafka = _import()
        self._kafka = kafka
        self._topic = topic
        self._patience = patience
        # No logger: the client's threads would need the interpreter, which one of its calls may be holding.
        self._producer = kafka.Producer({"log_level": _CRITICAL, **producing})
        # Ends the open transaction of an earlier attempt: only then is the marker valid.
        self._producer.init_transactions(patience)
        consumer = kafka.Consumer(consuming, logger=logger)
        try:
            (marker,) = consumer.committed([kafka.TopicPartition(topic, 0)], timeout=patience)
            if marker.error is not None:
                raise kafka.KafkaException(marker.error)
            self._group = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        self.epoch: int = max(marker.offset, 0)

    def send(self, epoch: int, messages: list[tuple[bytes, bytes, int]]) -> None:
        """Sends one transaction: the messages, and the marker."""
        kafka, producer = self._kafka, self._producer
        failed: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)

        producer.begin_transaction()
        try:
            for key, value, timestamp in messages:
                while True:
                    try:
                        producer.produce(
                            self._topic, value, key, timestamp=max(timestamp, 0), on_delivery=delivered
                        )
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.flush(self._patience)
            if failed:
                raise kafka.KafkaException(failed[0])
            marker = kafka.TopicPartition(self._topic, 0, epoch)
            self._within(lambda: producer.send_offsets_to_transaction([marker], self._group, self._patience))
            producer.commit_transaction(self._patience)
        except kafka.KafkaException as error:
            if error.args[0].txn_requires_abort():
                producer.abort_transaction(self._patience)
            raise
        self.epoch = epoch

    def _within(self, call: Callable[[], Any]) -> None:
        """Runs a call that may never return.

        librdkafka (to 2.16 at least) ignores the timeout of this call, and waits forever if the connection to
        the group's coordinator was lost.
        """
        failed: list[BaseException] = []

        def run() -> None:
            try:
                call()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="millwheel-kafka-marker", daemon=True)
        thread.start()
        thread.join(_MARKER_LIMIT)
        if thread.is_alive():
            _stuck.append(self)  # kept forever: its destructor would wait for the call, too
            raise _Stuck
        if failed:
            raise failed[0]


class _Stuck(Exception):
    """A producer whose call does not return."""


writers: dict[str, _Writer] = {}
_stuck: list[_Writer] = []


def _silent(errors: Any) -> tuple[int, ...]:
    """Codes of errors that only mean a timeout."""
    return errors._TIMED_OUT, errors._TRANSPORT, errors._ALL_BROKERS_DOWN, errors._RESOLVE


def _json(record: Record) -> bytes:
    return json.dumps(to_plain(record.value)).encode()


def _key(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _import() -> Any:
    return import_extra("Kafka needs", "kafka", "confluent_kafka")
