"""The differential test finds what was once wrong, put back into the engine where it was fixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millwheel.worker import combine
from tests.differential.case import Case
from tests.differential.comparison import Difference, run
from tests.differential.drawing import draw

Concerned = Callable[[Case], bool]

_MOST = 150  # cases that a mistake concerns, until it must have been found


def found(concerned: Concerned) -> str:
    """What the first case of those that are concerned says that is not equal."""
    tried = 0
    seed = 0
    while tried < _MOST:
        case = draw(seed)
        seed += 1
        if not concerned(case):
            continue
        tried += 1
        try:
            run(case)
        except Difference as error:
            return str(error)
    raise AssertionError(f"{tried} cases did not show it")


def combines(case: Case) -> bool:
    return any(node.combine for node in case.nodes)


def combines_and_diverts(case: Case) -> bool:
    return any(node.combine == "in_place" and node.errors == "divert" for node in case.nodes)


def test_a_failed_group_that_is_tried_again_from_changed_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def itself(value: Any) -> Any:
        return value

    monkeypatch.setattr(combine, "pack", itself)
    monkeypatch.setattr(combine, "unpack", itself)
    assert "N" in found(combines_and_diverts)


def test_late_records_that_are_combined_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_at_once(self: combine.Combining, key: str, piece: list[int]) -> None:
        if piece:
            self.group(key, piece)

    monkeypatch.setattr(combine.Combining, "run", all_at_once)
    assert found(lambda case: any(node.combine and node.late == "deliver" for node in case.nodes))
