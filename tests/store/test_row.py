"""A row's bytes give back the row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.store.row import Row, decode_row, encode_row

_times = st.integers(-(2**63), 2**63 - 1)
_text = st.text(alphabet=st.characters(), max_size=20)  # lone surrogates too
_by_tag = st.dictionaries(_text, _times, max_size=5)


@given(
    state=st.none() | st.binary(max_size=100),
    timers=_by_tag,
    wall=_by_tag,
    holds=_by_tag,
    long_key=st.none() | _text,
)
def test_every_row_comes_back(
    state: bytes | None,
    timers: dict[str, int],
    wall: dict[str, int],
    holds: dict[str, int],
    long_key: str | None,
) -> None:
    row = Row(state, timers, wall, holds, long_key)
    assert decode_row(encode_row(*row)) == row


@given(timers=_by_tag, wall=_by_tag)
def test_timers_keep_their_order_so_that_equal_rows_are_equal_bytes(
    timers: dict[str, int], wall: dict[str, int]
) -> None:
    data = encode_row(b"s", timers, wall, {}, None)
    row = decode_row(data)
    assert list(row.timers) == list(timers)
    assert list(row.wall) == list(wall)
    assert encode_row(*row) == data


def test_a_row_with_a_state_alone_costs_one_byte() -> None:
    assert len(encode_row(b"12345", {}, {}, {}, None)) == 6


def test_an_empty_state_is_not_a_missing_one() -> None:
    assert decode_row(encode_row(b"", {"t": 1}, {}, {}, None)).state == b""
    assert decode_row(encode_row(None, {"t": 1}, {}, {}, None)).state is None
    assert decode_row(encode_row(b"", {}, {}, {}, None)).state == b""


def test_a_state_that_looks_like_a_row_stays_a_state() -> None:
    inner = encode_row(b"inner", {}, {"t": 5}, {"h": 1}, "key")
    assert decode_row(encode_row(inner, {}, {}, {}, None)).state == inner
    assert decode_row(encode_row(inner, {"t": 5}, {}, {}, None)).state == inner
