"""Marks are packed and unpacked without a loss: bundles, what is taken out of them, and their order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.errors import StoreError
from millwheel.store.keyspace import after
from millwheel.store.postgres import timer_bundles
from millwheel.store.postgres.timer_bundles import Bundler, Merge, Removal

GROUP = b"T" + b"\x00\x01\x02\x00" + bytes(8)
OTHER = GROUP[:-1] + b"\x05"
_suffixes = st.lists(st.binary(min_size=1, max_size=498), unique=True, min_size=1).map(sorted)


def _keys(group: bytes, *suffixes: bytes) -> list[bytes]:
    return [group + suffix for suffix in suffixes]


def _opened(rows: timer_bundles.Entries) -> list[bytes]:
    """The keys of all marks in some rows."""
    return sorted(
        mark
        for key, value in rows
        for mark in (timer_bundles.marks_of(key, value) if timer_bundles.is_bundle(key) else [key])
    )


class TestPacking:
    @given(_suffixes)
    def test_what_is_packed_is_unpacked(self, suffixes: list[bytes]) -> None:
        value = timer_bundles.packed(suffixes)
        assert timer_bundles.unpacked(value) == suffixes
        assert timer_bundles.count(value) == len(suffixes)

    @given(_suffixes)
    def test_bundles_hold_every_mark_once_and_fit_a_page(self, suffixes: list[bytes]) -> None:
        rows = Bundler().pack(_keys(GROUP, *suffixes))
        assert _opened(rows) == _keys(GROUP, *suffixes)
        assert all(len(value) <= 1900 for _, value in rows)

    def test_marks_of_a_group_are_one_row_and_few_are_rows_as_ever(self) -> None:
        few = _keys(OTHER, *(b"%d" % i for i in range(7)))
        rows = Bundler().pack([*_keys(GROUP, *(b"%d" % i for i in range(8))), *few])
        assert [timer_bundles.is_bundle(key) for key, _ in rows] == [True, *[False] * 7]
        assert rows[1:] == [(key, b"") for key in few]

    def test_a_group_is_bundled_up_to_a_limit(self) -> None:
        bundler = Bundler(most=5, least=2)
        found = [bundler.pack(_keys(GROUP, *(b"%d%d" % (turn, i) for i in range(3)))) for turn in range(4)]
        bundled = [
            sum(timer_bundles.count(value) for key, value in rows if timer_bundles.is_bundle(key))
            for rows in found
        ]
        assert bundled == [3, 2, 0, 0]
        assert [len(_opened(rows)) for rows in found] == [3] * 4
        assert timer_bundles.is_bundle(bundler.pack(_keys(OTHER, b"a", b"b"))[0][0])

    def test_a_group_has_few_small_bundles(self) -> None:
        bundler = Bundler()
        found = [bundler.pack(_keys(GROUP, *(b"%d/%d" % (turn, i) for i in range(8)))) for turn in range(30)]
        assert [len(rows) for rows in found] == [1] * 16 + [8] * 14

    def test_how_much_a_process_remembers_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timer_bundles, "GROUPS", 3)
        bundler = Bundler(least=2)
        for number in range(10):
            bundler.pack(_keys(GROUP[:-1] + bytes([number]), b"a", b"b"))
            assert len(bundler.bundled) <= 3

    def test_a_key_too_short_or_too_long_for_a_mark_is_a_row(self) -> None:
        odd = [b"T", GROUP, GROUP + b"x" * 600, GROUP + b"y" * 600]
        assert Bundler().pack(odd) == [(key, b"") for key in odd]

    def test_where_bundles_stand_there_can_be_no_entry(self) -> None:
        timer_bundles.refuse_bundles([b"R", b"U", b"U" * 20, b"U" * 22])
        with pytest.raises(StoreError, match="is not an entry's key"):
            timer_bundles.refuse_bundles([b"R", b"U" * 21])


class TestRemoving:
    def test_a_bundle_is_deleted_with_its_last_mark_and_cut_before(self) -> None:
        bundle = (b"U" + GROUP[1:] + b"12345678", timer_bundles.packed([b"a", b"b", b"c"]))
        deletes, puts = Removal(_keys(GROUP, b"a", b"c")).changes([bundle], ())
        assert puts == [(bundle[0], timer_bundles.packed([b"b"]))]
        assert bundle[0] not in deletes
        deletes, puts = Removal(_keys(GROUP, b"a", b"b", b"c")).changes([bundle], ())
        assert not puts
        assert bundle[0] in deletes

    def test_a_bundle_that_only_seems_to_have_it_stays(self) -> None:
        inside = timer_bundles.packed([b"x"])[2:]
        bundle = (b"U" + GROUP[1:] + b"12345678", timer_bundles.packed([b"a" + inside + b"b", b"z"]))
        assert Removal([GROUP + b"x"]).changes([bundle], ()) == ([GROUP + b"x"], [])

    def test_of_many_only_the_rows_that_are_there_are_deleted(self) -> None:
        keys = _keys(GROUP, *(b"%02d" % i for i in range(40)))
        removal = Removal(keys)
        assert removal.bundles() == [b"U" + GROUP[1:]]
        ((start, stop, limit),) = removal.rows()
        assert (start, stop, limit) == (GROUP, after(GROUP), 11)
        assert removal.changes((), [(keys[3], b""), (GROUP + b"else", b"")]) == ([keys[3]], [])
        assert removal.changes((), [(key, b"") for key in keys[:limit]]) == (keys, [])

    def test_nothing_is_read_where_nothing_is_removed(self) -> None:
        for removal in (Removal(), Removal([b"T", GROUP])):
            assert removal.bundles() == []
            assert removal.rows() == []
        assert removal.changes((), ()) == ([b"T", GROUP], [])


_texts = st.binary(max_size=3).map(lambda tail: b"T" + tail)


@settings(max_examples=1000)
@given(
    start=st.one_of(st.binary(max_size=3), _texts, st.binary(max_size=20).map(lambda tail: GROUP + tail)),
    stop=st.one_of(st.binary(max_size=3), _texts, st.binary(max_size=20).map(lambda tail: OTHER + tail)),
    group=st.one_of(st.just(GROUP), st.just(OTHER), st.binary(min_size=12, max_size=12).map(b"T".__add__)),
    suffix=st.binary(min_size=1, max_size=20),
)
def test_every_mark_of_a_range_is_in_a_bundle_of_its_range(
    start: bytes, stop: bytes, group: bytes, suffix: bytes
) -> None:
    if start <= group + suffix < stop:
        assert timer_bundles.touches(start, stop)
        first, last = timer_bundles.bundle_range(start, stop)
        assert first <= b"U" + group[1:] + bytes(8)
        assert b"U" + group[1:] + b"\xff" * 8 < last


class TestMerging:
    def test_a_group_is_not_given_before_all_its_bundles_are_here(self) -> None:
        merge = Merge(GROUP, after(GROUP[:5]))
        merge.add_rows([(GROUP + b"c", b"")], complete=True)
        one = (b"U" + GROUP[1:] + b"1" * 8, timer_bundles.packed([b"b", b"d"]))
        two = (b"U" + GROUP[1:] + b"2" * 8, timer_bundles.packed([b"a", b"c"]))
        merge.add_bundles([one], 1)
        assert merge.take() == []
        merge.add_bundles([two], 4)
        assert merge.take() == [(key, b"") for key in _keys(GROUP, b"a", b"b", b"c", b"d")]
        assert merge.wanted(9) == ([], [])

    def test_a_bundle_is_later_than_a_row_with_a_value(self) -> None:
        merge = Merge(b"", b"\xff")
        merge.add_rows([(b"R", b"1"), (GROUP + b"a", b"value")], complete=True)
        merge.add_bundles([(b"U" + GROUP[1:] + b"1" * 8, timer_bundles.packed([b"a"]))], 9)
        assert merge.take() == [(b"R", b"1"), (GROUP + b"a", b"")]
