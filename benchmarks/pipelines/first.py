"""A hundred records through one computation: how long it takes until the first one is out."""

from __future__ import annotations

import json
import time

import millwheel as mw


class Copy(mw.Computation):
    """Produces what it gets."""

    def process_record(self, record: mw.Record) -> None:
        self.produce("copies", record.value)


class First(mw.sinks.Collect):
    """Notes when the first record came."""

    at = 0.0

    def write(self, epoch: int, shard: int, records: object) -> None:
        self.at = self.at or time.perf_counter()
        super().write(epoch, shard, records)  # type: ignore[arg-type]


def main() -> None:
    """Prints the seconds to a Spark, and to the first output."""
    from millwheel.spark.session import local_context

    sink = First()
    pipeline = mw.Pipeline("first")
    records = [mw.Record(value=at, timestamp=at) for at in range(100)]
    pipeline.inject("records", mw.injectors.Records(records))
    pipeline.add(Copy(), inputs={"records": lambda record: str(record.value)}, outputs=["copies"])
    pipeline.sink("copies", sink)
    began = time.perf_counter()
    local_context()
    session = time.perf_counter() - began
    mw.run(pipeline, store="memory:", progress=False)
    print(json.dumps({"session": session, "first": sink.at - began}))


if __name__ == "__main__":
    main()
