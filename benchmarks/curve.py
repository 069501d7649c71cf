"""Latency under load: records a second from 100 to 50,000, one re-keyed stage and three, files and Kafka.

Every guarantee is on: IDs, strong productions, durable output. A record arrives when its output is on disk;
in Bytewax and PyFlink when it is at the sink, which is before anything of it is durable.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import latency, results, writer
from benchmarks.arrival import arrives
from benchmarks.peers import environments, followers
from benchmarks.pipelines import numbers

RATES = (100, 1_000, 10_000, 50_000)
_QUICK_RATES = (1_000,)
STAGES = (1, 3)
PERCENTILES = (50, 95, 99, 99.9)
_SECONDS = 10.0
_QUICK_SECONDS = 2.0
_GOALS = [(1_000, "p50", 10.0), (1_000, "p99", 30.0), (10_000, "p50", 20.0)]
"""Milliseconds, of one stage from files."""
_THREE_TO_ONE = 1.5
"""The most that three stages may cost of one, at 1,000 records/s."""
_WEAK_MOST = 6.0
"""Milliseconds, p50 at 1,000 records/s."""
MOST_TEXT = 500  # characters of a peer's error
OWN = "millwheel"
WEAK = "millwheel, weak, without IDs"
PEERS: dict[str, latency.Start] = {
    "transformWithState": followers.transform(),
    "Real-time Mode": followers.real_time,
    "Bytewax": followers.bytewax,
    "PyFlink, threads": followers.flink("thread"),
}

Point = dict[str, Any]


def measure(
    spark: SparkSession,
    work: Path,
    *,
    quick: bool,
    keep: Callable[[list[Point], dict[str, str]], None] = lambda points, absent: None,
) -> tuple[list[Point], dict[str, str]]:
    """A point for each source, number of stages and rate; and what could not be measured, with the reason.

    Whatever a system stops with is such a reason, and the others go on. ``keep`` gets what there is so far
    after each turn.
    """
    points: list[Point] = []
    absent: dict[str, str] = {}
    seconds = _QUICK_SECONDS if quick else _SECONDS
    rates = _QUICK_RATES if quick else RATES

    def turn(case: Point, start: latency.Start, target: writer.Target | None = None) -> bool:
        """Whether a higher rate is to be tried."""
        label = ", ".join(str(part) for part in case.values())
        name = re.sub(r"\W+", "-", label)  # for who reads URIs
        try:
            found = latency.turn(spark, work / name, start, seconds, rate=case["rate"], target=target)
        except environments.Unavailable as error:
            absent[case["system"]] = str(error)
        except TimeoutError as error:
            absent[label] = f"it did not keep up: {error}"
        except Exception as error:
            absent[label] = str(error)[:MOST_TEXT]
        else:
            points.append({**case, **summary(found)})
            print(f"{label}: p50 {points[-1]['p50']} ms", flush=True)
        keep(points, absent)
        return bool(points) and points[-1].items() >= case.items()

    with ExitStack() as stack:
        targets: dict[str, Callable[[], writer.Target | None]] = {"files": lambda: None}
        try:
            targets["Kafka"] = topics(stack)
        except Exception as error:  # no broker on this machine
            absent["Kafka"] = str(error)
        for source, target in targets.items():
            for rate in rates:
                for stages in STAGES:
                    case = {"system": OWN, "source": source, "stages": stages, "rate": rate}
                    turn(case, starter(stages, place := target()), place)
    turn({"system": WEAK, "source": "files", "stages": 1, "rate": 1_000}, starter(1, None, weak=True))
    for name, start in PEERS.items():
        for rate in rates:
            if not turn({"system": name, "source": "files", "stages": 1, "rate": rate}, start):
                break
    return points, absent


def summary(latencies: Sequence[float]) -> dict[str, Any]:
    """How many, and the percentiles, in milliseconds."""
    ordered = sorted(latencies)
    found = {f"p{percent}": round(latency.percentile(ordered, percent), 1) for percent in PERCENTILES}
    return {"records": len(ordered), **found}


def goals(points: Sequence[Point]) -> list[dict[str, Any]]:
    """What was aimed at, and what came of it; where it was measured."""
    own = [point for point in points if point["system"] == OWN]
    by = {(point["source"], point["stages"], point["rate"]): point for point in own}
    found = []
    for rate, name, most in _GOALS:
        point = by.get(("files", 1, rate))
        if point is not None:
            what = f"{name} at {rate:,} records/s"
            found.append({"what": what, "is": point[name], "most": most, "passed": point[name] <= most})
    one, three = by.get(("files", 1, 1_000)), by.get(("files", 3, 1_000))
    if one is not None and three is not None:
        ratio = round(three["p50"] / one["p50"], 2) if one["p50"] else math.inf
        what = "three stages to one, p50 at 1,000 records/s"
        found.append({"what": what, "is": ratio, "most": _THREE_TO_ONE, "passed": ratio <= _THREE_TO_ONE})
    for point in points:
        if point["system"] == WEAK:
            what = f"p50 of {WEAK} at {point['rate']:,} records/s"
            found.append(
                {"what": what, "is": point["p50"], "most": _WEAK_MOST, "passed": point["p50"] <= _WEAK_MOST}
            )
    return found


def show(points: Sequence[Point], reached: Sequence[dict[str, Any]]) -> None:
    """Prints the curve, what a record's arrival is, and the goals."""
    names = [f"p{percent}" for percent in PERCENTILES]
    rows = [
        [
            *(point[name] for name in ("system", "source", "stages")),
            arrives(point["system"]),
            f"{point['rate']:,}",
            *(point[name] for name in names),
        ]
        for point in points
    ]
    print(
        results.table(
            [
                "system",
                "source",
                "stages",
                "a record arrives",
                "records/s",
                *(f"{name} ms" for name in names),
            ],
            rows,
        )
    )
    for goal in reached:
        print(f"{results.verdict(goal['passed'])}  {goal['what']}: {goal['is']}, goal at most {goal['most']}")


def starter(stages: int, target: writer.Target | None, *, weak: bool = False) -> latency.Start:
    @contextmanager
    def start(spark: SparkSession, source: Path, out: Path, work: Path) -> Iterator[Callable[[], None]]:
        injector = None
        if isinstance(target, str):
            servers, topic = target.removeprefix("kafka://").split("/")
            injector = mw.injectors.Kafka(servers, topic, timestamp="time", unit="us", id="number")
        made = numbers.pipeline(source, out, stages=stages, injector=injector, weak=weak)
        with mw.start(made, store=work / "store", spark=spark, progress=False) as job:

            def check() -> None:
                job.status()

            yield check

    return start


def topics(stack: ExitStack) -> Callable[[], writer.Target]:
    """Makes a topic for each turn, on a broker of its own."""
    from tests.servers.kafka import broker

    found = stack.enter_context(broker())
    return lambda: f"kafka://{found.servers}/{found.make_topic(f'latency-{uuid.uuid4().hex}', 2)}"
