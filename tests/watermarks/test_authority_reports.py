"""Reports to the authority (7.2): missing ones, and those of old owners."""

from __future__ import annotations

import pytest

import millwheel as mw
from millwheel.model.graph import build
from millwheel.model.names import SourceName
from millwheel.watermark.authority import WatermarkAuthority
from millwheel.watermark.marks import IntervalMark
from tests.computations import Echo


def mark(sequencer: int, low: int, hold: int = mw.MAX_TIME) -> IntervalMark:
    return IntervalMark(
        sequencer=sequencer,
        input=50,
        low=low,
        next_timer=mw.MAX_TIME,
        next_wall=mw.MAX_TIME,
        oldest_hold=hold,
        more_due=False,
    )


@pytest.fixture
def authority() -> WatermarkAuthority:
    """Of one computation, whose intervals are at 50 and, behind a hold, at 10."""
    p = mw.Pipeline("one")
    p.inject("in", mw.injectors.Records([]))
    p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
    found = WatermarkAuthority(build(p))
    found.report("C", 0, mark(1, low=50))
    found.report("C", 4, mark(1, low=10, hold=10))
    found.publish({"C": {0, 4}})
    assert found.lows == {"C": 10}
    return found


def test_an_interval_that_has_not_reported_keeps_the_values_where_they_are(
    authority: WatermarkAuthority,
) -> None:
    authority.report("C", 0, mark(2, low=60))
    authority.report("C", 4, mark(2, low=60))
    authority.publish({"C": {0, 4, 6}})
    assert authority.lows == {"C": 10}
    authority.report("C", 6, mark(2, low=55))
    authority.publish({"C": {0, 4, 6}})
    assert authority.lows == {"C": 55}


def test_an_old_owner_s_report_is_refused_and_the_same_owner_s_is_taken_again(
    authority: WatermarkAuthority,
) -> None:
    assert authority.report("C", 4, mark(2, low=20, hold=20))
    assert not authority.report("C", 4, mark(1, low=50))
    assert authority.report("C", 4, mark(2, low=20, hold=20))
    authority.publish({"C": {0, 4}})
    assert authority.lows == {"C": 20}


def test_the_old_owner_of_a_part_does_not_speak_for_a_merged_interval(
    authority: WatermarkAuthority,
) -> None:
    authority.publish({"C": {0}})
    assert authority.lows == {"C": 10}


def test_watermarks_are_not_passed_on_past_an_interval_that_has_not_reported(
    authority: WatermarkAuthority,
) -> None:
    authority.report("C", 4, mark(2, low=50))
    authority.publish({"C": {0, 4, 6}})
    authority.pass_on({SourceName("in"): 50})
    assert authority.lows == {"C": 10}


def test_an_old_owner_is_refused_where_its_interval_is_no_part_of_the_layout_any_more(
    authority: WatermarkAuthority,
) -> None:
    authority.report("C", 0, mark(2, low=10, hold=10))
    authority.publish({"C": {0}})
    assert not authority.report("C", 4, mark(1, low=50))
