"""A pipeline that leaves every kind of entry in its store: for tests of tools for whole stores."""

from __future__ import annotations

import millwheel as mw

KEYS = 150
EPOCHS = 6
_EACH = 200


class Windows(mw.Computation):
    """Counts by key in windows of three epochs; holds a time now and then, and sets timers of both clocks."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.set_timer(str(record.timestamp), record.timestamp + 3000)
        self.set_timer("wall", 10**15, mw.WALL)
        if record.value["n"] % 7 == 0:
            self.hold(record.timestamp, str(record.timestamp))

    def process_timer(self, timer: mw.Timer) -> None:
        self.release(timer.tag)
        self.clear_timer("wall")
        self.produce("out", [self.key, timer.timestamp, self.state["n"]])


class InOrder(mw.Computation):
    """Joins what comes, in order of time."""

    def process_record(self, record: mw.Record) -> None:
        self.state["last"] = [record.timestamp, record.value["n"]]
        self.produce("ordered", [self.key, record.timestamp, record.value["n"]])


def records() -> list[mw.Record]:
    """Records of six epochs; five of each come once more in the next one."""
    fresh = [
        [
            mw.Record(
                value={"n": number, "half": number / 2 if number % 3 else number},
                timestamp=1000 * epoch + (number * 37) % 1500,
                key=f"k{number % KEYS}",
                id=1000 * epoch + number,
            )
            for number in range(_EACH)
        ]
        for epoch in range(EPOCHS)
    ]
    again = [fresh[epoch] + fresh[epoch - 1][:5] for epoch in range(1, EPOCHS)]
    return [*fresh[0], *(record for part in again for record in part)]


def pipeline(sink: mw.Sink) -> mw.Pipeline:
    """The pipeline; all of its output goes to one sink."""
    p = mw.Pipeline("every kind")
    stream = p.inject("in", mw.injectors.Records(records(), per_epoch=_EACH))
    p.add(Windows(), inputs={"in": mw.by_key}, outputs=["out"])
    p.add(InOrder(), inputs={"in": mw.by_key}, outputs=["ordered"], in_order=True)
    stream.key_by(mw.by_key).window(mw.windows.sliding(4000, 2000)).aggregate(
        "sums", count=mw.agg.count(), total=mw.agg.sum("n"), least=mw.agg.min("half"), mean=mw.agg.mean("n")
    )
    for name in ("out", "ordered", "sums"):
        p.sink(name, sink)
    return p


def output(sink: mw.sinks.Collect) -> list[str]:
    """What the sink has, in an order that does not depend on intervals."""
    return sorted(str((record.stream, record.key, record.timestamp, record.value)) for record in sink.records)
