"""Sinks of anomalies besides the files: Kafka topics, webhooks, commands.

A topic gets each anomaly once. A webhook or a command may get one again after a crash; one that cannot be
reached is logged, and detection goes on: the anomaly is in the files.
"""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from millwheel.errors import PipelineError
from millwheel.model.record import Record
from millwheel.model.sink import Sink
from millwheel.sinks import Callback, Kafka

logger = logging.getLogger("millwheel.zeitgeist")

_ATTEMPTS = 3
PATIENCE = 10.0  # seconds for one attempt


def open_alert(text: str) -> Sink:
    """Return the sink of an alert's URL.

    That is ``kafka://HOST:PORT/TOPIC``, ``http://...``, ``https://...`` or ``command:COMMAND``.

    >>> open_alert("command:mail -s anomaly ops")
    Callback(Command)
    """
    if text.startswith("kafka://"):
        servers, _, topic = text.removeprefix("kafka://").partition("/")
        if servers and topic:
            return Kafka(servers, topic, patience=PATIENCE)
    elif text.startswith(("http://", "https://")):
        return Callback(Webhook(text), in_driver=True)
    elif text.startswith("command:") and (words := shlex.split(text.removeprefix("command:"))):
        return Callback(Command(tuple(words)), in_driver=True)
    raise PipelineError(
        "an alert goes to kafka://HOST:PORT/TOPIC, http://..., https://... or command:COMMAND, "
        f"not to {text!r}"
    )


@dataclass(frozen=True)
class Webhook:
    """Posts each anomaly as JSON.

    The header ``Idempotency-Key`` is the same if one is sent again.
    """

    url: str

    def __call__(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        for number, record in enumerate(records):
            request = urllib.request.Request(
                self.url,
                json.dumps(record.value).encode(),
                {"Content-Type": "application/json", "Idempotency-Key": f"{epoch}-{shard}-{number}"},
            )
            self._post(request, record)

    def _post(self, request: urllib.request.Request, record: Record) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE):
                    return
            except (OSError, urllib.error.URLError) as error:
                if attempt == _ATTEMPTS:
                    logger.warning(
                        "the webhook did not take an anomaly of %r in %d attempts (%s); it is in the files",
                        record.key,
                        attempt,
                        error,
                    )


@dataclass(frozen=True)
class Command:
    """Runs a command for each anomaly, which is JSON on its standard input."""

    words: tuple[str, ...]

    def __call__(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        for record in records:
            try:
                subprocess.run(
                    self.words, input=json.dumps(record.value).encode(), timeout=PATIENCE, check=True
                )
            except (OSError, subprocess.SubprocessError) as error:
                logger.warning(
                    "the command %r failed for an anomaly of %r (%s); it is in the files",
                    self.words[0],
                    record.key,
                    error,
                )
