"""A query as a pipeline: its streams, its computations, and a sink for the results.

millwheel run examples.nexmark.pipeline:hot_items --store state --drain
"""

from __future__ import annotations

from collections.abc import Mapping

import millwheel as mw
from examples.nexmark import source
from examples.nexmark.events import House, Kind
from examples.nexmark.operators import OPERATORS, Written
from examples.nexmark.queries import QUERIES, Query

MAX_SKEW = mw.MINUTE
"""Auctions are few and bids are many: without a limit, those of a day are read before the bids of its first
hour, and wait in the store. For `millwheel.run`, as its option ``max_skew``."""


def pipeline(
    query: str, sources: Mapping[Kind, mw.Injector], sink: mw.Sink, *, operators: bool = False
) -> mw.Pipeline:
    """One of the queries, over injectors of the kinds of events that it reads."""
    written = found(query, operators=operators)
    p = mw.Pipeline(f"nexmark-{query}")
    for stream in written.STREAMS:
        p.inject(stream, sources[stream])
    written.add(p)
    p.sink("results", sink)
    return p


def found(query: str, *, operators: bool) -> Query | Written:
    """A query by its name: written by hand, or in operators, as are those that nobody wrote by hand."""
    if query not in OPERATORS:
        raise ValueError(f"there is no query {query!r}: there are {', '.join(OPERATORS)}")
    return OPERATORS[query] if operators or query not in QUERIES else QUERIES[query]


def hot_items() -> mw.Pipeline:
    """Query 5 over 100 seconds of events: for the command line."""
    return pipeline("q5", source.made(House(count=100_000)), mw.sinks.JsonLines("hot-items"))
