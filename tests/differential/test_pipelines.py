"""Random pipelines do on the engine what they do on the reference."""

from __future__ import annotations

import os

import pytest

from tests.differential.comparison import Difference, run
from tests.differential.drawing import draw
from tests.differential.shrinking import command, describe, shrink

_NIGHTLY = os.environ.get("MILLWHEEL_NIGHTLY")
PIPELINES = int(os.environ.get("DIFFERENTIAL_PIPELINES", 20_000 if _NIGHTLY else 500))
FIRST = int(os.environ.get("DIFFERENTIAL_FIRST", "0"))
_TOGETHER = 50

pytestmark = pytest.mark.slow


def compare(seed: int) -> None:
    """Fails with the smallest case, and the command that replays it."""
    case = draw(seed)
    try:
        run(case)
    except Difference as error:
        without, found = shrink(case, [], error)
        shrunk = describe(case.without(without))
        message = f"seed {seed}: {error}\nshrunk: {shrunk}\n{found}\n{command(seed, without)}"
        pytest.fail(message, pytrace=False)


@pytest.mark.parametrize("first", range(FIRST, FIRST + PIPELINES, _TOGETHER))
def test_random_pipelines_do_what_the_contract_says(first: int) -> None:
    for seed in range(first, min(first + _TOGETHER, FIRST + PIPELINES)):
        compare(seed)
