"""The external writer of the latency benchmark: ``python -m benchmarks.writer TARGET RATE SECONDS [FILES]``.

The target is a folder, or a topic of Kafka: ``kafka://host:port/topic``.
It is a process of its own, so that it keeps its pace whatever the system that is measured does.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILES_A_SECOND = 20
"""A file is moved to its name when it is whole, as Structured Streaming asks of its input."""


_KEYS = 100


Target = Path | str
"""A folder, or a topic: ``kafka://host:port/topic``."""


def write(folder: Target, rate: int, seconds: float, files: int = FILES_A_SECOND) -> None:
    """Keeps the pace of ``rate`` records in a second, in ``files`` files."""
    source = random.Random(0)
    share = rate // files
    begin = time.monotonic()
    for index in range(int(seconds * files)):
        until = begin + (index + 1) / files
        time.sleep(max(until - time.monotonic(), 0.0))  # the pace of the input, which is the point
        send(folder, f"log-{index:06d}", range(index * share, (index + 1) * share), source)


def send(folder: Target, name: str, numbers: Iterable[int], source: random.Random) -> None:
    """Adds a file, or messages, with a record for each number; their ``sent`` is the present time."""
    sent = time.time_ns() // 1_000
    lines = []
    for number in numbers:
        query = f"query-{source.randrange(_KEYS)}"
        lines.append(f'{{"time": {sent}, "sent": {sent}, "number": {number}, "query": "{query}"}}\n')
    if isinstance(folder, str):
        _produce(folder, lines)
        return
    staged = folder / f".{name}"  # a name that neither system reads
    staged.write_text("".join(lines))
    os.rename(staged, folder / f"{name}.jsonl")


_producers: dict[str, Any] = {}


def _produce(target: str, lines: Iterable[str]) -> None:
    from confluent_kafka import Producer

    servers, topic = target.removeprefix("kafka://").split("/")
    if servers not in _producers:
        _producers[servers] = Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": 1})
    producer = _producers[servers]
    for line in lines:
        producer.produce(topic, line.encode())
    producer.flush()


if __name__ == "__main__":
    given = sys.argv[1]
    write(
        given if given.startswith("kafka://") else Path(given),
        int(sys.argv[2]),
        float(sys.argv[3]),
        *map(int, sys.argv[4:]),
    )
