"""PyFlink on the latency benchmark: follows a folder, numbers the records of each key, stamps each.

    python flink_numbers.py SOURCE OUT CHECKPOINTS PARALLELISM {process,thread}

With Flink's own settings: bundles of up to 1,000 records or a second; with Python in a process beside the
JVM, or in threads of it. A record is stamped by the last operator, which is where a sink begins: what an
exactly-once sink adds, the wait for a checkpoint, is not counted, in Flink's favour.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import orjson
from flink_windows import environment
from pyflink.common import Duration, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, MapFunction, RuntimeContext
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.state import ValueStateDescriptor

Numbered = tuple[int, int, int]
"""The record's number, when it was sent, and how many its key has had."""


class Numberer(KeyedProcessFunction):  # type: ignore[misc]
    """Emits every record with its number among its key's."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: tuple[str, int, int], ctx: Any) -> Any:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield value[1], value[2], count


class Stamp(MapFunction):  # type: ignore[misc]
    """Appends a line for each record, with the time."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        # Not by the index of the subtask, for which threads have no method.
        name = f"{uuid.uuid4().hex}.stamps"
        # Unbuffered: a reader sees a line when it is written.
        self._file = open(Path(self._folder) / name, "ab", buffering=0)  # noqa: SIM115

    def map(self, value: Numbered) -> Numbered:
        self._file.write(b"%d %d %d\n" % (value[0], value[1], time.time_ns() // 1_000))
        return value


def _parse(line: str) -> tuple[str, int, int]:
    record = orjson.loads(line)
    return record["query"], record["number"], record["sent"]


def main(source: Path, out: Path, checkpoints: Path, parallelism: int, mode: str) -> None:
    """Runs until it is killed."""
    env = environment(checkpoints, parallelism, interval=1_000, tuned=False, mode=mode)
    files = (
        FileSource.for_record_stream_format(StreamFormat.text_line_format(), source.resolve().as_uri())
        .monitor_continuously(Duration.of_millis(10))
        .build()
    )
    numbered = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])
    (
        env.from_source(files, WatermarkStrategy.no_watermarks(), "logs")
        .map(_parse, Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()]))
        .key_by(lambda record: record[0], Types.STRING())
        .process(Numberer(), numbered)
        .map(Stamp(os.fspath(out)), numbered)
        .print()
    )
    env.execute("numbers")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
