"""The inputs of the service: ``SCHEME:REST`` by its scheme, or files by pattern."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors import Files, Kafka, Records
from millwheel.injectors.units import Unit, check_first, to_time
from millwheel.model.injector import Errors, Injector
from millwheel.model.record import Record


@dataclass(frozen=True)
class Columns:
    """The format of the input: the names of its fields, and how time is written."""

    time: str = "time"
    unit: Unit | None = None
    id: str | None = None
    slack: int | None = None
    errors: Errors = "stop"


Factory = Callable[[str, Columns], Injector]

_factories: dict[str, Factory] = {}


def register_source(scheme: str, factory: Factory) -> None:
    """Registers a scheme: its factory gets the whole text and the columns."""
    _factories[scheme] = factory


def open_source(text: str, columns: Columns) -> Injector:
    """The injector of an input.

    >>> open_source("logs/*.jsonl", Columns()).__class__.__name__
    'Files'
    """
    scheme, colon, _ = text.partition(":")
    if not colon or "/" in scheme or "*" in scheme:
        return Files(
            text,
            timestamp=columns.time,
            id=columns.id,
            unit=columns.unit,
            slack=columns.slack,
            errors=columns.errors,
        )
    if scheme not in _factories:
        known = ", ".join(f"{name}:" for name in sorted(_factories))
        raise InputError(f"there is no source for {text!r}: name files, or one of {known}")
    return _factories[scheme](text, columns)


def _table(text: str, columns: Columns) -> Injector:
    """A Spark table that fits the driver's memory, read once, in order of time."""
    from millwheel.spark.session import local_session

    frame = local_session().table(text.partition(":")[2])
    if columns.time not in frame.columns:
        raise InputError(
            f"the table {text!r} has no column {columns.time!r}: it has {', '.join(frame.columns)}"
        )
    records = []
    for row in frame.orderBy(columns.time).toLocalIterator():
        value: dict[str, Any] = row.asDict()
        moment = value[columns.time]
        if hasattr(moment, "timestamp"):
            value[columns.time] = moment.isoformat()
            time = round(moment.timestamp() * 1_000_000)
        else:
            time = to_time(moment, columns.unit, columns.time, text=False)
        records.append(Record(value=value, timestamp=time))
    if columns.unit is None and not dict(frame.dtypes)[columns.time].startswith(("timestamp", "date")):
        check_first([record.timestamp for record in records], columns.time, f"the table {text!r}")
    return Records(records)


def _kafka(text: str, columns: Columns) -> Injector:
    """Messages of JSON: ``kafka://HOST:PORT,HOST:PORT/TOPIC``."""
    servers, _, topic = text.removeprefix("kafka://").partition("/")
    if not text.startswith("kafka://") or not servers or not topic:
        raise InputError(f"a topic is named kafka://HOST:PORT/TOPIC, not {text!r}")
    slack: dict[str, Any] = {} if columns.slack is None else {"slack": columns.slack}
    return Kafka(
        servers,
        topic,
        timestamp=columns.time,
        unit=columns.unit,
        id=columns.id,
        errors=columns.errors,
        **slack,
    )


register_source("table", _table)
register_source("kafka", _kafka)
