"""Logs for programs: each line of the logger ``millwheel`` as JSON."""

from __future__ import annotations

import contextvars
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from millwheel.errors import UserCodeError
from millwheel.model.json_form import plain

where: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar("millwheel_where")
"""The pipeline and the epoch of this thread, set by the recorder."""

_ORDINARY = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """A line as an object: time, level, message, pipeline, epoch, computation, extra.

    >>> record = logging.makeLogRecord({"msg": "epoch %d", "args": (7,), "levelname": "INFO", "epoch": 7})
    >>> json.loads(JsonFormatter().format(record))["epoch"]
    7
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        fields: dict[str, Any] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **where.get({}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = self.formatException(record.exc_info)
            for error in _causes(record.exc_info[1]):
                if isinstance(error, UserCodeError):
                    fields["computation"] = error.computation
        for name, value in record.__dict__.items():
            if name not in _ORDINARY:
                fields[name] = plain(value)
        return json.dumps(fields, ensure_ascii=False)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def to_json(stream: TextIO | None = None, level: int = logging.INFO) -> logging.Handler:
    """Writes JSON lines of the logger ``millwheel``, by default to stderr.

    There is an INFO line for each epoch. The handler is returned, for
    `logging.getLogger("millwheel").removeHandler`.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("millwheel")
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler
