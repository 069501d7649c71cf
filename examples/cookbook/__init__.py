"""Twenty-one queries, a file each: what it answers, the query, input to try it on, and what comes out.

python -m examples.cookbook             # what there is
python -m examples.cookbook sessions    # runs one on Spark, and shows what comes out
"""

from __future__ import annotations

import importlib
from typing import Any

import millwheel as mw

RECIPES = (
    "sessions", "funnel", "top_pages", "deduplicate", "late_corrections", "early_totals",
    "enrich_from_table", "enrich_from_changes", "missing_heartbeat", "moving_average", "rate_limit",
    "stream_to_lake", "unique_visitors", "latency_percentiles", "unpaid_orders", "click_through",
    "first_purchase", "trending", "error_rate", "two_sources", "candles",
)  # fmt: skip


def recipe(name: str) -> Any:
    """The module of a recipe: ``query``, ``INPUT`` and ``RESULT``."""
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}: there are {', '.join(RECIPES)}")
    return importlib.import_module(f"examples.cookbook.{name}")


def pipeline(name: str, sink: mw.Sink) -> mw.Pipeline:
    """A recipe over its own input, with a sink for what comes out."""
    found = recipe(name)
    p = mw.Pipeline(name)
    for stream in found.INPUT:
        p.inject(stream, injector(found, stream))
    found.query(p).sink(sink)
    return p


def injector(found: Any, stream: str) -> mw.Injector:
    """The input of a stream, one record in an epoch; with ``LATE``, some come behind the watermark."""
    records = [mw.Record(value=value, timestamp=at * mw.SECOND) for at, value in found.INPUT[stream]]
    marks = None
    if getattr(found, "LATE", False):
        newest = [max(r.timestamp for r in records[: n + 1]) for n in range(len(records))]
        marks = [*newest[:-1], mw.MAX_TIME]
        return mw.injectors.Records(records, watermarks=marks, per_epoch=1)
    return mw.injectors.Records(records)


def title(name: str) -> tuple[str, str]:
    """What a recipe is, and what it answers: "A funnel", "of those who ..."."""
    what, _, answer = (recipe(name).__doc__ or "").partition("\n")[0].partition(": ")
    return what, answer
