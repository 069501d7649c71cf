"""Planted anomalies: the detector and what stands beside it are judged by the same rules."""

from __future__ import annotations

import pytest

from benchmarks import planted
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.model.time import MINUTE

CALM = tuple(20 + n * 7 % 5 for n in range(400))
SPIKE = planted.Case("keys", "x 10", (*CALM[:300], *(200 for _ in range(12)), *CALM[312:]), 300)
DIP = planted.Case("keys", "x 0", (*CALM[:300], *(0 for _ in range(12)), *CALM[312:]), 300)
NONE = planted.Case("keys", "none", CALM, 300)


def test_the_pipeline_finds_a_spike_and_a_dip_and_nothing_else() -> None:
    cases = [SPIKE, DIP, NONE]
    told = planted.judge(cases, planted.zeitgeist(cases, Settings(width=5 * MINUTE)))
    assert told["false"] == 0
    assert [(size["size"], size["found"]) for size in told["sizes"]] == [("x 10", 1), ("x 0", 1)]


@pytest.mark.parametrize("scores", [planted.gaussian, planted.advec])
def test_what_stands_beside_it_sees_the_same_spike(scores: planted.Scores) -> None:
    odd = scores(SPIKE.counts, 288)
    assert max(range(400), key=lambda n: odd[n]) == 300
    assert max(map(abs, scores(CALM, 288))) < odd[300] / 4


def test_an_alarm_of_the_wrong_side_is_no_find_and_one_elsewhere_is_false() -> None:
    told = planted.judge([SPIKE, NONE], [[(301, -1)], [(10, 1), (200, -1)]])
    assert (told["false"], told["recall"]) == (2, 0.0)
    assert planted.judge([SPIKE], [[(302, 1)]])["sizes"][0]["delay"] == 2


def test_a_longer_outage_may_be_found_until_it_ends() -> None:
    long = planted.Case("keys", "x 0 for 96", CALM, 300, length=96)
    told = planted.judge([long, long, long], [[(360, -1)], [(390, 1)], [(300 + 96 + 30, -1)]])
    assert (told["sizes"][0]["found"], told["sizes"][0]["delay"]) == (1, 60)
    assert told["false"] == 1
