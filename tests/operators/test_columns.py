"""Windows kept as columns do what windows with a row for each key do, and what a batch query does."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

import millwheel as mw
from millwheel.operators import foldings
from millwheel.worker import key_codes, route
from millwheel.worker.key_codes import fingerprints_of
from tests.operators.feeding import source

KEYS = ["a", "b", "c", "key" * 200, "ü", "\ud800"]
FIELDS: dict[str, Any] = {
    "whole": lambda rng: rng.randrange(-5, 20),
    "broken": lambda rng: rng.choice([0.5, 1.25, -3.0, 7.5]),
    "mixed": lambda rng: rng.choice([1, 2.5, 7, -0.5]),
    "missing": lambda rng: rng.choice([None, 3, 8]),
    "large": lambda rng: rng.choice([2**61, -(2**61), 5]),
    "truth": lambda rng: rng.choice([True, False, 2]),
    "nan": lambda rng: rng.choice([1.0, math.nan, 2.5]),
    "text": lambda rng: rng.choice(["x", "yy", "z"]),
}
ADDED = ["whole", "broken", "mixed", "missing", "large", "truth", "nan"]


def drawn_aggregates(rng: random.Random) -> dict[str, Any]:
    """Aggregates over fields of all kinds, by name and by function."""
    makers: list[Any] = [
        lambda: mw.agg.count(),
        lambda: mw.agg.count(rng.choice(list(FIELDS))),
        lambda: mw.agg.sum(rng.choice(ADDED)),
        lambda: mw.agg.mean(rng.choice(ADDED)),
        lambda: mw.agg.min(rng.choice(list(FIELDS))),
        lambda: mw.agg.max(rng.choice(list(FIELDS))),
        lambda: mw.agg.sum(lambda value: value["whole"] * 2),
        lambda: mw.agg.max("inner.n"),
        lambda: mw.agg.min("absent"),
    ]
    return {f"f{number}": rng.choice(makers)() for number in range(rng.randrange(1, 5))}


class Drawn:
    """A pipeline of windows and what is done to it, by a seed."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.size = rng.choice([7, 10, 25])
        self.every = rng.choice([self.size, self.size, 4, self.size + 5])
        self.offset = rng.choice([0, 3]) if self.every == self.size else 0
        self.aggregates = drawn_aggregates(rng)
        self.steps = rng.choice(["", "", "map", "filter", "function", "union"])
        self.behind = rng.random() < 0.4
        self.options: dict[str, Any] = {
            "slots": rng.choice([1, 2, 4]),
            "due_limit": rng.choice([1, 3, 10_000]),
            "step_budget": rng.choice([0.0, 1e9]),
        }
        self.late = rng.random() < 0.5
        self.ids = rng.choice([0.0, 0.0, 0.5])
        self.values = [
            {
                "k": rng.choice(KEYS),
                "inner": {"n": rng.randrange(9)},
                **{name: make(rng) for name, make in FIELDS.items()},
            }
            for _ in range(60)
        ]
        self.actions = list(self._actions(rng))

    def _actions(self, rng: random.Random) -> Any:
        """Epochs: what is sent in each, how far the watermark comes, and what happens behind it."""
        order = sorted(range(len(self.values)), key=lambda number: number + rng.randrange(20))
        times = {number: number * 3 + rng.randrange(3) - 40 for number in order}
        while order:
            sent = []
            for number in order[: rng.choice([1, 4, 15])]:
                order.remove(number)
                sent.append((number, times[number], number if rng.random() < self.ids else None))
                if sent[-1][2] is not None and rng.random() < 0.3:
                    sent.append(sent[-1])
            oldest = min((times[number] for number in order), default=10**6)
            mark = oldest + rng.randrange(25) if self.late else oldest
            what = rng.choices(["", "crash", "reopen"], [8, 1, 0.5])[0]
            yield sent, mark if rng.random() < 0.7 else None, what

    def pipeline(self) -> mw.Pipeline:
        p = mw.Pipeline("drawn")
        stream = p.inject("in", source())
        if self.steps == "map":
            stream = stream.map(lambda value: {**value, "whole": value["whole"] + 1})
        elif self.steps == "filter":
            stream = stream.filter(lambda value: value["whole"] % 3 != 0)
        elif self.steps == "union":
            stream = stream.union(p.inject("other", source()))
        keyed = stream.key_by((lambda value: value["k"]) if self.steps == "function" else "k")
        window = (
            mw.windows.tumbling(self.size, self.offset)
            if self.every == self.size
            else mw.windows.sliding(self.size, self.every)
        )
        out = keyed.window(window).aggregate("out", **self.aggregates)
        if self.behind:
            out.key_by("key").window(mw.windows.tumbling(self.size * 3)).aggregate(
                "again", n=mw.agg.count(), total=mw.agg.sum("f0") if self.adds("f0") else mw.agg.count("f0")
            )
        return p

    def adds(self, name: str) -> bool:
        return type(self.aggregates[name]).__name__ in ("Count", "Mean")

    def run(self) -> dict[str, Any]:
        """All that can be seen of it."""
        h = mw.testing.Harness(self.pipeline(), seed=1, **self.options)
        seen: list[Any] = []
        for sent, mark, what in self.actions:
            with h.epoch():
                for number, time, id in sent:
                    h.send("in", self.values[number], time, id=id)
                if mark is not None:
                    for stream in ("in", "other") if self.steps == "union" else ("in",):
                        h.advance(stream, mark)
            if what:
                getattr(h, what)()
            names = ("out", "again") if self.behind else ("out",)
            for name in names:
                seen.append([h.low_watermark(name)])
                seen.append({key: (shown(h.state(name, key)), h.timers(name, key)) for key in KEYS})
        h.drain()
        status = h.status()
        counts = [
            status.records,
            status.late,
            status.dropped,
            status.duplicates,
            status.produced,
            status.streams,
        ]
        by_key: dict[Any, list[Any]] = {}
        for name in names:
            for record in h.output(name):
                by_key.setdefault((name, record.key), []).append((record.timestamp, shown(record.value)))
        return {"seen": seen, "counts": counts, "output": by_key}

    def batch(self) -> list[dict[str, Any]]:
        """The same query, written naively: a late record is in those of its windows that have not ended."""
        rows: dict[int, tuple[int, int]] = {}
        watermark = mw.MIN_TIME
        for sent, mark, _ in self.actions:
            rows |= {number: (time, watermark) for number, time, _ in sent}
            watermark = watermark if mark is None else max(watermark, mark)
        windows: dict[tuple[str, int], list[tuple[Any, int]]] = {}
        for number, (time, watermark) in rows.items():
            value = self.values[number]
            if self.steps == "map":
                value = {**value, "whole": value["whole"] + 1}
            if self.steps == "filter" and value["whole"] % 3 == 0:
                continue
            first = (time - self.offset - self.size) // self.every * self.every + self.offset
            for start in range(first, time + 1, self.every):
                if start <= time < start + self.size and start + self.size > watermark:
                    windows.setdefault((value["k"], start), []).append((value, time))
        found = []
        for (key, start), mine in windows.items():
            result = {"key": key, "start": start, "end": start + self.size}
            for name, aggregate in self.aggregates.items():
                so_far = aggregate.create()
                for value, time in mine:
                    so_far = aggregate.add(so_far, value, time)
                result[name] = aggregate.result(so_far)
            found.append(result)
        return found


