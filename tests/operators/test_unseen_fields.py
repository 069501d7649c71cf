"""A field that none of the first 1,000 records of a stream has is a warning, with the fields there are."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.field_warnings import FieldWarnings
from millwheel.watch import text
from millwheel.watch.view import look
from tests.operators.feeding import source

WINDOWS = {
    "columns": (mw.windows.tumbling(1_000_000), {}),
    "lateness": (mw.windows.tumbling(1_000_000), {"lateness": 5}),
    "session": (mw.windows.session(10), {}),
}


def send(h: mw.testing.Harness, count: int, value: dict[str, Any]) -> None:
    with h.epoch():
        for number in range(count):
            h.send("orders", value, timestamp=number)


def misspelt(kind: str = "columns") -> mw.testing.Harness:
    window, options = WINDOWS[kind]
    p = mw.Pipeline("fields")
    windowed = p.inject("orders", source()).key_by("user").window(window, **options)
    windowed.aggregate("sales", total=mw.agg.sum("prise"), n=mw.agg.count(), most=mw.agg.max("price"))
    return mw.testing.Harness(p)


WARNING = (
    "sales: none of the first 1,000 records of 'orders' has the field 'prise'; "
    "there are user, price (did you mean 'price'?)"
)


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_field_that_no_record_had_is_warned_of_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    h = misspelt(kind)
    with caplog.at_level(logging.WARNING, "millwheel"):
        send(h, 999, {"user": "ann", "price": 3})
        assert h.status().warnings == []
        send(h, 1, {"user": "ann", "price": 3})
        send(h, 1_500, {"user": "ann", "price": 3})
    assert h.status().warnings == [WARNING]
    assert [record.getMessage() for record in caplog.records] == [WARNING]
    assert WARNING in str(h.status())
    view = look(h.store, 0)
    assert view.warnings == [WARNING]
    assert f"warning: {WARNING}" in text.status(view)


def test_a_field_that_one_record_had_is_not_warned_of() -> None:
    h = misspelt()
    send(h, 600, {"user": "ann", "price": 3})
    send(h, 1, {"user": "bob", "prise": None})
    send(h, 2_000, {"user": "ann", "price": 3})
    assert h.status().warnings == []


def test_the_field_of_a_ranking_and_nested_ones_are_checked_and_functions_are_not() -> None:
    p = mw.Pipeline("fields")
    orders = p.inject("orders", source())
    orders.top("best", 2, by="amount", window=mw.windows.tumbling(1_000_000))
    orders.key_by("user.id").window(mw.windows.tumbling(1_000_000)).aggregate(
        "sales", city=mw.agg.distinct("shop.town"), there=mw.agg.first("user.id"), own=mw.agg.sum(len)
    )
    h = mw.testing.Harness(p)
    send(h, 1_000, {"user": {"id": 1}})
    assert sorted(h.status().warnings) == [
        "best: none of the first 1,000 records of 'orders' has the field 'amount'; there are user.id",
        "sales: none of the first 1,000 records of 'orders' has the field 'shop.town'; there are user.id",
    ]


def test_a_key_that_no_record_has_is_warned_of_where_such_records_are_diverted() -> None:
    injector = source()
    injector.errors = "divert"
    p = mw.Pipeline("fields")
    p.inject("orders", injector).key_by("usr").window(mw.windows.tumbling(10)).count("n")
    h = mw.testing.Harness(p)
    send(h, 1_000, {"user": "ann"})
    assert h.status().warnings == [
        "n: none of the first 1,000 records of 'orders' has the field 'usr'; there are user "
        "(did you mean 'user'?)"
    ]


def test_what_each_process_has_seen_is_added_up() -> None:
    def news(without: int) -> list[Any]:
        names = ["user", "price"] if without else []
        return ["sales", "orders", "prise", without, names]

    found = FieldWarnings()
    found.add([news(600), news(400)])
    assert list(found.texts.values()) == [WARNING]
    found = FieldWarnings()
    found.add([news(600), news(0)])
    found.add([news(600)])
    assert found.texts == {}


def test_once_all_fields_were_seen_no_record_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from millwheel.worker import unseen_fields

    checked: list[str] = []
    real = unseen_fields.has_field

    def counting(value: Any, field: str) -> bool:
        checked.append(field)
        return real(value, field)

    monkeypatch.setattr(unseen_fields, "has_field", counting)
    h = misspelt()
    send(h, 50, {"user": "ann", "price": 3, "prise": 1})
    send(h, 50, {"user": "ann"})
    assert sorted(checked) == ["price", "prise", "user"]
