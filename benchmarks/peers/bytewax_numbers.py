"""Bytewax on the latency benchmark: follows a folder, numbers the records of each key, stamps each.

    python -m bytewax.run "bytewax_numbers:flow('SOURCE', 'OUT', 2)" -r RECOVERY -s 1 -a "host:1;host:2" -i 0

A record is stamped when the sink gets it, which is before the snapshot that makes it durable. Runs in
Bytewax's own environment: it imports nothing of ours.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition

_POLL = timedelta(milliseconds=2)

Numbered = tuple[int, int, int]
"""The record's number, when it was sent, and how many its key has had."""


class _Folder(FixedPartitionedSource):  # type: ignore[misc]
    """The files that come into a folder, dealt to partitions by their names."""

    def __init__(self, folder: str, partitions: int) -> None:
        self._folder = folder
        self._partitions = partitions

    def list_parts(self) -> list[str]:
        return [str(number) for number in range(self._partitions)]

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> _Share:
        return _Share(self._folder, int(for_part), self._partitions, resume_state or frozenset())


class _Share(StatefulSourcePartition):  # type: ignore[misc]
    """Reads each file of its share once, whole: the writer moves it to its name when it is whole."""

    def __init__(self, folder: str, number: int, partitions: int, read: frozenset[str]) -> None:
        self._folder = folder
        self._number = number
        self._partitions = partitions
        self._read = set(read)

    def next_batch(self) -> list[bytes]:
        lines: list[bytes] = []
        for name in sorted(os.listdir(self._folder)):
            if name.endswith(".jsonl") and name not in self._read and self._is_ours(name):
                lines += Path(self._folder, name).read_bytes().splitlines()
                self._read.add(name)
        return lines

    def _is_ours(self, name: str) -> bool:
        return int(name.removesuffix(".jsonl").rpartition("-")[2]) % self._partitions == self._number

    def next_awake(self) -> datetime | None:
        return datetime.now(timezone.utc) + _POLL

    def snapshot(self) -> frozenset[str]:
        return frozenset(self._read)


class Numberer(StatefulBatchLogic):  # type: ignore[misc]
    """Emits every record with its number among its key's."""

    def __init__(self, count: int | None) -> None:
        self._count = count or 0

    def on_batch(self, values: list[tuple[int, int]]) -> tuple[list[Numbered], bool]:
        found = []
        for number, sent in values:
            self._count += 1
            found.append((number, sent, self._count))
        return found, False

    def snapshot(self) -> int:
        return self._count


class _Stamps(DynamicSink):  # type: ignore[misc]
    """A file for each worker."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Stamp:
        return _Stamp(Path(self._folder) / f"{worker_index}-{os.getpid()}.stamps")


class _Stamp(StatelessSinkPartition):  # type: ignore[misc]
    """Appends a line for each record, with the time."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - open as long as the worker

    def write_batch(self, items: list[tuple[str, Numbered]]) -> None:
        now = time.time_ns() // 1_000
        self._file.write(b"".join(b"%d %d %d\n" % (number, sent, now) for _, (number, sent, _) in items))


def _parse(lines: list[bytes]) -> list[tuple[str, tuple[int, int]]]:
    found = []
    for line in lines:
        record = orjson.loads(line)
        found.append((record["query"], (record["number"], record["sent"])))
    return found


def flow(source: str, out: str, partitions: int) -> Dataflow:
    """The whole job, which runs until it is killed."""
    made = Dataflow("numbers")
    lines = op.input("logs", made, _Folder(source, partitions))
    records = op.flat_map_batch("parse", lines, _parse)
    numbered = op.stateful_batch("number", records, Numberer)
    op.output("stamps", numbered, _Stamps(out))
    return made
