"""The differential test finds what was once wrong, put back into the engine where it was fixed."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from millwheel.master import planner
from millwheel.master.driver import Driver
from millwheel.watermark.authority import WatermarkAuthority
from millwheel.watermark.source import SourceMark
from millwheel.worker import combine, partials, pending, window_run
from millwheel.worker.keyed import KeyedRun
from millwheel.worker.node_step import NodeStep
from millwheel.worker.rejected import Rejected
from tests.differential.case import Case
from tests.differential.comparison import Difference, run
from tests.differential.drawing import draw

Concerned = Callable[[Case], bool]

_MOST = 150  # cases that a mistake concerns, until it must have been found


class Plant:
    """Puts a mistake back: in the source of a function, one text in place of another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, owner: Any, name: str, fixed: str, wrong: str) -> None:
        found = owner.__dict__[name]
        function: Any = found.fget if isinstance(found, property) else found
        source = textwrap.dedent(inspect.getsource(function))
        assert fixed in source, f"{name} has changed: what is planted there must follow"
        module = sys.modules[function.__module__]
        space: dict[str, Any] = {}
        code = compile("from __future__ import annotations\n" + source.replace(fixed, wrong), name, "exec")
        exec(code, module.__dict__ | {"__name__": "planted"}, space)
        self._monkeypatch.setattr(owner, name, space[name])


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    return Plant(monkeypatch)


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


def has_a_due_limit(case: Case) -> bool:
    return case.options.due_limit < 1_000


def has_a_budget(case: Case) -> bool:
    return case.options.budget > 0 and any(step.rush for step in case.steps)


def uses_percentiles(case: Case) -> bool:
    return any(node.watermark < 1 for node in case.nodes)


def drains_what_holds(case: Case) -> bool:
    holds = any(node.holds for node in case.nodes)
    return has_a_due_limit(case) and holds and any(step.drain and step.records for step in case.steps)


def has(kind: str) -> Concerned:
    return lambda case: any(node.kind == kind for node in case.nodes)


def test_columns_that_go_by_the_record_and_not_by_its_window_where_it_is_late(plant: Plant) -> None:
    fixed = "open_still = starts + size > before"
    for module in (partials, window_run):
        plant(module, "spread", fixed, "open_still = (starts + size > before) & (times[records] >= before)")
    assert "stream" in found(has("windows"))


def test_columns_of_windows_that_are_due_and_whose_rows_stay(plant: Plant) -> None:
    plant(window_run.WindowRun, "_merge", "fires and end <= self._after", "fires and end < self._after")
    assert found(has("windows"))


def test_a_late_record_that_a_window_by_key_does_not_take(plant: Plant) -> None:
    fixed = "self._keep_late or (self._accepts_late is not None and self._accepts_late(record))"
    plant(Rejected, "takes_late", fixed, "self._keep_late")
    assert found(has("windows"))


def test_a_watermark_that_does_not_wait_for_due_timers_that_were_left(plant: Plant) -> None:
    plant(
        NodeStep,
        "_move_watermarks",
        "self._before if unfinished else",
        "self._before if report.left else",
    )
    plant(WatermarkAuthority, "_passed_on", "if self.unfinished:", "if self.left > 0:")
    assert found(has_a_due_limit)


def test_a_drain_that_heeds_holds_again_in_its_second_epoch(plant: Plant) -> None:
    plant(
        planner,
        "make_plan",
        "drain=mode.drains or (situation.continued and situation.draining)",
        "drain=mode.drains",
    )
    plant(Driver, "held", "not self._drain.at_rest", "not self._drain.drained")
    assert found(drains_what_holds)


def test_percentiles_that_count_timers_and_walk_keys(plant: Plant) -> None:
    fixed = "for time in (timers if kind == KIND_WATERMARK else held).values():"
    wrong = "for time in [min((timers if kind == KIND_WATERMARK else held).values())]:"
    plant(pending, "_times", fixed, wrong)
    assert found(uses_percentiles)


def test_percentiles_that_depend_on_the_intervals(plant: Plant) -> None:
    fixed = "passed((Pending(*mark.pending) for mark in marks), percentile)"
    wrong = "min(passed([Pending(*mark.pending)], percentile) for mark in marks)"
    plant(WatermarkAuthority, "_passed", fixed, wrong)
    assert found(uses_percentiles)


def test_a_slack_that_is_forgotten_in_an_epoch_that_reads_every_partition(plant: Plant) -> None:
    fixed = "if self.final and self.held == MAX_TIME:"
    wrong = f"if self.final and self.held < MAX_TIME:\n        value = self.held\n    el{fixed}"
    plant(SourceMark, "watermark", fixed, wrong)
    assert found(lambda case: any(source.slack is not None for source in case.sources))


def test_new_input_while_a_budget_has_left_records(plant: Plant) -> None:
    plant(Driver, "_situation", "continued = authority.unfinished", "continued = authority.more_due")
    assert found(has_a_budget)


def test_rows_that_stay_where_a_key_had_a_hold_or_a_wall_timer(plant: Plant) -> None:
    fixed = "if state is None and not timers and not wall and not holds:"
    plant(KeyedRun, "_run_keys", fixed, "elif state is None and not timers:")
    assert "rows" in found(lambda case: any(node.holds or node.wall for node in case.nodes))


def test_a_failed_group_that_is_tried_again_from_changed_values(plant: Plant) -> None:
    plant(
        combine.Combining,
        "group",
        "packed = [pack(arrivals.value(position)) for position in group]",
        "packed = [arrivals.value(position) for position in group]; unpack = lambda value: value",
    )
    assert found(
        lambda case: any(node.combine == "in_place" and node.errors == "divert" for node in case.nodes)
    )


def test_late_records_that_are_combined_with_others(plant: Plant) -> None:
    plant(combine.Combining, "run", "not is_late(one) and not is_late(next_one)", "True")
    assert found(lambda case: any(node.combine and node.late == "deliver" for node in case.nodes))
