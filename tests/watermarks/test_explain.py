"""Why a low watermark stands where it stands, down to the partition or the key."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.cli import main
from tests.computations import Hooks, Windower
from tests.watermarks.partitions import Partitions, Running

Hook = Callable[[Hooks, mw.Record], None]


def pipeline(first: Hook) -> mw.Pipeline:
    p = mw.Pipeline("explained")
    p.inject("in", mw.injectors.Records([]))
    p.add(Hooks(first), name="First", inputs={"in": mw.by_key}, outputs=["mid"])
    p.add(Windower(), name="Second", inputs={"mid": mw.by("key")}, outputs=["windows"])
    p.add(Windower(stream="more"), name="Third", inputs={"windows": mw.by_key}, outputs=["more"])
    return p


def test_before_anybody_has_spoken_it_says_so() -> None:
    found = mw.testing.Harness(pipeline(lambda c, record: None)).explain_watermark("Third")
    assert "no epoch has been committed yet" in str(found)


def test_a_hold_is_named_with_its_key_tag_time_and_interval() -> None:
    h = mw.testing.Harness(pipeline(lambda c, record: c.hold(record.timestamp, "join")))
    h.send("in", 1, timestamp=5, key="late key")
    h.send("in", 1, timestamp=7, key="other")
    h.advance("in", 100)
    found = h.explain_watermark("Third")
    assert [step.who for step in found.steps] == ["Third", "Second", "First"]
    cause = found.cause
    assert (cause.because, cause.key, cause.tag, cause.time, cause.interval) == (
        "hold",
        "late key",
        "join",
        5,
        0,
    )
    assert found.low_watermark == h.low_watermark("Third") == 5
    assert "key 'late key' has the hold 'join'" in str(found)


def test_a_pending_timer_does_not_hold_what_its_input_has_not_reached() -> None:
    h = mw.testing.Harness(pipeline(lambda c, record: c.set_timer("t", 50)))
    h.send("in", 1, timestamp=5, key="a")
    h.advance("in", 20)
    assert h.explain_watermark("First").cause.who == "in"


def test_an_injector_is_named_with_the_partition_that_holds_it() -> None:
    running = Running(Partitions({"fast": [10, 200], "slow": [5]}))
    running.settle()
    from millwheel.watch.explain import explain

    cause = explain(running.driver.store, "Windower").cause
    assert (cause.who, cause.partition, cause.time) == ("in", "slow", 5)


def test_an_expected_partition_that_is_missing_is_named() -> None:
    running = Running(Partitions({"a": [10]}, expected=("a", "b")))
    running.settle()
    from millwheel.watch.explain import explain

    cause = explain(running.driver.store, "Windower").cause
    assert cause.partition == "b"
    assert "is expected, and not there" in cause.text


def test_at_the_end_nothing_holds_it() -> None:
    h = mw.testing.Harness(pipeline(lambda c, record: None))
    h.drain()
    assert h.explain_watermark("Second").cause.because == "end"


def test_an_unknown_computation_is_an_error_that_names_those_there_are() -> None:
    h = mw.testing.Harness(pipeline(lambda c, record: None))
    with pytest.raises(
        mw.PipelineError, match="there is no computation 'Fourth': there are First, Second, Third"
    ):
        h.explain_watermark("Fourth")


def test_the_command_line_explains_a_stopped_pipeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from millwheel.store.lmdb.lmdb_store import LmdbStore
    from tests.store.driving import run

    p = mw.Pipeline("stopped")
    p.inject("in", mw.injectors.Records([mw.Record(value=1, timestamp=1, key="a")]))
    p.add(Hooks(), name="C", inputs={"in": mw.by_key})
    store = LmdbStore(tmp_path / "store")
    run(p, store)
    store.close()
    assert main(["explain", "C", "--store", str(tmp_path / "store")]) == 0
    assert "in stands at 1970-01-01T00:00:00.000002Z: it was read to its end by the last run" in (
        capsys.readouterr().out
    )
    assert main(["explain", "C", "--store", str(tmp_path / "store"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"][-1]["because"] == "end"
    assert main(["explain", "C", "--store", str(tmp_path / "nothing")]) == 1
    assert "there is no store at" in capsys.readouterr().err
