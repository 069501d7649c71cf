"""Bytewax: a stateful operator, recovery on. Runs in Bytewax's own environment: it imports nothing of ours.

    python -m bytewax.run "bytewax_windows:flow('SOURCE', 'OUT', 2)" -r RECOVERY -s 1 -i 0 -a "host:1;host:2"

Bytewax has no watermark that passes from key to key: each key follows its own records, as Bytewax's window
operators do. Two partitions are read at their own pace, so a key's watermark is the least of theirs.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition

_SECOND = 1_000_000
_DISORDER = 2 * _SECOND
_BYTES = 1 << 20  # of lines in a batch: what is read at once costs less for each

Record = tuple[int, int]
"""The number of the partition that it came from, and its time."""


class _Logs(FixedPartitionedSource):  # type: ignore[misc]
    """The files of a folder, dealt to partitions; each partition reads its files one after the other."""

    def __init__(self, folder: str, partitions: int) -> None:
        self._files = sorted(Path(folder).glob("*.jsonl"))
        self._partitions = partitions

    def list_parts(self) -> list[str]:
        return [str(number) for number in range(self._partitions)]

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> _Log:
        number = int(for_part)
        return _Log(number, self._files[number :: self._partitions], resume_state or (0, 0))


class _Log(StatefulSourcePartition):  # type: ignore[misc]
    """Resumes at a file and the place in it."""

    def __init__(self, number: int, files: list[Path], place: tuple[int, int]) -> None:
        self._number = number
        self._files = files
        self._index, offset = place
        self._file = self._open(offset)

    def _open(self, offset: int = 0) -> Any:
        if self._index >= len(self._files):
            return None
        file = open(self._files[self._index], "rb")  # noqa: SIM115 - open as long as the partition
        file.seek(offset)
        return file

    def next_batch(self) -> list[tuple[int, bytes]]:
        while self._file is not None:
            lines = self._file.readlines(_BYTES)
            if lines:
                return [(self._number, line) for line in lines]
            self._file.close()
            self._index += 1
            self._file = self._open()
        raise StopIteration

    def next_awake(self) -> datetime | None:
        return None

    def snapshot(self) -> tuple[int, int]:
        return (self._index, self._file.tell() if self._file is not None else 0)


class _Windows(FixedPartitionedSink):  # type: ignore[misc]
    """A file of JSON lines for each process; what came after the last snapshot is cut off on resume."""

    def __init__(self, folder: str, files: int) -> None:
        self._folder = Path(folder)
        self._count = files

    def list_parts(self) -> list[str]:
        return [f"part-{number}.jsonl" for number in range(self._count)]

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> _File:
        return _File(self._folder / for_part, resume_state or 0)


class _File(StatefulSinkPartition):  # type: ignore[misc]
    """Is on the disk before the snapshot that says so."""

    def __init__(self, path: Path, offset: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab")  # noqa: SIM115 - open as long as the partition
        self._file.truncate(offset)

    def write_batch(self, values: list[bytes]) -> None:
        self._file.writelines(values)

    def snapshot(self) -> int:
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class Windower(StatefulBatchLogic):  # type: ignore[misc]
    """Counts a key's records per one-second window; a batch of them at a time."""

    def __init__(self, partitions: int, state: tuple[dict[int, int], tuple[int, ...]] | None) -> None:
        counts, marks = state or ({}, (0,) * partitions)
        self._counts = dict(counts)
        self._marks = list(marks)

    def on_batch(self, values: list[Record]) -> tuple[list[tuple[int, int]], bool]:
        counts, marks = self._counts, self._marks
        for partition, time in values:
            window = time // _SECOND
            counts[window] = counts.get(window, 0) + 1
            if time > marks[partition]:
                marks[partition] = time
        passed = (min(marks) - _DISORDER) // _SECOND
        complete = [(window, counts.pop(window)) for window in sorted(counts) if window < passed]
        return complete, not counts

    def on_eof(self) -> tuple[list[tuple[int, int]], bool]:
        return sorted(self._counts.items()), True

    def snapshot(self) -> tuple[dict[int, int], tuple[int, ...]]:
        return dict(self._counts), tuple(self._marks)


def _parse(batch: list[tuple[int, bytes]]) -> list[tuple[str, Record]]:
    loads = orjson.loads
    found = []
    for partition, line in batch:
        record = loads(line)
        found.append((record["query"], (partition, record["time"])))
    return found


def _format(batch: list[tuple[str, tuple[int, int]]]) -> list[tuple[str, bytes]]:
    dumps = orjson.dumps
    return [
        (key, dumps({"key": key, "window": window, "count": count}) + b"\n") for key, (window, count) in batch
    ]


def flow(source: str, out: str, partitions: int) -> Dataflow:
    """The whole job."""
    made = Dataflow("windows")
    lines = op.input("logs", made, _Logs(source, partitions))
    records = op.flat_map_batch("parse", lines, _parse)
    windows = op.stateful_batch("count", records, lambda state: Windower(partitions, state))
    op.output("windows", op.flat_map_batch("format", windows, _format), _Windows(out, partitions))
    return made
