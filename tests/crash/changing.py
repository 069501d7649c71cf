"""A pipeline that changes at the word of a test: ``python changing.py INPUT STORE OUTPUT VARIANTS``.

It begins with the first of the variants that the store takes, says ``running N``, and reads lines:
``apply N`` lets it become variant N, and is answered with ``applied N``; ``end`` brings it to the end of its
input.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import millwheel as mw
from tests.crash.victim import Regions, Windower


class Extra(mw.Computation):
    """Comes and goes; keeps state and timers, which are there when it comes again."""

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.set_timer("soon", record.timestamp + mw.SECOND)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce(self.stream, self.state["n"])


def pipeline(source: Path, output: Path, variant: int) -> mw.Pipeline:
    """`Windower` and `Regions` are always there; beside and behind them others come and go."""
    p = mw.Pipeline("changing victim")
    p.inject(
        "queries", mw.injectors.Files(source / "*.jsonl", timestamp="time", id="id", slack=2 * mw.SECOND)
    )
    p.add(Windower(), inputs={"queries": mw.by("query")}, outputs=["windows"])
    p.add(Regions(), inputs={"windows": mw.by("region")}, outputs=["regions"])
    for stream in ("windows", "regions"):
        p.sink(stream, mw.sinks.JsonLines(output / stream))

    def extra(name: str, stream: str, key: Any, **options: Any) -> None:
        p.add(Extra(f"{name} out"), name=name, inputs={stream: key}, outputs=[f"{name} out"], **options)

    if variant & 1:
        extra("Beside", "queries", mw.by("region"))
        p.sink("Beside out", mw.sinks.JsonLines(output / "beside"))
    if variant & 2:
        extra("Behind", "regions", mw.by_key)
    if variant & 4:  # a level more
        extra("Deeper", "regions", _all)
    if variant & 8:
        extra(f"Fresh{variant >> 4}", "queries", mw.by("query"), replay="earliest")
    return p


def _all(record: mw.Record) -> str:
    return "all"


def main() -> None:
    """Runs until it is told to end, unless it is killed."""
    source, store, output = map(Path, sys.argv[1:4])
    variants = json.loads(sys.argv[4])
    from millwheel.spark.session import local_session

    local_session()
    options: dict[str, Any] = {"compact_below": 3_000, "target": 0.2, "progress": False}
    for variant in variants:
        try:
            job = mw.start(pipeline(source, output, variant), store=store, **options)
            break
        except mw.PipelineError as error:
            if "run the former pipeline once more" not in str(error):
                raise
    else:
        raise AssertionError(f"the store takes none of {variants}")
    print(f"running {variant}", flush=True)
    for line in sys.stdin:
        what, _, number = line.strip().partition(" ")
        if what == "end":
            break
        job.apply(pipeline(source, output, int(number)), removed="drop" if int(number) & 1 else "drain")
        print(f"applied {number}", flush=True)
    job.stop(drain=True)
    mw.run(pipeline(source, output, 0), store=store, **options)
    print("ended", flush=True)


if __name__ == "__main__":
    main()
