"""Counters are declared once: whatever shows counts has all of them."""

from __future__ import annotations

import dataclasses
import re
from contextlib import closing
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.watch import text
from millwheel.watch.metrics import exposition
from millwheel.watch.view import look
from millwheel.worker.counters import COUNTERS, TROUBLE, Counter
from millwheel.worker.report import NodeReport
from tests.watch.running import stopped


@pytest.mark.parametrize("each", COUNTERS, ids=lambda each: each.name)
def test_a_counter_is_in_the_reports_of_intervals_and_of_runs(each: Counter) -> None:
    assert getattr(NodeReport(), each.name) == 0
    assert getattr(mw.Report("p"), each.name) == {}
    assert getattr(mw.Report("p", **{each.name: {"A": 3}}), each.name) == {"A": 3}


def test_a_counter_is_in_the_view_the_metrics_and_the_status(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    with closing(stopped(tmp_path / "store")) as store:
        view = look(store, 0)
    (part, *_) = view.computations
    for number, each in enumerate(COUNTERS, 41_000):
        setattr(part, each.name, number)
    metrics = exposition(view)[0].decode()
    shown = text.status(view)
    fields = {field.name for field in dataclasses.fields(part)}
    for number, each in enumerate(COUNTERS, 41_000):
        assert each.name in fields
        assert re.search(rf"^{each.metric}_total{{.*{part.name}.*}} {number}\.0$", metrics, re.MULTILINE)
        assert f"{number:,}" in shown or each not in TROUBLE
    assert [each["name"] for each in view.to_value()["trouble"]] == [each.name for each in TROUBLE]
