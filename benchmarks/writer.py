"""The external writer of the latency benchmark: ``python -m benchmarks.writer FOLDER RATE SECONDS``.

It is a process of its own, so that it keeps its pace whatever the system that is measured does.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path

FILES_A_SECOND = 20
"""A file is moved to its name when it is whole, as Structured Streaming asks of its input."""


_KEYS = 100


def write(folder: Path, rate: int, seconds: float) -> None:
    """Keeps the pace of ``rate`` records in a second."""
    source = random.Random(0)
    share = rate // FILES_A_SECOND
    begin = time.monotonic()
    for index in range(int(seconds * FILES_A_SECOND)):
        until = begin + (index + 1) / FILES_A_SECOND
        time.sleep(max(until - time.monotonic(), 0.0))  # the pace of the input, which is the point
        send(folder, f"log-{index:06d}", range(index * share, (index + 1) * share), source)


def send(folder: Path, name: str, numbers: Iterable[int], source: random.Random) -> None:
    """Adds a file with a record for each number; the records' ``sent`` is the present time."""
    sent = time.time_ns() // 1_000
    lines = []
    for number in numbers:
        query = f"query-{source.randrange(_KEYS)}"
        lines.append(f'{{"time": {sent}, "sent": {sent}, "number": {number}, "query": "{query}"}}\n')
    staged = folder / f".{name}"  # a name that neither system reads
    staged.write_text("".join(lines))
    os.rename(staged, folder / f"{name}.jsonl")


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
