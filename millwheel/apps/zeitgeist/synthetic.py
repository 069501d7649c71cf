"""A generated stream of search queries, with anomalies at known times."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from millwheel.model.injector import Injector, Offset, RecordBatch
from millwheel.model.record import Record
from millwheel.model.time import DAY, MAX_TIME, MINUTE, SECOND

START = 1_296_086_400 * SECOND  # midnight before the moment that the paper takes for its example
DELAY = 1  # buckets that a record may be late on the wire

REGIONS = {"eu": 0.34, "us": 0.30, "in": 0.18, "br": 0.11, "eg": 0.07}
"""The regions that queries come from, each from its own servers, with their share of the traffic."""

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
_HOURS = 24
_PEAKS = (13.0, 13.0, 20.0, 9.0)  # hours of the day at which a query is busiest, by its rank modulo four
_SWING = 0.6  # of the daily cycle


@dataclass(frozen=True)
class Planted:
    """A planted anomaly: its key, its first and last bucket, and its size."""

    kind: str
    key: str
    first: int
    last: int
    share: float = 1.0
    """How much of the usual traffic is left."""
    extra: float = 0.0
    """Records a bucket that come on top of it."""


@dataclass(frozen=True)
class Traffic:
    """What is in the stream: everything follows from these numbers."""

    seed: int = 1
    records: int = 500_000
    days: int = 3
    width: int = 5 * MINUTE
    queries: int = 10_000
    outage: Literal["offline", "delayed"] = "offline"
    """Whether the region's queries of that time are not there, or come late."""
    planted: tuple[Planted, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "planted", _plant(self))

    @property
    def buckets(self) -> int:
        """How many there are."""
        return self.days * DAY // self.width

    @property
    def rate(self) -> float:
        """Records in a bucket, on average."""
        return self.records / self.buckets

    def hour(self, bucket: int) -> float:
        """The time of day that a bucket begins at."""
        return bucket * self.width % DAY / DAY * _HOURS


def name(rank: int) -> str:
    """The query of a rank.

    >>> name(0), name(16)
    ('cat videos', 'television listings 1')
    """
    word = _WORDS[rank % len(_WORDS)]
    return word if rank < len(_WORDS) else f"{word} {rank // len(_WORDS)}"


def region_key(record: Record) -> str:
    """The key to count a region's queries by, which is no query."""
    return f"region {record.value['region']}"


