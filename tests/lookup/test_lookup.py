"""`Stream.lookup` adds the row of a side table to each value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import millwheel as mw
from tests.conftest import MakeHarness

USERS = [{"id": 1, "name": "Ann", "tags": ["a"]}, {"id": 2, "name": "Ben", "tags": []}]


def _pipeline(table: Any = USERS, **terms: Any) -> mw.Pipeline:
    p = mw.Pipeline("enriched")
    clicks = p.inject("clicks", mw.injectors.Records([]))
    clicks.lookup(table, **{"on": {"user": "id"}, **terms}).named("found")
    return p


def _found(h: mw.testing.Harness, *values: Any) -> list[Any]:
    for value in values:
        h.send("clicks", value, timestamp=1)
    return [record.value for record in h.output("found")]


def test_the_columns_of_the_row_become_fields_of_the_value(harness: MakeHarness) -> None:
    found = _found(harness(_pipeline()), {"user": 2, "page": "/"}, {"user": "1"})
    assert found == [
        {"user": 2, "page": "/", "name": "Ben", "tags": []},
        {"user": "1", "name": "Ann", "tags": ["a"]},
    ]


def test_a_value_without_a_row_gets_none_for_each_column() -> None:
    h = mw.testing.Harness(_pipeline())
    nothing = {"name": None, "tags": None}
    assert _found(h, {"user": 3}, {"user": None}, {}) == [
        {"user": 3, **nothing},
        {"user": None, **nothing},
        nothing,
    ]


def test_or_is_dropped() -> None:
    h = mw.testing.Harness(_pipeline(missing="drop"))
    assert _found(h, {"user": 3}, {"user": 1}, {"user": None}) == [{"user": 1, "name": "Ann", "tags": ["a"]}]


def test_the_row_can_be_one_field_and_columns_can_be_chosen() -> None:
    h = mw.testing.Harness(_pipeline(into="who", columns=["name"]))
    assert _found(h, {"user": 1}, {"user": 9}) == [
        {"user": 1, "who": {"name": "Ann"}},
        {"user": 9, "who": None},
    ]


def test_a_row_is_named_by_several_fields_and_by_nested_ones() -> None:
    table = [{"country": "de", "city": "Bonn", "people": 3}, {"country": "de|Bonn", "city": "", "people": 4}]
    h = mw.testing.Harness(_pipeline(table, on={"at.country": "country", "at.city": "city"}))
    assert _found(h, {"at": {"country": "de", "city": "Bonn"}})[0]["people"] == 3


def test_fields_with_the_names_of_columns_are_enough() -> None:
    h = mw.testing.Harness(_pipeline(on="id"))
    assert _found(h, {"id": 1})[0]["name"] == "Ann"


def test_what_a_function_does_to_a_row_is_not_seen_by_the_next_record() -> None:
    p = mw.Pipeline("enriched")

    def spoil(value: Any) -> Any:
        value["tags"].append("spoilt")
        return value

    clicks = p.inject("clicks", mw.injectors.Records([]))
    clicks.lookup(USERS, on={"user": "id"}).map(spoil).named("found")
    h = mw.testing.Harness(p)
    assert [value["tags"] for value in _found(h, {"user": 1}, {"user": 1})] == [["a", "spoilt"]] * 2


def test_a_keyed_stream_keeps_its_key_and_what_is_found_can_be_counted() -> None:
    p = mw.Pipeline("enriched")
    clicks = p.inject("clicks", mw.injectors.Records([]))
    keyed = clicks.key_by("page").lookup(USERS, on={"user": "id"}, missing="drop")
    keyed.window(mw.windows.tumbling(mw.SECOND)).count("counts")
    h = mw.testing.Harness(p)
    for user in (1, 2, 3):
        h.send("clicks", {"user": user, "page": "/"}, timestamp=1)
    h.drain()
    assert [(record.key, record.value["count"]) for record in h.output("counts")] == [("/", 2)]


def test_rows_come_from_a_function_or_a_table_of_arrow() -> None:
    h = mw.testing.Harness(_pipeline(lambda: pa.table({"id": [1], "name": ["Ann"]})))
    assert _found(h, {"user": 1}) == [{"user": 1, "name": "Ann"}]


def test_a_field_that_value_and_table_both_have_is_an_error_of_that_record() -> None:
    p = mw.Pipeline("enriched")
    clicks = p.inject("clicks", mw.injectors.Records([]))
    clicks.lookup(USERS, on={"user": "id"}).named("found")
    with pytest.raises(mw.UserCodeError, match=r"both have name: choose columns=.*into="):
        _found(mw.testing.Harness(p), {"user": 1, "name": "mine"})


@pytest.mark.parametrize(
    ("value", "message"),
    [("text", "is a dict, not a str"), ({"user": 1.5}, "'user' is 1.5: a lookup's key is made of texts")],
)
def test_a_value_that_names_no_row_is_an_error_of_that_record(value: Any, message: str) -> None:
    with pytest.raises(mw.UserCodeError, match=message):
        _found(mw.testing.Harness(_pipeline()), value)


@pytest.mark.parametrize(
    ("table", "terms", "message"),
    [
        ("users.parquet", {}, r"not 'users.parquet'; for files write millwheel.lookups.Parquet"),
        ({"id": 1}, {}, "takes a table of millwheel.lookups"),
        (USERS, {"on": []}, "on takes names"),
        (USERS, {"on": {"user": 1}}, "on takes names"),
        (USERS, {"missing": "ignore"}, 'missing is "keep" or "drop"'),
        (USERS, {"refresh": 0}, "refresh"),
        (USERS, {"into": ""}, "into is the name of a field"),
        (USERS, {"columns": [1]}, "columns takes names"),
    ],
)
def test_a_mistake_is_refused_when_it_is_made(table: Any, terms: dict[str, Any], message: str) -> None:
    with pytest.raises(mw.PipelineError, match=message):
        _pipeline(table, **terms)


def _raises() -> Any:
    raise OSError("the disk is on fire")


@pytest.mark.parametrize(
    ("table", "terms", "message"),
    [
        (
            _raises,
            {},
            r"lookup 'clicks.lookup': the table _raises cannot be read \(OSError: the disk",
        ),
        (lambda: 5, {}, "rows are a list of dicts, not 5"),
        (USERS, {"on": "user"}, "has no column 'user', which on= names; it has id, name, tags"),
        ([{"id": 1}, {"id": "1"}], {}, "has two rows for id = '1'"),
        ([{"id": 1.5}], {}, "'id' is 1.5: a lookup's key is made of texts and integers"),
        ([{"id": 1, "x": object()}], {}, "has a value that cannot be encoded"),
        (USERS, {"columns": ["nome"]}, "the table has no column 'nome', which columns= names; it has name"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(table: Any, terms: dict[str, Any], message: str) -> None:
    with pytest.raises(mw.InputError, match=message):
        _found(mw.testing.Harness(_pipeline(table, **terms)), {"user": 1})
