"""The driver with more than 64 tablets: intervals, changes, and the work of an epoch."""

from __future__ import annotations

import itertools
import random

import pytest

from benchmarks.scale import measure
from millwheel.errors import PipelineError
from millwheel.master.assignment import compare
from millwheel.master.intervals import check_slots, cuts_of, even_intervals, intervals_from
from millwheel.worker.plan import Interval


@pytest.mark.parametrize(("slots", "shards"), [(1, 16), (100, 16), (1_000, 256), (4_096, 4_096), (3_000, 64)])
def test_intervals_cover_4096_tablets_and_none_crosses_a_shard(slots: int, shards: int) -> None:
    found = even_intervals(slots, shards, 1, 4_096)
    assert (found[0].first, found[-1].last) == (0, 4_096)
    assert all(a.last == b.first for a, b in itertools.pairwise(found))
    assert {i.slot for i in found} == set(range(slots))
    per_shard = 4_096 // shards
    assert all(i.first // per_shard == (i.last - 1) // per_shard == i.shard for i in found)
    assert intervals_from(cuts_of(found), shards, 1, 4_096) == found


def test_more_slots_than_tablets_are_refused() -> None:
    check_slots(4_096, 4_096)
    with pytest.raises(PipelineError, match="1 to 4096"):
        check_slots(4_097, 4_096)
    with pytest.raises(PipelineError, match=r"has 64 tablets, so it can have 64 slots at most, not 65: copy"):
        check_slots(65, 64)


@pytest.mark.parametrize("seed", range(40))
def test_a_change_counts_the_intervals_with_a_tablet_of_another_slot(seed: int) -> None:
    draw = random.Random(seed)
    tablets = draw.choice((64, 128, 512))

    def some() -> tuple[Interval, ...]:
        firsts = sorted({0, *(draw.randrange(tablets) for _ in range(draw.randrange(12)))})
        return intervals_from([[first, draw.randrange(3)] for first in firsts], 4, 1, tablets)

    before, after = some(), some()
    was = {tablet: i.slot for i in before for tablet in i.tablets}
    moved = sum(any(was[tablet] != i.slot for tablet in i.tablets) for i in after)
    assert compare(1, 1, 0, "", before, after).moved == moved


def test_the_driver_runs_epochs_with_more_slots_than_64() -> None:
    few, many = (measure(slots, 10, epochs=1) for slots in (64, 128))
    assert (few["intervals"], many["intervals"]) == (320, 640)
    for size in ("plan_bytes", "journal_bytes", "report_bytes"):  # by interval, not by its square
        assert 1 < many[size] / few[size] < 3
