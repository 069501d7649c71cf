"""MessagePack carries what a record's value may be, and gives it back as it was."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw

codec = mw.codecs.msgpack


def back(value: Any) -> Any:
    return codec.decode(codec.encode(value))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        2**63 - 1,
        -(2**63),
        2**64 - 1,
        0.0,
        -0.0,
        1.5,
        math.inf,
        -math.inf,
        "",
        "text",
        "\x00",
        "é\U0001f600",
        "\ud800",
        b"",
        b"\x00\xff",
        [],
        [1, [2, [3, []]]],
        {},
        {"a": {"b": [{"c": None}]}},
        {1: "int", -1: "negative", 2**40: "large"},
        {True: 1, 2.5: 2, None: 3, b"bytes": 4, "text": 5},
        {(1, 2): "pair", ("a", 1): "mixed", (): "empty"},
        [{(1, 2): {(3, 4): 5}}],
        list(range(70_000)),
        {str(i): i for i in range(70_000)},
        "x" * 100_000,
        b"x" * 100_000,
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    result = back(value)
    assert result == value
    assert type(result) is type(value)


def test_nan_comes_back() -> None:
    assert math.isnan(back(math.nan))


def test_a_tuple_comes_back_as_a_tuple() -> None:
    assert back((1, (2, 3))) == (1, (2, 3))


def test_tuples_within_tuples_can_be_keys() -> None:
    assert back({((1, 2), 3): "nested"}) == {((1, 2), 3): "nested"}
    assert back({(): 1, ((),): 2, ("a", (b"b", (None,))): 3}) == {(): 1, ((),): 2, ("a", (b"b", (None,))): 3}


def test_lists_that_are_values_stay_lists_beside_tuples_that_are_keys() -> None:
    assert back({(1, 2): [3, [4]], "a": [5]}) == {(1, 2): [3, [4]], "a": [5]}


def test_a_bytearray_comes_back_as_bytes() -> None:
    assert back(bytearray(b"abc")) == b"abc"


def test_equal_values_have_equal_bytes() -> None:
    assert codec.encode({"a": 1, "b": [2.5, None]}) == codec.encode({"a": 1, "b": [2.5, None]})


@pytest.mark.parametrize("value", [object(), 1j, range(3), [1, [2, {"a": {3j}}]]])
def test_what_it_does_not_carry_is_refused_with_what_it_does(value: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot be encoded in MessagePack: use None, bool, int"):
        codec.encode(value)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_an_integer_of_more_than_64_bits_is_refused_for_its_size(value: int) -> None:
    with pytest.raises((TypeError, OverflowError), match=r"64 bits|out of range"):
        codec.encode(value)


def test_a_failed_encoding_leaves_no_trace_in_the_next() -> None:
    for bad in ([1, 2, {3j}], (4, [5, 1j]), {"a": object()}, [2**64]):
        with pytest.raises((TypeError, OverflowError)):
            codec.encode(bad)
        assert back([1, "two"]) == [1, "two"]


def test_bytes_that_are_no_message_are_refused() -> None:
    for data in (b"", b"\x92\x01", b"\xc1", b"\x01\x02"):
        with pytest.raises(ValueError):
            codec.decode(data)


_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(alphabet=st.characters())
    | st.binary()
)
_hashable = st.recursive(_scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_hashable, inner, max_size=4),
    max_leaves=20,
)


@given(_values)
def test_every_value_comes_back(value: Any) -> None:
    assert back(value) == value


@given(_values)
def test_encoding_what_came_back_gives_the_same_bytes(value: Any) -> None:
    data = codec.encode(value)
    assert codec.encode(codec.decode(data)) == data
