"""/metrics, read by Prometheus's own parser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.watch import metrics
from millwheel.watch.view import View, look
from tests.computations import Hooks
from tests.spark.sources import Feed
from tests.store.driving import run
from tests.watch.running import stopped, visits, wall

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "millwheel.json"


@pytest.fixture
def view(tmp_path: Path) -> View:
    store = stopped(tmp_path / "store", visits(60, users=5))
    try:
        return look(store, wall())
    finally:
        store.close()


def families(view: View) -> dict[str, object]:
    data, kind = metrics.exposition(view)
    assert kind.startswith("text/plain")
    return {family.name: family for family in parser.text_string_to_metric_families(data.decode())}


def value(view: View, metric: str, /, **labels: str) -> float:
    """One series, asked for by its full name."""
    data, _ = metrics.exposition(view)
    found = [
        sample.value
        for family in parser.text_string_to_metric_families(data.decode())
        for sample in family.samples
        if sample.name == metric and {**sample.labels, **labels} == sample.labels
    ]
    assert len(found) == 1, f"{metric} {labels}: {found}"
    return found[0]


def test_counts_are_those_of_the_view(view: View) -> None:
    visiting = view.computations[0]
    assert value(view, "millwheel_injected_records_total", pipeline="visits") == 60
    assert value(view, "millwheel_records_total", computation="Visits") == 60
    assert value(view, "millwheel_productions_total", computation="Visits") == visiting.produced > 0
    assert value(view, "millwheel_stream_records_total", stream="seconds") == visiting.produced
    assert value(view, "millwheel_keys", computation="Visits") == visiting.rows
    assert value(view, "millwheel_state_bytes", computation="Visits") == visiting.bytes
    pending = value(view, "millwheel_pending_timers", computation="Visits", clock="watermark")
    assert pending == visiting.watermark_timers > 0
    assert value(view, "millwheel_low_watermark_seconds", computation="Visits") == pytest.approx(5.9)
    assert value(view, "millwheel_low_watermark_lag_seconds", computation="Visits") == visiting.lag


def test_a_users_own_counts_are_among_them(view: View) -> None:
    assert value(view, "millwheel_user_total", name="visits") == 60


def test_epochs_are_a_histogram(view: View) -> None:
    assert value(view, "millwheel_epoch_duration_seconds_count") == view.epochs
    assert value(view, "millwheel_epoch_duration_seconds_bucket", le="+Inf") == view.epochs
    assert value(view, "millwheel_epoch_duration_seconds_sum") == pytest.approx(view.seconds)


def test_names_keep_the_conventions(view: View) -> None:
    for name, family in families(view).items():
        assert re.fullmatch(r"millwheel_[a-z_]+", name)
        assert family.documentation  # type: ignore[attr-defined]
        for sample in family.samples:  # type: ignore[attr-defined]
            assert sample.labels["pipeline"] == "visits"
            assert (family.type == "counter") == sample.name.endswith("_total")  # type: ignore[attr-defined]
        if "watermark" in name or "duration" in name:
            assert name.endswith("_seconds"), "base units"


def test_watermarks_without_a_time_are_infinite_and_have_no_lag(view: View) -> None:
    ended = replace(view.computations[0], name="ended", low_watermark=mw.MAX_TIME, lag=None)
    silent = replace(view.computations[0], name="silent", low_watermark=mw.MIN_TIME, lag=None)
    changed = replace(view, computations=[ended, silent])
    assert value(changed, "millwheel_low_watermark_seconds", computation="ended") == float("inf")
    assert value(changed, "millwheel_low_watermark_seconds", computation="silent") == float("-inf")
    assert families(changed)["millwheel_low_watermark_lag_seconds"].samples == []  # type: ignore[attr-defined]


def series(view: View) -> int:
    return sum(len(family.samples) for family in families(view).values())  # type: ignore[attr-defined]


def test_more_keys_and_partitions_make_no_more_series(tmp_path: Path) -> None:
    from millwheel.store.memory import MemoryStore

    def after(keys: int) -> View:
        p = mw.Pipeline("many")
        parts = {f"partition {i}": [mw.Record(value=i, timestamp=i, key=f"k{i}")] for i in range(keys)}
        p.inject("in", Feed(parts))
        p.add(Hooks(lambda c, r: c.state.update(n=1)), name="C", inputs={"in": mw.by_key})
        store = MemoryStore(1)
        run(p, store)
        return look(store, wall())

    few, many = after(3), after(300)
    assert (few.computations[0].rows, many.computations[0].rows) == (3, 300)
    assert series(few) == series(many)


def test_the_names_of_user_counts_are_bounded(view: View) -> None:
    names = metrics.MOST_USER_COUNTS
    counts = {f"name {i}": 2 for i in range(names + 50)}
    many = replace(view, user=counts)
    assert value(many, "millwheel_user_total", name=metrics.OTHERS) == 100
    family = families(many)["millwheel_user"]
    assert len(family.samples) == names + 1  # type: ignore[attr-defined]


def test_labels_that_are_hostile_arrive_as_they_are(view: View) -> None:
    name = 'a "quoted"\\ name\nwith a line'
    assert value(replace(view, user={name: 3}), "millwheel_user_total", name=name) == 3


def test_the_dashboard_asks_for_metrics_that_there_are(view: View) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    data, _ = metrics.exposition(view)
    known = {line.split("{")[0] for line in data.decode().splitlines() if not line.startswith("#")}
    asked = set()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            asked |= set(re.findall(r"millwheel_\w+", target["expr"]))
    assert asked
    assert asked <= known
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
