"""Flink SQL: the windowed count as a `TUMBLE`, no Python in its path. Runs in Flink's own environment.

    python flink_sql.py SOURCE OUT CHECKPOINTS PARALLELISM

``SOURCE`` is a folder with a file for each reader, in the order of time, as for `flink_windows`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

_SOURCE = """
CREATE TABLE logs (
  `time` BIGINT, query STRING,
  moment AS TO_TIMESTAMP_LTZ(`time` / 1000, 3),
  WATERMARK FOR moment AS moment - INTERVAL '2' SECOND
) WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'json')
"""
_SINK = """
CREATE TABLE windows (`key` STRING, `window` BIGINT, `count` BIGINT)
WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'json')
"""
_COUNT = """
INSERT INTO windows
SELECT query, UNIX_TIMESTAMP(CAST(window_start AS STRING)), COUNT(*)
FROM TUMBLE(TABLE logs, DESCRIPTOR(moment), INTERVAL '1' SECOND)
GROUP BY query, window_start, window_end
"""


def environment(checkpoints: Path, parallelism: int) -> TableEnvironment:
    """Checkpoints every second, exactly once."""
    table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = {
        "parallelism.default": str(parallelism),
        "table.local-time-zone": "UTC",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": checkpoints.resolve().as_uri(),
    }
    for name, value in settings.items():
        table.get_config().set(name, value)
    return table


def main(source: Path, out: Path, checkpoints: Path, parallelism: int) -> None:
    """Runs the query to the end of its input."""
    table = environment(checkpoints, parallelism)
    table.execute_sql(_SOURCE.format(path=source.resolve().as_uri()))
    table.execute_sql(_SINK.format(path=out.resolve().as_uri()))
    table.execute_sql(_COUNT).wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
