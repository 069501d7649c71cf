"""Unpaid orders: those without a payment in the ten minutes after them."""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    orders, payments = p.stream("orders").key_by("order"), p.stream("payments").key_by("order")
    paid = orders.join(payments, within=(0, 10 * mw.MINUTE), how="left", name="paid")
    return paid.filter(lambda pair: pair["right"] is None).map(lambda pair: pair["left"])


INPUT = {
    "orders": [(0, {"order": 1}), (60, {"order": 2}), (120, {"order": 3})],
    "payments": [(300, {"order": 1}), (661, {"order": 2})],
}

RESULT = [
    {"order": 2},
    {"order": 3},
]
