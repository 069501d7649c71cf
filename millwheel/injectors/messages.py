"""Kafka messages: reading a range of them in a task, and converting them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import orjson

from millwheel.errors import InputError
from millwheel.injectors.units import BadLine, Unit, to_time
from millwheel.model.injector import BadInput, RecordBatch
from millwheel.model.record import Record

logger = logging.getLogger("millwheel.kafka")

_AT_ONCE = 10_000  # messages made into a batch
_WAIT = 0.02  # seconds that the client waits to fill a batch; a gap in the offsets costs this too
_CACHED_KB = 16 << 10  # fetched ahead by each worker for each partition


class Message(NamedTuple):
    """A message as a user's function gets it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    """In microseconds, as all times."""
    headers: list[tuple[str, bytes | None]]

    def header(self, name: str) -> bytes | None:
        """The last header with a name, or None."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


Convert = Literal["json", "text", "bytes"] | Callable[[Message], Any]


class Cursor:
    """Reads one partition in a task; continues from its position if possible."""

    def __init__(self, config: dict[str, Any], topic: str, partition: int) -> None:
        import confluent_kafka as kafka

        self._kafka = kafka
        try:
            self._consumer = kafka.Consumer(
                {**config, "queued.max.messages.kbytes": _CACHED_KB}, logger=logger
            )
        except kafka.KafkaException as error:
            raise InputError(error.args[0].str()) from None
        self._topic = topic
        self._partition = partition
        self._at: int | None = None
        self._left: list[Any] = []

    def read(self, start: int | None, end: int, patience: float) -> Iterator[list[Any]]:
        """The messages from ``start`` (None: the oldest) to ``end``, in batches."""
        kafka = self._kafka
        if start is None or start != self._at:
            self._left = []
            beginning = kafka.OFFSET_BEGINNING if start is None else start
            self._consumer.assign([kafka.TopicPartition(self._topic, self._partition, beginning)])
            self._at = start or 0
        at, self._at = self._at, None  # a reader that stops in the middle leaves no position
        heard = time.monotonic()
        while at < end:
            found, self._left = self._left, []
            if not found:
                found = self._consumer.consume(min(end - at, _AT_ONCE), _WAIT)
            batch: list[Any] = []
            for index, message in enumerate(found):
                error = message.error()
                if error is not None:
                    at = max(at, self._after(error, message, start, at))
                    continue
                if message.offset() >= end:
                    self._left = found[index:]
                    at = end
                    break
                batch.append(message)
                at = message.offset() + 1
            if found:
                heard = time.monotonic()
            elif time.monotonic() - heard > patience:
                raise InputError(
                    f"partition {self._partition} of {self._topic} returned nothing from {at:,} to {end:,} "
                    f"for {patience:.0f} seconds: is its broker available?"
                )
            if batch:
                yield batch
        self._at = end

    def _after(self, error: Any, message: Any, start: int | None, at: int) -> int:
        """The offset after an event that is not a message: a partition's end has one."""
        kafka = self._kafka
        if error.code() == kafka.KafkaError._PARTITION_EOF:
            offset: int = message.offset()
            return offset
        if error.code() == kafka.KafkaError._AUTO_OFFSET_RESET:
            raise InputError(
                f"partition {self._partition} of {self._topic} no longer has offset {at:,} "
                f"({error.str()}): messages were deleted before they were read, or the topic was created "
                "again"
            )
        if error.code() in (kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, kafka.KafkaError._UNKNOWN_TOPIC):
            raise InputError(f"the topic {self._topic} no longer exists ({error.str()})")
        logger.warning("partition %d of %s: %s", self._partition, self._topic, error.str())
        return at


class Converter:
    """Converts messages to a batch of records."""

    def __init__(self, value: Convert, timestamp: str | None, unit: Unit | None, id: str | None) -> None:
        self._value = value
        self._timestamp = timestamp
        self._unit = unit
        self._id = id

    def __call__(self, messages: list[Any]) -> RecordBatch:
        if self._value == "json" and self._timestamp is None and self._id is None:
            batch = _fast(messages)
            if batch is not None:
                return batch
        timestamps: list[int] = []
        values: list[Any] = []
        ids: list[Any] = []
        keys: list[str] = []
        bad: list[BadInput] = []
        for message in messages:
            try:
                record = self._record(message)
            except BadLine as error:
                where = f"offset {message.offset()}: {error}"
                bad.append(BadInput(where, message.value()))
                continue
            if record is None:
                continue
            timestamps.append(record.timestamp)
            values.append(record.value)
            ids.append(record.id)
            keys.append(record.key)
        with_ids = any(id is not None for id in ids)
        return RecordBatch(timestamps, values, ids if with_ids else None, keys, bad)

    def _record(self, message: Any) -> Record | None:
        made = self._made(message)
        if made is None and callable(self._value):
            return None
        if isinstance(made, Record):
            return made
        time, id = message.timestamp()[1] * 1_000, None
        if self._timestamp is not None and message.value() is not None:
            time = to_time(_field(made, self._timestamp), self._unit, self._timestamp, text=False)
        if self._id is not None and message.value() is not None:
            id = _field(made, self._id)
            if isinstance(id, bool) or not isinstance(id, str | int):
                raise BadLine(f"the ID field {self._id!r} is {id!r}: an ID is a text or an integer")
        return Record(made, time, _key(message), id=id)

    def _made(self, message: Any) -> Any:
        data = message.value()
        if callable(self._value):
            try:
                return self._value(_message(message))
            except Exception as error:
                raise BadLine(f"the function raised {type(error).__name__}: {error}") from None
        if data is None or self._value == "bytes":
            return data
        try:
            return orjson.loads(data) if self._value == "json" else data.decode()
        except ValueError as error:
            kind = "JSON" if self._value == "json" else "UTF-8"
            raise BadLine(f"the message is not {kind} ({error})") from None


def _fast(messages: list[Any]) -> RecordBatch | None:
    """All messages in one call; None if one of them must be decoded alone."""
    lines = [message.value() for message in messages]
    try:
        values = list(map(orjson.loads, lines))
        keys = [key.decode() if (key := message.key()) else "" for message in messages]
    except ValueError:
        return None
    if b"\n".join(lines).count(b"\n") >= len(
        lines
    ):  # in JSON a space is equivalent, and a line must not contain a newline
        lines = [line.replace(b"\n", b" ") for line in lines]
    timestamps = [message.timestamp()[1] * 1_000 for message in messages]
    return RecordBatch(timestamps, values, None, keys, json=lines)


def _message(message: Any) -> Message:
    return Message(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.timestamp()[1] * 1_000,
        message.headers() or [],
    )


def _key(message: Any) -> str:
    """The key as text; bytes that are not UTF-8 stay distinct."""
    key: bytes | None = message.key()
    return key.decode("utf-8", "surrogateescape") if key else ""


def _field(value: Any, field: str) -> Any:
    if not isinstance(value, dict) or field not in value:
        raise BadLine(f"the message has no field {field!r}")
    return value[field]
