"""Under every failure that a seed can think of, a pipeline ends as if nothing had happened.

``MILLWHEEL_NIGHTLY=1`` runs ten times as many schedules.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.testing import Faults, SimulationFailure, simulate
from tests.simulator import pipelines

_SCHEDULES = 10_000 if os.environ.get("MILLWHEEL_NIGHTLY") else 1_000
_CASES = [
    (pipelines.windows, None),
    (pipelines.resent, pipelines.check_resent),
    (pipelines.draws, pipelines.check_draws),
    (pipelines.weak, None),
    (pipelines.weak_twice, None),
    (pipelines.weak_then_strong, None),
    (pipelines.held, None),
    (pipelines.held_apart, None),
    (pipelines.in_order, None),
    (pipelines.looked_up, pipelines.check_looked_up),
]
_PARTS = 2  # so that progress is seen; in the second one, a few records are many, and are sent by tablet


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize(("make", "check"), _CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_every_schedule_ends_as_the_undisturbed_run(
    make: object, check: object, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part:
        monkeypatch.setattr("millwheel.worker.route.MANY", 4)
        monkeypatch.setattr("millwheel.worker.route.OFTEN", 2)
    share = _SCHEDULES // len(_CASES) // _PARTS
    happened = simulate(
        make,  # type: ignore[arg-type]
        seeds=range(part * share, (part + 1) * share),
        check=check,  # type: ignore[arg-type]
    )
    # The schedules are worth something only if everything that can happen did, and often.
    for fault in (
        "kill",
        "pause",
        "lose",
        "late",
        "repeat",
        "fail",
        "raises",
        "slow",
        "cut",
        "jump",
        "reshape",
        "driver refused",
        "late, refused",
    ):
        assert happened[fault] > share / 20, f"{fault} was {happened[fault]} times in {share} schedules"
    assert happened["late, taken"] > 0


_CHANGES = Faults(change=0.3, most=24)


@pytest.mark.parametrize("make", [pipelines.changing, pipelines.replayed], ids=lambda make: make.__name__)
def test_what_stays_does_not_feel_that_others_come_and_go(make: object) -> None:
    share = _SCHEDULES // len(_CASES)
    happened = simulate(
        make,  # type: ignore[arg-type]
        seeds=range(share),
        faults=_CHANGES,
        check=getattr(make, "check", None),
        variants=make.variants,  # type: ignore[attr-defined]
        first=getattr(make, "first", None),
    )
    assert happened["change"] > share
    for fault in ("kill", "pause", "late, refused", "change refused"):
        assert happened[fault] > share / 40, f"{fault} was {happened[fault]} times in {share} schedules"


def test_a_seed_gives_the_same_schedule_again() -> None:
    first = simulate(pipelines.windows, seeds=[11])
    assert first == simulate(pipelines.windows, seeds=[11])
    assert first != simulate(pipelines.windows, seeds=[12])


def test_a_pipeline_that_fails_names_the_seed_and_the_command() -> None:
    with pytest.raises(SimulationFailure, match="run it again: python") as found:
        simulate(forgetful, seeds=range(50))
    assert f"tests.simulator.test_simulator:forgetful --seed {found.value.seed}" in str(found.value)
    with pytest.raises(SimulationFailure, match=f"seed {found.value.seed}"):
        simulate(forgetful, seeds=[found.value.seed])


class Forgetful(mw.Computation):
    """Keeps its count where a crash loses it."""

    count = 0

    def process_record(self, record: mw.Record) -> None:
        self.count += 1
        self.produce("counts", self.count)


def forgetful() -> mw.Pipeline:
    """A pipeline with a mistake that users make."""
    p = mw.Pipeline("forgetful")
    p.inject("words", pipelines.Parts(1))
    p.add(Forgetful(), inputs={"words": lambda record: "all"}, outputs=["counts"])
    return p


def test_the_command_replays_a_schedule_and_says_how_it_ended() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "millwheel.testing.simulate"]
    good = subprocess.run(
        [*command, "tests.simulator.pipelines:draws", "--seeds", "3"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert good.returncode == 0, good.stderr
    assert "3 schedules, all as undisturbed" in good.stdout
    bad = subprocess.run(
        [*command, "tests.simulator.test_simulator:forgetful", "--seeds", "50"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert bad.returncode == 1
    assert "seed" in bad.stderr
    nothing = subprocess.run([*command, "nowhere:make"], cwd=root, capture_output=True, text=True)
    assert nothing.returncode == 2


def test_without_faults_nothing_happens() -> None:
    assert not simulate(pipelines.windows, seeds=range(3), faults=Faults(most=0))
