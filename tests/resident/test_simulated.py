"""Resident tasks that die, whose answer is lost, or that go on when they were given up, in the simulator."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.testing import Faults, SimulationFailure, simulate
from millwheel.worker.commit import IntervalState, StepCommit
from tests.simulator import pipelines

_RESIDENT = Faults(stale=0.6, silent=0.3, lose=0.05, late=0.05, repeat=0.0, cut=0.0, slow=0.0, most=16)
_SEEDS = range(60)


@pytest.mark.parametrize(
    ("make", "check"),
    [
        (pipelines.windows, None),
        (pipelines.draws, pipelines.check_draws),
        (pipelines.weak_then_strong, None),
        (pipelines.in_order, None),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_whatever_becomes_of_a_resident_task_the_run_ends_as_the_undisturbed_one(
    make: Any, check: Any
) -> None:
    happened = simulate(make, seeds=_SEEDS, faults=_RESIDENT, check=check)
    for fault in ("stale", "silent", "lose", "late", "stale, taken", "stale, refused"):
        assert happened[fault] > 0, f"{fault} was never: {dict(happened)}"


def test_a_stale_task_that_nobody_refuses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator can fail: neither sequencer nor epoch is checked."""

    monkeypatch.setattr(StepCommit, "state", lambda *rest: IntervalState(0, 0))
    only = Faults(
        kill=0,
        pause=0,
        lose=0,
        late=0,
        repeat=0,
        fail=0,
        silent=0,
        slow=0,
        cut=0,
        jump=0,
        reshape=0,
        stale=0.5,
    )
    with pytest.raises(SimulationFailure):
        simulate(pipelines.draws, seeds=_SEEDS, faults=only, check=pipelines.check_draws)
