"""Operators among the drawn computations: windows of every kind, joins, `distinct` and `top`.

The engine runs them as it runs any pipeline's, those that it can as columns. The reference calls their hooks
record by record, with what it has for a hook: so the columns are compared with the hooks, and both with what
the contract says of late records, timers, holds and watermarks.
"""

from __future__ import annotations

import copy
import random
from typing import Any, Literal, cast

import millwheel as mw
from millwheel.model.record import Record
from millwheel.model.timer import Timer
from millwheel.operators.deduplication import First, Spaced
from millwheel.operators.folds import Aggregate, Collect, Count, Reduce
from millwheel.operators.joining import Join
from millwheel.operators.ranking import Ranking
from millwheel.operators.windowing import Shape, windows
from tests.differential.behaviour import number
from tests.differential.case import NodeSpec
from tests.differential.keys import Hand

Late = Literal["drop", "divert"]


def largest(a: Any, b: Any) -> Any:
    """A function of two values that does not care about their order."""
    return max(a, b, key=lambda value: (number(value), repr(value)))


def operator(spec: NodeSpec) -> mw.Computation:
    """The computation of a drawn operator: a function of its seed."""
    chance = random.Random(spec.seed)
    name, kind = spec.outputs[0], spec.kind
    if kind == "join":
        before, after = chance.choice(((5, 5), (0, 12), (9, 3), (-2, 8), (0, 0)))
        return Join(name, sorted(spec.inputs)[-1], before, after, how_of(spec))
    if kind == "distinct":
        return First(name) if chance.random() < 0.5 else Spaced(name, chance.choice((0, 4, 15)))
    window = window_of(spec)
    if kind == "top":
        shape = Shape(name, {"top": Ranking(number, top_of(spec))}, keyed=False, by_window=False)
        return windows(window, shape)
    lateness = chance.choice((0, 0, 0, 8, 30))
    early = chance.choice((None, None, None, 5))
    shape = Shape(name, _aggregates(chance, ordered=spec.ordered), lateness, early)
    return windows(window, shape, spec.late)


def window_of(spec: NodeSpec) -> Any:
    """The windows of a ranking or an aggregate."""
    found: list[Any] = [
        mw.windows.tumbling(10),
        mw.windows.tumbling(7, offset=3),
        mw.windows.sliding(12, 4),
        mw.windows.sliding(10, 4),
        mw.windows.sliding(4, 9),
    ]
    if (
        spec.ordered or spec.kind == "top"
    ):  # which of two late records came first decides what they are late for
        found += [mw.windows.session(6), mw.windows.session(6), mw.windows.session(15)]
    return random.Random(spec.seed + 2).choice(found)


def top_of(spec: NodeSpec) -> int:
    """How many a ranking has."""
    return 1 + spec.seed % 3


def how_of(spec: NodeSpec) -> str:
    """How a join treats records without a partner; by it, whether it holds its watermark."""
    return random.Random(spec.seed + 1).choice(("left", "right", "outer")) if spec.holds else "inner"


def _aggregates(chance: random.Random, *, ordered: bool) -> dict[str, Aggregate]:
    columns: dict[str, Aggregate] = {
        "count": Count(None),
        "have": mw.agg.count("n"),
        "total": mw.agg.sum("n"),
        "least": mw.agg.min("n"),
        "most": mw.agg.max("n"),
        "mean": mw.agg.mean("n"),
        "numbers": mw.agg.sum(number),
    }
    rows: dict[str, Aggregate] = {
        "different": mw.agg.distinct("n"),
        "about": mw.agg.approx_distinct("n"),
        "median": mw.agg.quantile("n", 0.5),
        "best": mw.agg.top("n", 2),
        "value": Reduce(largest),
    }
    if ordered:  # ties go by arrival
        rows |= {"first": mw.agg.first("n"), "last": mw.agg.last("n"), "values": Collect()}
    found = dict(chance.sample(sorted(columns.items()), chance.randrange(1, 4)))
    if chance.random() < 0.5:
        found |= dict(chance.sample(sorted(rows.items()), chance.choice((1, 1, 2))))
    return found


class OnHand:
    """A computation's hooks, with the reference's accessors below them."""

    def __init__(self, computation: mw.Computation, hand: Hand) -> None:
        self._hand = hand
        self._copy = copy.copy(computation)
        self._copy.__dict__ |= {"_context": self, "key": hand.key, "now": hand.now}
        self._copy.low_watermark = hand.low_watermark

    def run(self, what: Record | Timer) -> None:
        """Calls a hook."""
        if isinstance(what, Record):
            self._copy.process_record(what)
        else:
            self._copy.process_timer(what)
        self._keep()

    def accepts_late(self, record: Record) -> bool:
        """Whether a late record still belongs somewhere."""
        accepts = getattr(self._copy, "_accepts_late", None)
        found = accepts is not None and accepts(record)
        self._keep()
        return cast(bool, found)

    def _keep(self) -> None:
        if "state" in self._copy.__dict__:
            self._hand.state = self._copy.__dict__["state"]

    def load_state(self) -> Any:
        self._copy.state = self._hand.state
        return self._copy.state

    def delete_state(self) -> None:
        self._copy.__dict__.pop("state", None)
        del self._hand.state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hand, name)
