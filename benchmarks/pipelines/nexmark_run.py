"""A NEXMark query in operators, from files of events, as a process of its own.

python -m benchmarks.pipelines.nexmark_run QUERY SOURCE OUT STORE CORES EVENTS RATE
"""

from __future__ import annotations

import sys

import millwheel as mw
from examples.nexmark import source
from examples.nexmark.events import House
from examples.nexmark.pipeline import MAX_SKEW, pipeline
from millwheel.spark.session import local_session

if __name__ == "__main__":
    query, folder, out, store, cores, events, rate = sys.argv[1:]
    spark = local_session(f"local[{cores},4]")
    house = House(int(events), rate=int(rate))
    made = pipeline(query, source.files(folder, house), mw.sinks.JsonLines(out), operators=True)
    mw.run(made, store=store, spark=spark, max_skew=MAX_SKEW, progress=False)
    spark.stop()
