"""The windowed count on `transformWithState`, as a process of its own.

python -m benchmarks.peers.spark_windows SOURCE WORK CORES FILES_A_BATCH {row,pandas,groupBy}
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.peers import transform_with_state
from benchmarks.session import session

if __name__ == "__main__":
    work = Path(sys.argv[2])
    with session(work, transform_with_state.SETTINGS, cores=int(sys.argv[3])) as spark:
        transform_with_state.count_windows(spark, Path(sys.argv[1]), work, int(sys.argv[4]), way=sys.argv[5])
