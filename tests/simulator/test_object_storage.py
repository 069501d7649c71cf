"""The same schedules on object storage, on several hosts, and a network that loses, delays and repeats."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from millwheel.testing import simulate
from tests.simulator import pipelines
from tests.simulator.hosts import Hosts

_SCHEDULES = 200 if os.environ.get("MILLWHEEL_NIGHTLY") else 20
_CASES = [
    (pipelines.windows, None),
    (pipelines.resent, pipelines.check_resent),
    (pipelines.weak_then_strong, None),
    (pipelines.in_order, None),
]
_ON_THE_NETWORK = (
    *("refused", "late", "late, taken", "late, refused", "lost", "repeated"),
    *("behind", "copy lost", "snapshot", "removed", "part read", "gap closed"),
)


@pytest.mark.parametrize(("make", "check"), _CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_every_schedule_ends_as_the_undisturbed_run(make: object, check: object) -> None:
    happened: Counter[str] = Counter()
    for seed in range(_SCHEDULES):
        made: list[Hosts] = []

        def store(shards: int, seed: int = seed, made: list[Hosts] = made) -> Hosts:
            made.append(Hosts(shards, seed))
            return made[-1]

        happened += simulate(make, seeds=[seed], check=check, store=store)  # type: ignore[arg-type]
        for hosts in made:
            happened += hosts.network.happened
    for mishap in ("kill", "pause", "lose", "repeat", "cut", *_ON_THE_NETWORK):
        assert happened[mishap] > 0, mishap
