"""The watermark of an injector from the parts that its tasks read (5.2), in any order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.watermark.source import SourceMark

TIMES = st.integers(0, 30) | st.sampled_from([mw.MIN_TIME, mw.MAX_TIME])


@settings(max_examples=150, deadline=None)
@given(
    previous=st.integers(0, 30) | st.just(mw.MIN_TIME),
    rest=st.lists(TIMES, max_size=3),
    read=st.lists(st.tuples(TIMES, st.integers(0, 30)), max_size=4),
    slack=st.none() | st.integers(0, 10),
    final=st.booleans(),
    data=st.data(),
)
def test_an_injector_s_watermark_is_the_same_in_whatever_order_its_tasks_are_heard(
    previous: int,
    rest: list[int],
    read: list[tuple[int, int]],
    slack: int | None,
    final: bool,
    data: st.DataObject,
) -> None:
    start = SourceMark(
        previous=previous,
        held=min(rest, default=mw.MAX_TIME),
        newest=mw.MIN_TIME,
        slack=slack,
        final=final,
    )

    def heard(tasks: list[tuple[int, int]]) -> int:
        mark = start
        for held, newest in tasks:
            mark = mark.join(held=held, newest=newest)
        return mark.watermark()

    value = heard(read)
    assert value == heard(data.draw(st.permutations(read))) == heard([*read, *read])
    assert value >= previous
    held = min([*rest, *(mark for mark, _ in read)], default=mw.MAX_TIME)
    assert value <= max(previous, held)
    if slack is not None and not final and read:
        assert value <= max(previous, max(newest for _, newest in read) - slack)
