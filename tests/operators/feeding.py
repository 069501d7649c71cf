"""Feeds random input to a pipeline in the harness: any order, any cutting into epochs, with crashes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import millwheel as mw

Row = tuple[str, Any, int]
"""A record: stream, value, timestamp."""


def source() -> mw.Injector:
    """An injector that the harness stands in for."""
    return mw.injectors.Records([])


def rows(
    seed: int, streams: list[str], *, count: int = 40, span: int = 120, keys: int = 3, ties: bool = True
) -> list[Row]:
    """Random records in random order; without ``ties`` each has a timestamp of its own."""
    rng = random.Random(seed)
    times = None if ties else random.Random(seed).sample(range(span), count)
    return [
        (
            rng.choice(streams),
            {
                "k": f"k{rng.randrange(keys)}",
                "n": rng.randrange(10),
                "i": number,
                "o": rng.choice([None, 1, 2]),
            },
            rng.randrange(span) if times is None else times[number],
        )
        for number in range(count)
    ]


def feed(
    pipeline: mw.Pipeline, found: list[Row], seed: int, *, slots: int = 1, lateness: int = 0
) -> mw.testing.Harness:
    """Sends everything, nothing of it later than ``lateness``, and drains; crashes happen on the way."""
    rng = random.Random(seed)
    h = mw.testing.Harness(pipeline, seed=seed, slots=slots)
    left = list(enumerate(found))
    # Some disorder, bounded, so that watermarks can follow.
    left.sort(key=lambda pair: pair[1][2] + rng.randrange(30))
    streams = {stream for stream, _, _ in found}
    while left:
        with h.epoch():
            for _ in range(rng.randrange(1, 8)):
                if left:
                    number, (stream, value, time) = left.pop(0)
                    h.send(stream, value, time, id=number if rng.random() < 0.5 else None)
            for stream in streams:
                waiting = [time for _, (name, _, time) in left if name == stream]
                if waiting and rng.random() < 0.7:
                    h.advance(stream, min(waiting) + rng.randrange(lateness + 3) - 2)
        if rng.random() < 0.1:
            h.crash()
        if rng.random() < 0.2:
            h.advance_wall(rng.randrange(200))
    h.drain()
    assert h.status().dropped == dict.fromkeys(h.status().dropped, 0)
    return h


def finals(h: mw.testing.Harness, stream: str) -> list[dict[str, Any]]:
    """Of each key and window the last revision, without its number.

    A window replaces what was emitted of its key within it, such as the sessions that it was merged from.
    """
    last: dict[tuple[str, int, int], dict[str, Any]] = {}
    for record in h.output(stream):
        value = record.value
        start, end = value["start"], value["end"]
        assert record.timestamp == end - 1
        assert value.get("key", "") == record.key
        within = [p for p in last if p[0] == record.key and start <= p[1] and p[2] <= end]
        replaced = [last.pop(place) for place in within]
        if "revision" in value:
            assert value["revision"] == 1 + max((earlier["revision"] for earlier in replaced), default=-1)
        else:
            assert replaced == []
        last[record.key, start, end] = value
    values = [
        {field: found for field, found in value.items() if field != "revision"} for value in last.values()
    ]
    return sorted(values, key=lambda value: (value.get("key", ""), value["start"], value["end"]))


Query = Callable[[list[Row]], list[dict[str, Any]]]


def by_key(found: list[Row]) -> Mapping[str, list[Row]]:
    """The records of each key."""
    groups: dict[str, list[Row]] = {}
    for row in found:
        groups.setdefault(row[1]["k"], []).append(row)
    return groups
