"""Records as messages of a topic of Kafka, in transactions."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.model.record import Record
from millwheel.model.secrets import hide, is_secret
from millwheel.model.sink import Sink
from millwheel.sinks.json_values import to_plain

logger = logging.getLogger("millwheel.kafka")

_BACKOFF_MS = 1_000  # between attempts to connect: ten seconds, as by default, make a restart long
_CRITICAL = 0  # what the client may write to stderr; what fails is raised
_MARKER_LIMIT = 5.0  # seconds for a call that takes milliseconds
_PATIENCE = 30.0  # seconds that brokers may take for one step of a transaction


class Kafka(Sink):
    """Sends records to a topic: whoever reads with ``isolation.level=read_committed`` sees each one once.

    A message has the record's key, its value as JSON (or what the function ``value`` makes of a record, as
    bytes), and its timestamp in milliseconds. ``settings`` is what else the client needs.

    The messages of a shard and its epoch are one transaction, together with a marker: the offset that a
    group of the shard's own has committed is the epoch. An attempt that comes later fences those before it,
    and does nothing where the marker says that the epoch is in. A marker lasts as long as the broker keeps
    the offsets of groups that are not in use (``offsets.retention.minutes``, a week by default).
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
        self._origin = ""

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
            raise MillWheelError(f"{self!r}: there is no such topic ({found.error.str()}): make it")

    def begin(self, origin: str, epoch: int) -> None:
        self._origin = origin

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        if not records:
            return
        messages = [(_key(record.key), self._value(record), record.timestamp // 1_000) for record in records]
        kafka = _import()
        name = f"millwheel-{self._origin[:12]}-{self._topic}-{shard}"
        try:
            writer = _writers.get(name)
            if writer is None or writer.epoch >= epoch:
                writer = self._writer(name)
            if writer.epoch < epoch and not self._send(writer, epoch, messages):
                # Another attempt has taken the name, or the broker lost it: look again at what is in.
                writer = self._writer(name)
                if writer.epoch < epoch and not self._send(writer, epoch, messages):
                    raise MillWheelError(f"{self!r}: other attempts at epoch {epoch} keep fencing this one")
        except kafka.KafkaException as error:
            _writers.pop(name, None)
            raise self._error(error) from None
        except BaseException:
            _writers.pop(name, None)
            raise

    def _writer(self, name: str) -> _Writer:
        _writers.pop(name, None)
        ids = {"transactional.id": name, "transaction.timeout.ms": 60_000}
        writer = _Writer(self._config(**ids), self._config(**{"group.id": name}), self._topic, self._patience)
        _writers[name] = writer
        return writer

    def _send(self, writer: _Writer, epoch: int, messages: list[tuple[bytes, bytes, int]]) -> bool:
        """Sends a transaction; False where this writer is of no use any more."""
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
        return MillWheelError(f"{self!r}: {hide(error.args[0].str(), secrets)}")


class _Writer:
    """A producer with a transactional name of its own, and the last epoch that was committed under it."""

    def __init__(
        self, producing: dict[str, Any], consuming: dict[str, Any], topic: str, patience: float
    ) -> None:
        kafka = _import()
        self._kafka = kafka
        self._topic = topic
        self._patience = patience
        # No logger: the client's threads would need the interpreter, which a call of it may be holding.
        self._producer = kafka.Producer({"log_level": _CRITICAL, **producing})
        # Ends what a former attempt left open: only then is the marker what it says.
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
        """One transaction: the messages, and the marker."""
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
        """Calls what may never return: librdkafka (to 2.16 at least) does not heed the time limit of this
        call, and waits for ever where the connection to the group's coordinator was lost."""
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
            _stuck.append(self)  # never to be let go of: that would wait for the call, too
            raise _Stuck
        if failed:
            raise failed[0]


class _Stuck(Exception):
    """A producer that does not come back."""


_writers: dict[str, _Writer] = {}
_stuck: list[_Writer] = []


def _json(record: Record) -> bytes:
    return json.dumps(to_plain(record.value)).encode()


def _key(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _import() -> Any:
    try:
        import confluent_kafka
    except ImportError as error:
        raise MillWheelError(
            f"Kafka needs confluent-kafka, which cannot be imported ({error}): "
            "pip install 'millwheel-spark[kafka]'"
        ) from error
    return confluent_kafka
