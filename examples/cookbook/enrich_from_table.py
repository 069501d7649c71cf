"""Enrichment from a table: each order with the country of its customer.

The table is a function that reads a file here; it may be a list, a DataFrame or one of `mw.lookups`. It is
read again every hour.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import millwheel as mw

TABLE = Path(__file__).with_name("customers.csv")


def customers() -> list[dict[str, Any]]:
    """The rows of the file."""
    with TABLE.open() as lines:
        return list(csv.DictReader(lines))


def query(p: mw.Pipeline) -> mw.Stream:
    return p.stream("orders").lookup(customers, on="customer", refresh=mw.HOUR)


INPUT = {
    "orders": [
        (0, {"order": 1, "customer": "ann"}),
        (5, {"order": 2, "customer": "zoe"}),
    ]
}

RESULT = [
    {"order": 1, "customer": "ann", "country": "de"},
    {"order": 2, "customer": "zoe", "country": None},
]