def _plant(traffic: Traffic) -> tuple[Planted, ...]:
    """Chooses keys and times, one anomaly a key: dips only where there is traffic."""
    rng = random.Random(f"plan {traffic.seed}")
    a_day, last = DAY // traffic.width, traffic.buckets
    length = max(a_day // 36, 6)
    planted = []
    ranks = rng.sample(range(20, 3_000), 5)
    for rank in ranks:
        first = rng.randrange(a_day + a_day // 8, last - 3 * length)
        planted.append(Planted("spike", name(rank), first, first + length, extra=0.06 * traffic.rate))
    for query in ("earthquake", "who won"):  # nobody has asked for these before
        first = rng.randrange(a_day + a_day // 8, last - 3 * length)
        planted.append(Planted("spike", query, first, first + length, extra=0.06 * traffic.rate))
    for rank in rng.sample(range(5), 3):
        first = _busy(traffic, rng, rank, length)
        planted.append(Planted("dip", name(rank), first, first + length, share=0.0))
    first = _busy(traffic, rng, 0, 2 * length)
    planted.append(Planted("dip", "region eg", first, first + 2 * length, share=0.0))
    return tuple(sorted(planted, key=lambda anomaly: anomaly.first))


def _busy(traffic: Traffic, rng: random.Random, rank: int, length: int) -> int:
    """A bucket of a later day with some hours of traffic before it and behind."""
    a_day = DAY // traffic.width
    day = rng.randrange(1, traffic.days)
    hour = _PEAKS[rank % len(_PEAKS)] - 4 + rng.random() * 5
    return min(int((day + hour / _HOURS) * a_day), traffic.buckets - 2 * length)


class Queries(Injector):
    """The traffic, by region. An offset is a number of buckets of arrival."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        outage = [anomaly for anomaly in traffic.planted if anomaly.key.startswith("region ")]
        self._outages = {anomaly.key.removeprefix("region "): anomaly for anomaly in outage}

    def poll(self) -> Mapping[str, Offset]:
        return dict.fromkeys(REGIONS, self.traffic.buckets + DELAY)

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        # As many buckets for every region: those with little traffic do not run ahead.
        share = records * len(REGIONS) / self.traffic.rate
        return min((start or 0) + max(int(share), 1), end)

    def size(self, partition: str, start: Offset, end: Offset) -> int:
        return int((end - (start or 0)) * self.traffic.rate * REGIONS[partition])

    def low_watermark(self, partition: str, offset: Offset) -> int:
        bucket = offset or 0
        if bucket >= self.traffic.buckets + DELAY:
            return MAX_TIME
        oldest = bucket - DELAY
        outage = self._outages.get(partition)
        if self.traffic.outage == "delayed" and outage is not None and outage.first < bucket <= outage.last:
            oldest = min(oldest, outage.first)
        return START + oldest * self.traffic.width

    def read_batches(self, partition: str, start: Offset, end: Offset) -> Iterable[RecordBatch]:
        width = self.traffic.width
        begin, first, last = start or 0, START + (start or 0) * width, START + end * width
        outage = self._outages.get(partition)
        if self.traffic.outage == "delayed" and outage is not None and begin <= outage.last < end:
            begin = min(begin, outage.first + DELAY)
        for bucket in range(begin - DELAY, end):
            arrivals = [
                (arrival, time, query)
                for arrival, time, query in self._asked(partition, bucket)
                if first <= arrival < last
            ]
            arrivals.sort()
            values = [{"query": query, "region": partition} for _, _, query in arrivals]
            yield RecordBatch([time for _, time, _ in arrivals], values)

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[Record]:
        for batch in self.read_batches(partition, start, end):
            yield from map(Record, batch.values, batch.timestamps)

    def _asked(self, region: str, bucket: int) -> Iterable[tuple[int, int, str]]:
        """The queries of a region that were asked in a bucket: (arrival, time, query)."""
        traffic = self.traffic
        if not 0 <= bucket < traffic.buckets:
            return
        rng = random.Random(f"{traffic.seed} {region} {bucket}")
        begin, arrival = START + bucket * traffic.width, 0
        outage = self._outages.get(region)
        if outage is not None and outage.first <= bucket < outage.last:
            if traffic.outage == "offline":
                return
            arrival = START + outage.last * traffic.width
        for query in self._queries(rng, bucket, REGIONS[region]):
            time = begin + int(rng.random() * traffic.width)
            delay = int(rng.random() ** 3 * DELAY * traffic.width)
            yield max(time + delay, arrival), time, query

    def _queries(self, rng: random.Random, bucket: int, share: float) -> Iterable[str]:
        traffic = self.traffic
        names, cumulated, factor = _popularity(traffic.queries, int(traffic.hour(bucket)))
        asked = rng.choices(names, cum_weights=cumulated, k=_poisson(rng, traffic.rate * share * factor))
        here = [anomaly for anomaly in traffic.planted if anomaly.first <= bucket < anomaly.last]
        gone = {anomaly.key for anomaly in here if anomaly.share == 0.0}
        extra = [[anomaly.key] * _poisson(rng, anomaly.extra * share) for anomaly in here]
        return itertools.chain((query for query in asked if query not in gone), *extra)


@functools.cache
def _popularity(queries: int, hour: int) -> tuple[list[str], list[float], float]:
    """The queries, their cumulated weights in an hour, and the traffic of that hour."""
    swings = [1.0 + _SWING * math.cos((hour + 0.5 - peak) / _HOURS * 2 * math.pi) for peak in _PEAKS]
    usual = [1.0 / (rank + 1) for rank in range(queries)]
    weights = [weight * swings[rank % len(_PEAKS)] for rank, weight in enumerate(usual)]
    cumulated = list(itertools.accumulate(weights))
    return [name(rank) for rank in range(queries)], cumulated, cumulated[-1] / sum(usual)


def _poisson(rng: random.Random, mean: float) -> int:
    if mean > 30.0:
        return max(round(rng.gauss(mean, math.sqrt(mean))), 0)
    limit, number, product = math.exp(-mean), 0, rng.random()
    while product > limit:
        number += 1
        product *= rng.random()
    return number
