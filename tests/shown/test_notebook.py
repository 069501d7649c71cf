"""Reports and jobs in a notebook, and what an editor knows of `run` and `start`."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from millwheel.master.html import bars
from millwheel.master.status import Report
from millwheel.watch.progress import Notebook, in_notebook
from tests.computations import Counter
from tests.spark.counting import records
from tests.spark.sources import Feed
from tests.spark.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _IPython:
    """As much of IPython as is used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[str] = []
        top: Any = ModuleType("IPython")
        top.get_ipython = lambda: SimpleNamespace(kernel=object())
        module: Any = ModuleType("IPython.display")
        module.HTML = str
        module.display = self._display
        monkeypatch.setitem(sys.modules, "IPython", top)
        monkeypatch.setitem(sys.modules, "IPython.display", module)

    def _display(self, text: str, *, display_id: bool) -> Any:
        assert display_id
        self.shown.append(text)
        return SimpleNamespace(update=self.shown.append)


def test_a_report_is_a_table_whose_names_are_escaped() -> None:
    report = Report("p<1>", low_watermarks={"A<b>": mw.MAX_TIME}, records={"A<b>": 1_234}, late={"A<b>": 2})
    html = report._repr_html_()
    assert "<b>p&lt;1&gt;</b>" in html
    assert "<td>A&lt;b&gt;</td><td>1,234</td>" in html
    assert "<th>late</th>" in html
    assert "<th>dropped</th>" not in html


def test_a_chart_is_as_high_as_its_highest_bar() -> None:
    assert bars([], "nothing") == ""
    assert bars([1.0, 2.0], "two").count("<rect") == 2
    assert 'height="36.0"' in bars([1.0, 2.0], "two")


def test_a_bar_is_updated_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = _IPython(monkeypatch)
    assert in_notebook()
    bar = Notebook()
    bar.show("p: 25%", 0.25)
    bar.show("p: <50%>", 0.5)
    assert 'value="0.2500"' in ipython.shown[0]
    assert "&lt;50%&gt;" in ipython.shown[1]


@pytest.mark.spark
def test_a_job_is_shown_and_updated_until_it_ends(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed({"only": records(40)}, opened=5)
    p = mw.Pipeline("shown")
    p.inject("in", feed)
    p.add(Counter(), inputs={"in": mw.by("user")}, outputs=["counts"])
    ipython = _IPython(monkeypatch)
    with mw.start(p, store="memory:", spark=spark, progress=False) as job:
        eventually(lambda: job.status().records_in == 5)
        job._ipython_display_()
        assert "running" in ipython.shown[0]
        eventually(lambda: "<svg" in ipython.shown[-1])
    eventually(lambda: "ended" in ipython.shown[-1])


@pytest.mark.parametrize("function", [mw.run, mw.start])
def test_options_are_keyword_arguments_with_types_that_are_documented(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert {"slots", "target", "cache", "ui", "progress", "slow_after"} <= parameters.keys()
    for name, parameter in parameters.items():
        assert parameter.annotation is not inspect.Parameter.empty
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            assert f"        {name}: " in (mw.run.__doc__ or "")
