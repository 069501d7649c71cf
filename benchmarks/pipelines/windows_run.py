"""The windowed count on millwheel, as a process of its own: what a user would run.

python -m benchmarks.pipelines.windows_run SOURCE OUT STORE CORES {computation,operators} [{jsonl,parquet}]
"""

from __future__ import annotations

import sys
from pathlib import Path

import millwheel as mw
from benchmarks.pipelines import windows
from millwheel.spark.session import local_session

if __name__ == "__main__":
    pattern = str(Path(sys.argv[1]) / f"*.{sys.argv[6] if len(sys.argv) > 6 else 'jsonl'}")
    spark = local_session(f"local[{sys.argv[4]},4]")
    make = windows.operators if sys.argv[5:6] == ["operators"] else windows.pipeline
    mw.run(make(pattern, Path(sys.argv[2])), store=sys.argv[3], spark=spark, progress=False)
    spark.stop()
