"""Key extractors: the consumer of a stream says how its records are keyed (4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from tests.computations import Echo, Log, single, values
from tests.conftest import MakeHarness


@dataclass
class Query:
    text: str
    user: int


class Text(str):
    """A kind of str."""


def keys_of(h: mw.testing.Harness) -> list[str]:
    return [record.key for record in h.output("log")]


def log(key: Any, **options: Any) -> mw.Pipeline:
    return single(Log(), key=key, outputs=["log"], **options)


def test_by_takes_a_field_of_the_value(harness: MakeHarness) -> None:
    h = harness(log(mw.by("query")))
    h.send("in", {"query": "cat videos"}, timestamp=0)
    assert keys_of(h) == ["cat videos"]


@pytest.mark.parametrize(("field", "key"), [(7, "7"), (-1, "-1"), (0, "0"), (2**63, str(2**63)), ("", "")])
def test_an_int_becomes_its_decimal_text(field: Any, key: str, harness: MakeHarness) -> None:
    h = harness(log(mw.by("user")))
    h.send("in", {"user": field}, timestamp=0)
    assert keys_of(h) == [key]


def test_an_int_and_its_text_are_one_key(harness: MakeHarness) -> None:
    h = harness(log(mw.by("user")))
    with h.epoch():
        h.send("in", {"user": 7}, timestamp=0)
        h.send("in", {"user": "7"}, timestamp=0)
    assert keys_of(h) == ["7", "7"]


def test_by_takes_a_field_of_a_dataclass(harness: MakeHarness) -> None:
    for field, key in (("text", "cat videos"), ("user", "7")):
        h = harness(log(lambda record, field=field: mw.by(field)(record)))
        assert mw.by(field)(mw.Record(value=Query("cat videos", 7), timestamp=0)) == key
        h.send("in", {"text": "cat videos", "user": 7}, timestamp=0)
        assert keys_of(h) == [key]


def test_by_key_keeps_the_producer_s_key(harness: MakeHarness) -> None:
    p = single(Echo(), key=mw.by("user"))
    p.add(Log(), inputs={"out": mw.by_key}, outputs=["log"])
    h = harness(p)
    h.send("in", {"user": "ann"}, timestamp=0, key="ignored")
    assert keys_of(h) == ["ann"]


def test_by_key_on_an_injected_stream_is_the_injected_key(harness: MakeHarness) -> None:
    h = harness(log(mw.by_key))
    h.send("in", 1, timestamp=0, key="a")
    h.send("in", 2, timestamp=0)
    assert keys_of(h) == ["a", ""]


def test_a_function_sees_the_record_as_it_was_produced(harness: MakeHarness) -> None:
    def key(record: mw.Record) -> str:
        return f"{record.key}/{record.stream}/{record.timestamp}/{record.value}/{record.id}"

    p = single(Echo(), key=lambda record: f"k{record.value}")
    p.add(Log(), inputs={"out": key}, outputs=["log"])
    h = harness(p)
    h.send("in", 5, timestamp=3, id="x")
    assert keys_of(h) == ["k5/out/3/5/None"]


def test_a_function_sees_the_id_of_an_injected_record(harness: MakeHarness) -> None:
    h = harness(log(lambda record: f"{record.stream}/{record.id}"))
    h.send("in", 5, timestamp=3, id="x")
    assert keys_of(h) == ["in/x"]


def test_skip_keeps_a_record_from_a_consumer(harness: MakeHarness) -> None:
    p = mw.Pipeline("skipping")
    p.inject("in", mw.injectors.Records([]))
    p.add(Log(), name="Even", inputs={"in": lambda r: "e" if r.value % 2 == 0 else mw.SKIP}, outputs=["log"])
    p.add(Log(), name="All", inputs={"in": lambda r: "a"}, outputs=["log"])
    h = harness(p)
    with h.epoch():
        for n in range(10):
            h.send("in", n, timestamp=0)
    assert sorted(value[:2] for value in values(h.output("log"))) == [["a", n] for n in range(10)] + [
        ["e", n] for n in range(0, 10, 2)
    ]
    status = h.status()
    assert status.records == {"Even": 5, "All": 10}
    assert status.dropped == {"Even": 0, "All": 0}


def test_skip_everywhere_leaves_an_epoch_with_nothing_to_do(harness: MakeHarness) -> None:
    h = harness(log(lambda record: mw.SKIP))
    h.send("in", 1, timestamp=0)
    h.advance("in", 10)
    assert h.output("log") == []
    assert h.low_watermark("C") == 10


def test_a_kind_of_str_is_a_str(harness: MakeHarness) -> None:
    h = harness(log(lambda record: Text("a")))
    h.send("in", 1, timestamp=0)
    assert keys_of(h) == ["a"]


@pytest.mark.parametrize("key", [None, 1, 1.5, True, b"bytes", ["a"], ("a",), {}])
def test_anything_else_is_an_error_that_names_computation_stream_and_record(
    key: Any, harness: MakeHarness
) -> None:
    h = harness(log(lambda record: key))
    with pytest.raises(mw.UserCodeError, match=r"'C', stream 'in'") as caught:
        h.send("in", {"text": "cat videos"}, timestamp=17)
    error = caught.value
    assert repr(key) in str(error)
    assert "cat videos" in str(error)
    assert error.computation == "C"
    assert (error.record.value, error.record.timestamp, error.record.stream) == (
        {"text": "cat videos"},
        17,
        "in",
    )


@pytest.mark.parametrize("field", [None, 1.5, True, b"bytes", ["a"]])
def test_a_field_that_is_no_str_or_int_is_an_error(field: Any, harness: MakeHarness) -> None:
    h = harness(log(mw.by("user")))
    with pytest.raises(mw.UserCodeError, match=r"'C', stream 'in'.*by\('user'\)"):
        h.send("in", {"user": field}, timestamp=17)


@pytest.mark.parametrize("value", [{"usr": "x"}, "text", 5, None, [1, 2], {}])
def test_a_missing_field_is_an_error(value: Any, harness: MakeHarness) -> None:
    h = harness(log(mw.by("user")))
    with pytest.raises(mw.UserCodeError, match=r"'C', stream 'in'.*by\('user'\)") as caught:
        h.send("in", value, timestamp=17)
    assert caught.value.cause is not None
    assert caught.value.record.value == value


def test_an_extractor_that_raises_is_an_error_with_its_cause(harness: MakeHarness) -> None:
    def key(record: mw.Record) -> str:
        raise LookupError("nobody home")

    p = single(Echo())
    p.add(Log(), inputs={"out": key}, outputs=["log"])
    h = harness(p)
    with pytest.raises(mw.UserCodeError, match=r"'Log', stream 'out'.*LookupError: nobody home") as caught:
        h.send("in", 1, timestamp=17, key="k")
    error = caught.value
    assert isinstance(error.cause, LookupError)
    assert (error.computation, error.record.value, error.record.key) == ("Log", 1, "k")
    assert h.status().epochs == 0


def test_good_records_beside_a_bad_one_are_not_committed(harness: MakeHarness) -> None:
    h = harness(log(mw.by("user")))

    def fail() -> None:
        with h.epoch():
            h.send("in", {"user": "ann"}, timestamp=0)
            h.send("in", {}, timestamp=0)

    with pytest.raises(mw.UserCodeError):
        fail()
    assert h.output("log") == []
    assert h.status().records_in == 0


@pytest.mark.parametrize("field", ["", None, 5])
def test_by_takes_the_name_of_a_field(field: Any) -> None:
    with pytest.raises((TypeError, mw.MillWheelError)):
        mw.by(field)


@pytest.mark.parametrize("key", ["", " ", "a\x00b", "ä", "\U0001f600", "x" * 600, "\udc80", "a/b:c", "0"])
def test_any_text_is_a_key(key: str, harness: MakeHarness) -> None:
    h = harness(log(mw.by("k")))
    h.send("in", {"k": key}, timestamp=0)
    h.crash()
    h.send("in", {"k": key}, timestamp=0)
    assert keys_of(h) == [key, key]


def test_keys_that_begin_alike_are_different(harness: MakeHarness) -> None:
    keys = ["x" * n for n in range(480, 530, 7)]
    h = harness(single(Echo(), key=mw.by("k")))
    p = single(Log(), key=mw.by("k"), outputs=["log"])
    h = harness(p)
    with h.epoch():
        for key in keys:
            h.send("in", {"k": key}, timestamp=0)
    assert sorted(keys_of(h)) == keys


def key_of(value: Any, *fields: str) -> Any:
    return mw.by(*fields)(mw.Record(value=value, timestamp=0))


@pytest.mark.parametrize(
    ("value", "field", "key"),
    [
        ({"user": {"id": 7}}, "user.id", "7"),
        ({"user": {"id": 7}, "user.id": "whole"}, "user.id", "whole"),
        ({"a": {"b": {"c": "deep"}}}, "a.b.c", "deep"),
        ({"a": {"b.c": "half", "b": {"c": "deep"}}}, "a.b.c", "half"),
        ({"a.b": {"c": "first"}, "a": {"b": {"c": "deep"}}}, "a.b.c", "first"),
        ({"a.b": {}, "a": {"b": {"c": "deep"}}}, "a.b.c", "deep"),
        ({"user": Query("cat videos", 7)}, "user.text", "cat videos"),
        ({"": {"": "empty"}}, ".", "empty"),
    ],
)
def test_by_takes_a_nested_field_and_one_of_the_whole_name_first(
    value: Any, field: str, key: str, harness: MakeHarness
) -> None:
    assert key_of(value, field) == key
    assert mw.by(field).column([value, value]) in ([key, key], None)  # None: record by record
    if "text" not in field:
        h = harness(log(mw.by(field)))
        h.send("in", value, timestamp=0)
        assert keys_of(h) == [key]


PARTS = st.text("a|\\", max_size=4) | st.integers(-3, 3)


@given(st.lists(st.tuples(PARTS, PARTS, PARTS), min_size=1, max_size=8))
def test_of_several_fields_different_texts_give_different_keys(tuples: list[tuple[Any, ...]]) -> None:
    values = [dict(zip("xyz", parts, strict=True)) for parts in tuples]
    extractor = mw.by("x", "y", "z")
    keys = [extractor(mw.Record(value=value, timestamp=0)) for value in values]
    assert len(set(keys)) == len({tuple(map(str, parts)) for parts in tuples})
    assert extractor.column(values) == keys
    assert extractor.texts([[value[name] for value in values] for name in "xyz"]) == keys


def test_several_fields_may_be_nested(harness: MakeHarness) -> None:
    h = harness(log(mw.by("user.id", "country")))
    h.send("in", {"user": {"id": 7}, "country": "de"}, timestamp=0)
    assert keys_of(h) == ["7|de"]


@pytest.mark.parametrize(
    ("value", "fields", "message"),
    [
        ({"a": 1}, ["user.id"], "raised KeyError: the value has no field 'user.id': it has a"),
        ({"user": {}}, ["user.id"], "raised KeyError: the value has no field 'user.id': it has user"),
        ([1], ["user"], r"raised KeyError: the value has no field 'user': it is \[1\]"),
        (
            {"a": "x", "b": None},
            ["a", "b"],
            "raised TypeError: the field 'b' is None: a key is made of texts",
        ),
        (
            {"a": "x", "b": True},
            ["a", "b"],
            "raised TypeError: the field 'b' is True: a key is made of texts",
        ),
        ({"user": {"id": 1.5}}, ["user.id"], "returned 1.5, which is neither a str"),
    ],
)
def test_a_field_that_is_missing_or_no_key_is_named(
    value: Any, fields: list[str], message: str, harness: MakeHarness
) -> None:
    with pytest.raises(mw.UserCodeError, match=f"computation 'C', stream 'in': .*{message}"):
        harness(log(mw.by(*fields))).send("in", value, timestamp=0)


@pytest.mark.parametrize("fields", [(), ("",), (7,), ("a", None), (["a", "b"],)])
def test_by_takes_names_of_fields(fields: Any) -> None:
    with pytest.raises(mw.PipelineError, match=r"by\(\) takes the name"):
        mw.by(*fields)
