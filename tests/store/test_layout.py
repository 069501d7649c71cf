"""Keys of every length and content have a place of their own, which any store can take."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from millwheel.model.keys import key_bytes, key_text, tablet
from millwheel.store.keyspace import (
    KIND_HOLD,
    KIND_WALL,
    KIND_WATERMARK,
    TIMER_SUFFIX,
    TIMER_TIME,
    after,
    id_log_prefix,
    id_prefix,
    is_long,
    part_of,
    part_with,
    row_prefix,
    row_suffix,
    rows_range,
    tablet_bytes,
    tablet_near,
    tablet_of,
    tablets_of,
    time_bytes,
    time_of,
    timer_key,
    timer_prefix,
)

_LONGEST = 511  # bytes of a key that LMDB takes
_times = st.integers(-(2**63), 2**63 - 1)
_keys = st.one_of(
    st.text(alphabet=st.characters(), max_size=30),
    st.builds(
        lambda text, n: text * n,
        st.text(alphabet=st.characters(), min_size=1, max_size=4),
        st.integers(100, 3000),
    ),
)
_kinds = st.sampled_from([KIND_WATERMARK, KIND_WALL, KIND_HOLD])
_numbers = st.integers(0, 65_535)
_tablets = st.sampled_from([64, 128, 256, 512, 1_024, 2_048, 4_096])


@given(_keys)
def test_a_key_of_any_length_fits_into_a_store(key: str) -> None:
    suffix = row_suffix(key)
    assert len(row_prefix(65_535) + suffix) <= _LONGEST
    assert len(timer_key(65_535, suffix, KIND_HOLD, 2**63 - 1, 64)) <= _LONGEST


@given(_keys, _keys)
def test_two_keys_never_share_a_place(one: str, other: str) -> None:
    assume(one != other)
    assert row_suffix(one) != row_suffix(other)


def test_keys_that_differ_behind_the_inline_limit_only_have_two_places() -> None:
    stem = "x" * 10_000
    assert len({row_suffix(stem + end) for end in ("", "a", "b", "aa")}) == 4


@given(_keys)
def test_a_short_key_is_in_its_place_and_a_long_one_says_so(key: str) -> None:
    suffix = row_suffix(key)
    if is_long(suffix):
        assert len(key_bytes(key)) > 400
    else:
        assert key_text(suffix[8:]) == key


@given(_keys, _tablets)
def test_the_place_of_a_key_says_its_tablet(key: str, tablets: int) -> None:
    found = tablet(key, tablets)
    assert tablet_of(row_suffix(key), tablets) == found == tablets_of([key], tablets)[0]
    assert part_with(found, tablets) == part_of(row_suffix(key)) == tablet(key, 64)
    start, stop = rows_range(7, found, tablets)
    assert start <= row_prefix(7) + row_suffix(key) < stop


@given(_keys, _tablets)
def test_a_byte_of_a_key_says_the_tablet_within_its_shard(key: str, tablets: int) -> None:
    found = tablet(key, tablets)
    for shards in (tablets // 256 or 1, tablets // 64, tablets):
        shard = found * shards // tablets
        own = range(shard * tablets // shards, (shard + 1) * tablets // shards)
        assert found in own
        assert [tablet_near(byte, own.start) for byte in tablet_bytes(own)] == list(own)


@given(st.text(alphabet=st.characters()))
def test_a_key_comes_back_from_its_bytes(key: str) -> None:
    assert key_text(key_bytes(key)) == key


@given(_times, _times)
def test_times_sort_as_their_bytes_do(one: int, other: int) -> None:
    assert (one < other) == (time_bytes(one) < time_bytes(other))
    assert time_of(time_bytes(one)) == one


@given(_numbers, _keys, _kinds, _times, _tablets)
def test_an_index_entry_gives_back_its_time_and_its_row(
    number: int, key: str, kind: int, time: int, tablets: int
) -> None:
    entry = timer_key(number, row_suffix(key), kind, time, tablets)
    assert time_of(entry[TIMER_TIME]) == time
    assert entry[TIMER_SUFFIX:] == row_suffix(key)
    prefix = timer_prefix(number, tablet(key, tablets), kind)
    assert prefix <= entry < after(prefix)


@given(_numbers, _numbers, _keys)
def test_no_computation_stands_in_the_range_of_another(one: int, other: int, key: str) -> None:
    assume(one != other)
    for prefix_of in (row_prefix, id_prefix, id_log_prefix):
        prefix = prefix_of(one)
        assert not prefix <= prefix_of(other) + row_suffix(key) < after(prefix)


@given(st.binary(min_size=1, max_size=8), st.binary(max_size=8))
def test_after_is_the_first_key_behind_a_prefix(prefix: bytes, rest: bytes) -> None:
    assume(prefix.strip(b"\xff"))
    end = after(prefix)
    assert prefix + rest < end
    assert prefix.rstrip(b"\xff")[:-1] == end[:-1]
