"""Slots run on the executor that has their state: always while it lives, and elsewhere at once if not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.spark.placement import Placement, allows_placement, assign
from millwheel.worker.envelope import Frame
from tests.servers.cluster import driver_environment
from tests.servers.postgres import Cluster
from tests.spark.placed import EPOCHS, KEYS, PER_EPOCH

_ROOT = Path(__file__).parents[2]
_names = st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True)


@given(slots=st.integers(1, 60), first=_names, then=_names, resized=st.integers(1, 60))
def test_every_executor_has_its_share_and_what_can_stay_stays(
    slots: int, first: list[str], then: list[str], resized: int
) -> None:
    before = assign(slots, first)
    assert before == assign(slots, first, before)
    for count in (slots, resized):
        after = assign(count, then, before)
        load = Counter(after)
        assert len(after) == count
        assert set(load) <= set(then)
        assert max(load.values()) - min(load[name] for name in then) <= 1
    after = assign(slots, then, before)
    share = slots // len(then)
    for name in set(first) & set(then):
        kept = sum(1 for one, two in zip(before, after, strict=True) if one == two == name)
        assert kept >= min(share, before.count(name)), "no slot leaves an executor that has room for it"


def test_neighbours_share_an_executor() -> None:
    assert assign(8, ["a", "b"]) == ["a"] * 4 + ["b"] * 4
    assert assign(8, ["b", "c"], before=["a"] * 4 + ["b"] * 4) == ["c"] * 4 + ["b"] * 4


def test_a_step_is_counted_by_where_the_last_one_of_its_interval_ran() -> None:
    placement = Placement(SimpleNamespace(_jvm=None))  # type: ignore[arg-type]

    def counted(home: str, level: int = 1) -> dict[str, int]:
        report: dict[str, Any] = {"level": level, "first": 0, "home": home, "nodes": {"C": {}}}
        placement.count([Frame(1, 0, {}, {}, [report])])
        found: dict[str, int] = report["nodes"]["C"]
        return found

    assert counted("a", level=0) == {}, "an injecting task has no state"
    assert counted("a") == {}, "nothing is known of the first step"
    assert counted("a") == {"steps_stayed": 1}
    assert counted("b") == {"steps_moved": 1}
    assert counted("b") == {"steps_stayed": 1}
    assert counted("b", level=2) == {}, "another interval"


@pytest.mark.parametrize(
    ("master", "speculation", "allowed"),
    [
        ("spark://host:7077", None, True),
        ("spark://host:7077", "false", True),
        ("spark://host:7077", "true", False),
        ("local[2]", None, False),
    ],
)
def test_slots_have_no_location_where_copies_of_tasks_may_win(
    master: str, speculation: str | None, allowed: bool
) -> None:
    settings = {} if speculation is None else {"spark.speculation": speculation}
    context = SimpleNamespace(master=master, getConf=lambda: settings)
    assert allows_placement(context) is allowed  # type: ignore[arg-type]


def _run(store: str, folder: Path, watched: str = "") -> dict[str, Any]:
    environment = {
        **driver_environment(Path(sys.executable)),
        "SPARK_HOME": os.path.dirname(pyspark.__file__),
        "PYTHONPATH": str(_ROOT),
        "MILLWHEEL_COPIES": str(folder / "copies"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.placed", store, watched],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _assert_exact(found: dict[str, Any]) -> None:
    windows = EPOCHS * PER_EPOCH  # a key has a record every two seconds, and a window is one second
    assert (found["windows"], found["keys"]) == (windows, KEYS)
    assert found["sums"] == windows


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_on_a_cluster_every_slot_stays_where_its_working_copy_is(tmp_path: Path) -> None:
    found = _run(f"file://{tmp_path}/store", tmp_path)
    _assert_exact(found)
    for name in ("Windower", "Sums"):
        assert found["stayed"][name] >= 4 * (EPOCHS - 2)
        assert found["moved"][name] == 0
    assert "steps where the state was" in found["text"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_slots_of_a_lost_executor_move_at_once(tmp_path: Path) -> None:
    found = _run(f"file://{tmp_path}/store", tmp_path, watched=f"{tmp_path}/store")
    _assert_exact(found)
    assert found["moved"]["Windower"] >= 1
    assert found["stayed"]["Windower"] > found["moved"]["Windower"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_cache_of_postgresql_is_where_its_slots_run(tmp_path: Path, postgres: Cluster) -> None:
    found = _run(postgres.make_database("placed"), tmp_path)
    _assert_exact(found)
    assert found["moved"]["Windower"] <= 0.1 * found["stayed"]["Windower"]
    cached, read = found["rows"]
    assert cached["Windower"] > 5 * read["Windower"]
