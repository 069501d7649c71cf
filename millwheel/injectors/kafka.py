"""Kafka topics. A Kafka partition is a partition, with Kafka's offsets.

The offsets that count are those in the store, journaled with the epoch; they are committed to Kafka
afterwards for people and tools that watch the group's lag.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from millwheel.errors import InputError
from millwheel.injectors import units
from millwheel.injectors.kafka_wait import Waiter
from millwheel.injectors.messages import Convert, Converter, Cursor
from millwheel.model.extras import import_extra
from millwheel.model.injector import Errors, Injector, Offset, RecordBatch
from millwheel.model.secrets import hide, is_secret
from millwheel.model.time import DAY, MAX_TIME, MIN_TIME, MINUTE, SECOND

logger = logging.getLogger("millwheel.kafka")

_SLACK = 10 * SECOND  # the default for how far messages of a partition may be out of order
_PATIENCE = 60.0  # seconds to wait for brokers
_LOOK_EVERY = 30.0  # seconds between checks for new partitions
_BACKOFF_MS = 1_000  # between attempts to connect: the default of ten seconds makes a restart slow
_FETCH_WAIT_MS = 50  # that a broker waits for more: a range that ends in a transaction marker takes this long
_AGAIN = 0.1  # seconds between requests to unavailable brokers
_REQUEST = 5.0  # seconds for one request, which blocks the driver


class Kafka(Injector):
    """Injects the messages of one topic or several.

    ``servers`` is the list of brokers (``host:port,host:port``), ``settings`` other settings of the client
    (``security.protocol``, ``sasl.password`` ...). ``value`` is how a message is decoded: ``json`` (the
    default), ``text``, ``bytes``, or a function of a `Message` (topic, partition, offset, key, value,
    timestamp, headers) that returns a value, a `Record`, or None for a message without a record.

    A record's key is the message's key, for `by_key`. Its timestamp is the message's, or with ``timestamp``
    that field of the value, in ``unit``. The watermark of a partition stays ``slack`` behind its newest
    timestamp; one that is idle for ``idle_after`` (of wall time) no longer holds the watermark.

    Each message is injected once, across crashes. Only messages of committed transactions are read.
    Unavailable brokers are waited for, for ``patience`` seconds. A topic that disappears, or is created
    again, and messages that were deleted before they were read, are errors.

    `millwheel.start` follows the topic; `millwheel.run` reads to its end at the start of the run.

    ``start`` is where a store that has read nothing of the topic yet begins: at its oldest message, or with
    ``latest`` after its newest one. From then on the store has the offset, and ``start`` is ignored;
    partitions that are added later are read from their oldest message on.
    """

    def __init__(
        self,
        servers: str,
        topic: str | Sequence[str],
        *,
        value: Convert = "json",
        timestamp: str | None = None,
        unit: units.Unit | None = None,
        id: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        group: str | None = "millwheel",
        slack: int = _SLACK,
        idle_after: int | None = MINUTE,
        follow: bool | None = None,
        errors: Errors = "stop",
        id_retention: int = DAY,
        patience: float = _PATIENCE,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        units.check_name(unit, "Kafka")
        if value not in ("json", "text", "bytes") and not callable(value):
            raise InputError(f"Kafka: value is json, text, bytes or a function of a Message, not {value!r}")
        if start not in ("earliest", "latest"):
            raise InputError(f"Kafka: start is earliest or latest, not {start!r}")
        self._servers = servers
        self._start = start
        self._topics = [topic] if isinstance(topic, str) else list(topic)
        self.converter = Converter(value, timestamp, unit, id)
        self._unchecked = timestamp if unit is None and not callable(value) else None
        self._group = group
        self._follow = follow
        self._patience = patience
        self._settings = dict(settings or {})
        self.slack = slack
        self.idle_after = idle_after
        self.errors = errors
        self.id_retention = id_retention
        self._begin()

    def _begin(self) -> None:
        self._client: Any = None
        self._consumer: Any = None
        self._waiter: Waiter | None = None
        self._partitions: list[tuple[str, int]] = []
        self._looked = 0.0
        self._away_since: float | None = None
        self._lows: dict[str, int] = {}
        self._firsts: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._read: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"Kafka({self._servers!r}, {', '.join(self._topics)})"

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that a task needs: no client, and nothing of the driver's."""
        state = dict(self.__dict__)
        for name in ("_client", "_consumer", "_waiter", "_lows", "_firsts", "_ends", "_read", "_partitions"):
            state.pop(name)
        return state

    def _config(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._servers,
            "allow.auto.create.topics": False,
            "reconnect.backoff.max.ms": _BACKOFF_MS,
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            **self._settings,
            "group.id": self._group or "millwheel",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }

    def open(self, *, follow: bool) -> None:
        kafka = import_kafka()
        self.bounded = not (follow if self._follow is None else self._follow)
        self._begin()
        backoff = {"reconnect.backoff.max.ms": _BACKOFF_MS}
        plain = {"bootstrap.servers": self._servers, **backoff, **self._settings}
        try:
            self._client = kafka.admin.AdminClient(plain, logger=logger)
            self._consumer = kafka.Consumer(self._config(), logger=logger)
            self._look(patience=self._patience)
        except kafka.KafkaException as error:
            raise self._error(error) from None

    def notify(self, wake: Callable[[], None]) -> bool:
        if self.bounded or self._waiter is not None:
            return False
        self._waiter = Waiter(import_kafka(), self._config(), wake)
        return True

    def close(self) -> None:
        if self._waiter is not None:
            self._waiter.close()
            self._waiter = None
        if self._consumer is not None:
            self._consumer.close()
        self._client = self._consumer = None

    def _look(self, patience: float = _REQUEST) -> None:
        """Reads the list of partitions."""
        found = []
        for topic in self._topics:
            metadata = self._consumer.list_topics(topic, timeout=patience).topics[topic]
            if metadata.error is not None:
                raise InputError(f"{self!r}: there is no topic {topic!r} ({metadata.error.str()})")
            found += [(topic, number) for number in sorted(metadata.partitions)]
        self._partitions = found
        self.expected = [_name(*place) for place in found]
        self._looked = time.monotonic()

    def poll(self) -> Mapping[str, Offset]:
        kafka = import_kafka()
        while not (self.bounded and self._ends):
            try:
                if time.monotonic() - self._looked > _LOOK_EVERY:
                    self._look()
                before = dict(self._ends)
                self._ask()
                self._away_since = None
                if self._waiter is not None and self._ends == before:
                    self._waiter.arm({_parse(name): end for name, end in before.items()})
            except kafka.KafkaException as error:
                self._away(error)
                if self.bounded:  # a run needs the end of the topic to begin
                    time.sleep(_AGAIN)
                    continue
            break
        return self._shown()

    def _shown(self) -> dict[str, Offset]:
        """The partitions; an empty one without an end.

        With ``start="latest"`` a partition is first read from None to its start, which gives no
        messages and journals the offset: it must be the same after a restart.
        """
        if self._start == "latest":
            return {name: max(end, self._firsts[name]) for name, end in self._ends.items()}
        return {name: end if end > self._lows[name] else None for name, end in self._ends.items()}

    def _ask(self) -> None:
        kafka = import_kafka()
        fresh = [place for place in self._partitions if _name(*place) not in self._lows]
        options = {"isolation_level": kafka.IsolationLevel.READ_COMMITTED, "request_timeout": _REQUEST}

        def ask(places: list[tuple[str, int]], spec: Any) -> dict[str, int]:
            wanted = {kafka.TopicPartition(*place): spec for place in places}
            answers = self._client.list_offsets(wanted, **options)
            return {_name(p.topic, p.partition): answer.result().offset for p, answer in answers.items()}

        if fresh:
            lows = ask(fresh, kafka.admin.OffsetSpec.earliest())
            is_new = not self._lows and not self._read
            at_end = self._start == "latest" and is_new
            self._firsts.update(ask(fresh, kafka.admin.OffsetSpec.latest()) if at_end else lows)
            self._lows.update(lows)
        ends = ask(self._partitions, kafka.admin.OffsetSpec.latest())
        for name, end in ends.items():
            known = max(self._read.get(name, 0), self._ends.get(name, 0))
            if end < known:
                raise kafka.KafkaException(
                    kafka.KafkaError(
                        kafka.KafkaError.OFFSET_OUT_OF_RANGE,
                        f"{name} ends at {end:,}, and was read to {known:,}: was the topic created again?",
                    )
                )
        self._ends.update(ends)

    def _away(self, error: Any) -> None:
        """Handles unavailable brokers or leaders: the last answer stays valid."""
        kafka = import_kafka()
        if error.args[0].code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            with contextlib.suppress(kafka.KafkaException):
                self._look()
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            logger.warning("%s", self._error(error))
        if now - self._away_since > self._patience:
            raise self._error(error) from None

    def _error(self, error: Any) -> InputError:
        secrets = [str(value) for name, value in self._settings.items() if is_secret(name)]
        return InputError(f"{self!r}: {hide(error.args[0].str(), secrets)}")

    def low_watermark(self, partition: str, offset: Offset) -> int:
        end = self._ends.get(partition, 0)
        if self.bounded and (offset or self._lows.get(partition, 0)) >= end:
            return MAX_TIME
        return MIN_TIME

    def commit(self, offsets: Mapping[str, Offset]) -> None:
        kafka = import_kafka()
        known = {name: offset for name, offset in offsets.items() if offset is not None}
        self._read.update(known)
        if self._group is None or self._consumer is None or not known:
            return
        places = [kafka.TopicPartition(*_parse(name), offset) for name, offset in known.items()]
        try:
            self._consumer.commit(offsets=places, asynchronous=True)
        except kafka.KafkaException as error:
            logger.warning("offsets could not be committed to Kafka: %s", self._error(error))

    def lost(self, offsets: Mapping[str, Offset]) -> str | None:
        kafka = import_kafka()
        if self._start == "latest":
            return 'it has no beginning: it started at the end of the topic (start="latest")'
        wanted = {kafka.TopicPartition(*_parse(name)): kafka.admin.OffsetSpec.earliest() for name in offsets}
        try:
            answers = self._client.list_offsets(wanted, request_timeout=_REQUEST)
            first = {place: answer.result().offset for place, answer in answers.items()}
        except kafka.KafkaException as error:
            return str(self._error(error))
        trimmed = [place for place, offset in first.items() if offset > 0]
        if not trimmed:
            return None
        place = trimmed[0]
        return (
            f"the brokers have deleted the first {first[place]:,} messages of "
            f"{place.topic}/{place.partition} (retention.ms, retention.bytes)"
        )

    @property
    def lag(self) -> dict[str, int]:
        """By partition: the number of messages not read yet; in the driver."""
        return {name: self.size(name, self._read.get(name), end) for name, end in self._ends.items()}

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        if start is None and self._start == "latest":
            return self._firsts[partition]
        first = self._firsts.get(partition, 0) if start is None else start
        return min(end, max(first, 0) + records)

    def size(self, partition: str, start: Offset, end: Offset) -> int:
        first: int = self._firsts.get(partition, 0) if start is None else start
        return max((end or 0) - first, 0)

    def read_batches(self, partition: str, start: Offset, end: Offset) -> Iterable[RecordBatch]:
        if start is None and self._start == "latest":
            return
        place = (self._servers, self._group, repr(sorted(self._settings.items())), partition)
        cursor = cursors.get(place)
        if cursor is None:
            cursor = cursors[place] = Cursor(self._config(), *_parse(partition))
        try:
            batches: Iterable[RecordBatch] = map(self.converter, cursor.read(start, end, self._patience))
            if start is None and self._unchecked is not None:
                batches = units.checked(batches, self._unchecked, f"partition {partition}")
            yield from batches
        except InputError as error:
            cursors.pop(place, None)
            secrets = [str(value) for name, value in self._settings.items() if is_secret(name)]
            raise InputError(f"{self!r}: {hide(error, secrets)}") from None


cursors: dict[tuple[Any, ...], Cursor] = {}


def _name(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


def _parse(name: str) -> tuple[str, int]:
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)


def import_kafka() -> Any:
    """The package confluent_kafka; an `InputError` with the fix if it is missing."""
    return import_extra("Kafka needs", "kafka", "confluent_kafka", "confluent_kafka.admin", error=InputError)
