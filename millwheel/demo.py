"""The demo: search queries counted per second, and the spikes found in them (paper 2, Fig. 2 and 9).

Queries come out of order, by up to two seconds. A window is closed by a low-watermark timer: not before
its last record is in, and not long after.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

from millwheel.injectors import Generator
from millwheel.launch import run
from millwheel.model.computation import Computation
from millwheel.model.keys import by, by_key
from millwheel.model.pipeline import Pipeline
from millwheel.model.record import Record
from millwheel.model.time import SECOND
from millwheel.model.timer import Timer
from millwheel.sinks import Collect

_START = 1_296_167_641 * SECOND  # the moment that the paper takes for its example
_DISORDER = 2 * SECOND
_QUERIES = 1_000
_SECONDS = 60
_BARS = " ▁▂▃▄▅▆▇█"

_WORDS = (
    "cat videos",
    "television listings",
    "weather tomorrow",
    "football results",
    "news",
    "train times",
    "pizza near me",
    "how to tie a tie",
    "currency converter",
    "translate",
    "lottery numbers",
    "recipes",
    "maps",
    "mail",
    "music",
)


class Queries:
    """A reproducible stream: query i of n, Zipf-like, with three queries that spike."""

    def __init__(self, count: int, seconds: int, seed: int = 7, start: int = _START) -> None:
        self.count = count
        self.seconds = seconds
        self.seed = seed
        self.start = start
        planner = random.Random(seed)
        starts = planner.sample(range(seconds // 4, seconds - 6), 3)
        self.spikes = {name(rank): start for rank, start in zip((41, 57, 73), sorted(starts), strict=True)}

    def __call__(self, number: int) -> Record:
        rng = random.Random(self.seed * 1_000_003 + number)
        moment = number * self.seconds * SECOND // self.count + _DISORDER
        moment -= rng.randrange(_DISORDER)
        second = moment // SECOND
        query = name(int(_QUERIES ** rng.random()) - 1)
        if rng.random() < 0.05:  # the spikes' share of the traffic while they last
            for spiking, start in self.spikes.items():
                if start <= second < start + 5:
                    query = spiking
        return Record(value={"query": query}, timestamp=self.start + moment)


def name(rank: int) -> str:
    """The query of a rank.

    >>> name(0), name(16)
    ('cat videos', 'television listings 1')
    """
    word = _WORDS[rank % len(_WORDS)]
    return word if rank < len(_WORDS) else f"{word} {rank // len(_WORDS)}"


class Windower(Computation):
    """Counts a key's records per one-second bucket; emits a bucket once it is complete."""

    def process_record(self, record: Record) -> None:
        bucket = record.timestamp // SECOND
        self.state[bucket] = self.state.get(bucket, 0) + 1
        self.set_timer(str(bucket), (bucket + 1) * SECOND)

    def process_timer(self, timer: Timer) -> None:
        count = self.state.pop(int(timer.tag))
        self.produce("windows", count, timestamp=timer.timestamp - 1)


class SpikeDetector(Computation):
    """Compares a bucket with the running mean of the key; emits a spike when it begins."""

    def process_record(self, record: Record) -> None:
        mean, buckets = self.state.get("mean", 0.0), self.state.get("buckets", 0)
        spiking = buckets >= 5 and record.value > 8 + 4 * mean
        if spiking and not self.state.get("spiking"):
            self.produce("spikes", {"query": self.key, "count": record.value, "expected": round(mean, 1)})
        self.state["spiking"] = spiking
        if not spiking:
            self.state["mean"] = mean + (record.value - mean) / min(buckets + 1, 20)
            self.state["buckets"] = buckets + 1


def pipeline(queries: Queries, windows: Collect, spikes: Collect, rate: float | None = None) -> Pipeline:
    """Queries, windows, spikes: one level, because all of it is keyed by the query."""
    p = Pipeline("demo")
    p.inject("queries", Generator(queries, count=queries.count, rate=rate, slack=_DISORDER))
    p.add(Windower(), inputs={"queries": by("query")}, outputs=["windows"])
    p.add(SpikeDetector(), inputs={"windows": by_key}, outputs=["spikes"])
    p.sink("windows", windows)
    p.sink("spikes", spikes)
    return p


def demo(records: int, store: str, as_json: bool, ui: int | str | None = None) -> str:
    """Runs the demo; returns what it found, for people or as JSON.

    With a page to look at, the queries come as fast as they were asked.
    """
    from millwheel.spark.session import local_session

    local_session()  # before the clock starts: what is timed is the pipeline
    start = _START if ui is None else time.time_ns() // 1_000_000_000 * SECOND
    queries = Queries(records, seconds=_SECONDS, start=start)
    rate = None if ui is None else records / _SECONDS
    windows, spikes = Collect(), Collect()
    began = time.perf_counter()
    report = run(pipeline(queries, windows, spikes, rate), store=store, ui=ui)
    seconds = time.perf_counter() - began
    found: dict[str, Any] = {
        "records": report.records_in,
        "seconds": round(seconds, 2),
        "records_per_second": round(report.records_in / seconds),
        "epochs": report.epochs,
        "late": report.late["Windower"],
        "windows": report.produced["Windower"],
        "spikes": [
            {**spike.value, "second": (spike.timestamp - start) // SECOND}
            for spike in sorted(spikes.records, key=lambda record: record.timestamp)
        ],
        "planted": queries.spikes,
    }
    return json.dumps(found) if as_json else _tell(found, windows.records, queries)


def _tell(found: dict[str, Any], windows: list[Record], queries: Queries) -> str:
    counts: dict[str, list[int]] = {}
    for window in windows:
        second = (window.timestamp - queries.start) // SECOND
        counts.setdefault(window.key, [0] * (queries.seconds + 2))[second] += window.value
    busiest = sorted(counts, key=lambda query: -sum(counts[query]))[:5]
    lines = [
        f"{found['records']:,} queries in {found['seconds']} s ({found['records_per_second']:,} a second, "
        f"{found['epochs']} epochs), {found['windows']:,} one-second windows, {found['late']} late",
        "",
        "The busiest queries, second by second:",
        *(f"  {query:24} {_spark(counts[query])} {sum(counts[query]):>9,}" for query in busiest),
        "",
        "Spikes:",
    ]
    planted = dict(found["planted"])
    for spike in found["spikes"]:
        start = planted.pop(spike["query"], None)
        note = "false alarm" if start is None else f"planted at second {start}"
        lines.append(
            f"  {spike['query']:24} {_spark(counts[spike['query']])} second {spike['second']}: "
            f"{spike['count']} instead of {spike['expected']} ({note})"
        )
    lines += [f"  {query:24} planted at second {start}, not found" for query, start in planted.items()]
    return "\n".join(lines)


def _spark(counts: list[int]) -> str:
    """A row of bars.

    >>> _spark([0, 4, 8])
    ' ▄█'
    """
    top = max(*counts, 1)
    return "".join(_BARS[-(-count * 8 // top)] for count in counts)