def shown(value: Any) -> Any:
    """A value, with its types, and floats up to rounding."""
    if isinstance(value, dict):
        return {key: shown(part) for key, part in value.items()}
    if isinstance(value, list):
        return [shown(part) for part in value]
    if isinstance(value, float):
        return ("float", "NaN" if math.isnan(value) else round(value, 6))
    return (type(value).__name__, value)


def essence(values: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(value.items())) for value in values)


@pytest.mark.parametrize("seed", range(120))
def test_columns_rows_by_key_and_a_batch_query_give_the_same(seed: int, monkeypatch: Any) -> None:
    if seed % 3:  # few records are sent as they are
        monkeypatch.setattr(route, "WORTH_IT", 1)
    if seed % 5 == 0:  # keys of a tablet all have one fingerprint
        monkeypatch.setattr(key_codes, "fingerprints_of", lambda keys: fingerprints_of(keys) >> 58 << 58)
    if seed % 2:
        monkeypatch.setattr(key_codes, "MANY", 1)
    drawn = Drawn(seed)
    columns = drawn.run()
    monkeypatch.setattr(foldings, "BY_COLUMNS", False)
    by_key = drawn.run()
    assert columns["counts"] == by_key["counts"]
    assert columns["output"] == by_key["output"]
    if drawn.options["due_limit"] == 10_000 and drawn.options["step_budget"]:
        assert columns["seen"] == by_key["seen"]
    windows = [
        value for (name, _), values in columns["output"].items() if name == "out" for _, value in values
    ]
    assert essence(windows) == essence(list(map(shown, drawn.batch())))


def test_windows_that_are_kept_as_columns_are_those_whose_aggregates_are_numbers() -> None:
    p = mw.Pipeline("forms")
    keyed = p.inject("in", source()).key_by("k")
    keyed.window(mw.windows.tumbling(10)).count("columns")
    keyed.window(mw.windows.tumbling(10), lateness=1).count("lateness")
    keyed.window(mw.windows.tumbling(10), early=1).count("early")
    keyed.window(mw.windows.tumbling(10), late="divert").count("divert")
    keyed.window(mw.windows.session(10)).count("session")
    keyed.window(mw.windows.tumbling(10)).aggregate("different", n=mw.agg.count(), d=mw.agg.distinct("x"))
    found = {name: getattr(node.computation, "_folding", None) for name, node in p.nodes.items()}
    assert [name for name, folding in found.items() if folding is not None] == ["columns"]
