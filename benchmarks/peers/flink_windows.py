"""PyFlink: a KeyedProcessFunction with event-time timers, checkpoints on. Runs in Flink's own environment.

    python flink_windows.py SOURCE OUT CHECKPOINTS PARALLELISM {default,tuned}

``SOURCE`` is a folder with a file for each reader, in the order of time: Flink's file source reads several
files in no order, which event time does not survive. State is on the heap, as it fits there many times.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from pyflink.common import Configuration, Duration, Encoder, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import (
    CheckpointingMode,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors.file_system import (
    BucketAssigner,
    FileSink,
    FileSource,
    RollingPolicy,
    StreamFormat,
)
from pyflink.datastream.state import MapStateDescriptor

TUNED = {
    # A bundle is a round trip between the JVM and Python, and the end of one flushes state.
    "python.fn-execution.bundle.size": "20000",
    "python.fn-execution.bundle.time": "1000",
    # Keys whose state stays in Python between bundles; with the default of 1,000 most reads are round trips.
    "python.state.cache-size": "200000",
    "python.map-state.read-cache-size": "200000",
    "python.map-state.write-cache-size": "200000",
}
_MILLISECONDS = 1_000


class _Time(TimestampAssigner):  # type: ignore[misc]
    """Flink counts in milliseconds."""

    def extract_timestamp(self, value: tuple[str, int], record_timestamp: int) -> int:
        return value[1] // _MILLISECONDS


class Windower(KeyedProcessFunction):  # type: ignore[misc]
    """Counts a key's records per one-second window; a timer a window."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._counts = runtime_context.get_map_state(MapStateDescriptor("counts", Types.LONG(), Types.LONG()))

    def process_element(self, value: tuple[str, int], ctx: Any) -> None:
        window = value[1] // 1_000_000
        count = self._counts.get(window)
        if count is None:
            count = 0
            ctx.timer_service().register_event_time_timer((window + 1) * _MILLISECONDS)
        self._counts.put(window, count + 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[str]:
        window = timestamp // _MILLISECONDS - 1
        count = self._counts.get(window)
        self._counts.remove(window)
        yield json.dumps({"key": ctx.get_current_key(), "window": window, "count": count})


def _parse(line: str) -> tuple[str, int]:
    record = orjson.loads(line)
    return record["query"], record["time"]


def environment(
    checkpoints: Path, parallelism: int, *, interval: int, tuned: bool, mode: str = "process"
) -> Any:
    """Checkpoints every ``interval`` milliseconds, exactly once."""
    settings = Configuration()
    settings.set_string("execution.checkpointing.dir", checkpoints.resolve().as_uri())
    settings.set_string("python.executable", sys.executable)
    settings.set_string("python.execution-mode", mode)
    for name, value in (TUNED if tuned else {}).items():
        settings.set_string(name, value)
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.set_parallelism(parallelism)
    env.enable_checkpointing(interval, CheckpointingMode.EXACTLY_ONCE)
    return env


def main(source: Path, out: Path, checkpoints: Path, parallelism: int, *, tuned: bool) -> None:
    """Runs the job to the end of its input."""
    env = environment(checkpoints, parallelism, interval=1_000, tuned=tuned)
    paths = [path.resolve().as_uri() for path in sorted(source.glob("*.jsonl"))]
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), *paths).build()
    sink = (
        FileSink.for_row_format(out.resolve().as_uri(), Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(2)).with_timestamp_assigner(
        _Time()
    )
    (
        env.from_source(files, WatermarkStrategy.no_watermarks(), "logs")
        .map(_parse, Types.TUPLE([Types.STRING(), Types.LONG()]))
        .assign_timestamps_and_watermarks(strategy)
        .key_by(lambda record: record[0], Types.STRING())
        .process(Windower(), Types.STRING())
        .sink_to(sink)
    )
    env.execute("windows")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        Path(sys.argv[3]),
        int(sys.argv[4]),
        tuned=sys.argv[5] == "tuned",
    )
