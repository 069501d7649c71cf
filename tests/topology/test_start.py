"""A pipeline is compared with the one that its store knows at every start, as `apply` compares it."""

from __future__ import annotations

import logging
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from millwheel.master import topology
from millwheel.master.diff import change, change_at_start
from millwheel.model.graph import build
from millwheel.store.base import Store
from millwheel.store.open import open_store
from tests.computations import Counter, Echo
from tests.store.driving import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pipeline(key: Any = None, *, records: int = 1, extra: str = "", more: Any = None) -> mw.Pipeline:
    p = mw.Pipeline("started")
    found = [mw.Record(value={"a": "x", "b": "y"}, timestamp=n) for n in range(records)]
    p.inject("in", mw.injectors.Records(found))
    p.add(Counter(), inputs={"in": key if key is not None else mw.by("a")}, outputs=["counts"])
    p.add(Echo(), name="Echo", inputs={"in": more if more is not None else mw.by("a")}, outputs=["out"])
    if extra:
        p.add(Counter(), name=extra, inputs={"in": mw.by("a")}, outputs=["counts"])
    return p


def started(store: Store, p: mw.Pipeline, accept: Any = ()) -> list[str]:
    """What `run` and `start` do: the comparison, then the run."""
    changes = change_at_start(build(p), store, accept)
    run(p, store)
    return changes


@pytest.fixture
def store() -> Store:
    return open_store("memory:")


def test_the_first_start_and_one_of_the_same_pipeline_change_nothing(store: Store) -> None:
    assert started(store, pipeline()) == []
    assert started(store, pipeline(records=3)) == []
    assert started(store, pipeline(key=lambda r: r.value["a"]), ["Counter"]) != []
    assert started(store, pipeline(key=lambda r: r.value["a"])) == []


def test_what_is_added_and_removed_is_named_in_the_report_and_in_the_log(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    started(store, pipeline())
    with caplog.at_level(logging.INFO, logger="millwheel"):
        assert started(store, pipeline(extra="New")) == ["added computation New"]
        assert "added computation New" in caplog.text
        assert started(store, pipeline()) == ["removed computation New"]
        assert "removed computation New" in caplog.text


def test_a_changed_key_extractor_of_a_computation_that_has_a_row_is_refused(store: Store) -> None:
    started(store, pipeline())
    for key in (mw.by("b"), lambda record: record.value["a"], mw.by("a", "b"), mw.by_key):
        with pytest.raises(
            mw.PipelineError,
            match=r"'Counter', stream 'in': the key extractor was by\('a'\) and now is .*"
            r"accept=\['Counter'\], or --accept Counter",
        ):
            started(store, pipeline(key))
    found = change(build(pipeline(mw.by("b"))), store)
    assert len(found.refusals) == 1
    assert change(build(pipeline(mw.by("b"))), store, ["Counter"]).refusals == ()


def test_an_accepted_extractor_is_what_the_store_knows_then(store: Store) -> None:
    started(store, pipeline())
    (line,) = started(store, pipeline(mw.by("b")), ["Counter"])
    assert "'Counter'" in line
    assert "by('a') and now is by('b') (accepted)" in line
    assert started(store, pipeline(mw.by("b"))) == []
    with pytest.raises(mw.PipelineError, match=r"was by\('b'\) and now is by\('a'\)"):
        started(store, pipeline())


def test_a_computation_without_a_row_may_have_other_keys(store: Store) -> None:
    started(store, pipeline())  # Echo keeps no state
    (line,) = started(store, pipeline(more=mw.by("b")))
    assert "'Echo'" in line
    assert "accepted" not in line


@pytest.mark.parametrize("accept", ["Counter", 7, ["Nobody"], None])
def test_accept_is_a_list_of_the_pipeline_s_computations(store: Store, accept: Any) -> None:
    with pytest.raises(mw.PipelineError, match="accept"):
        started(store, pipeline(), accept)


def test_extractors_of_ours_are_compared_by_value_under_every_python(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started(store, pipeline(lambda record: record.value["a"]), ["Counter"])
    later = types.SimpleNamespace(version_info=(sys.version_info[0], sys.version_info[1] + 1))
    monkeypatch.setattr(topology, "sys", later)
    _with_rows_of(store, "Echo")
    with pytest.raises(mw.PipelineError, match=r"Echo.*was by\('a'\) and now is by\('b'\)"):
        started(store, pipeline(lambda record: record.value["a"], more=mw.by("b")))
    with caplog.at_level(logging.INFO, logger="millwheel"):
        assert started(store, pipeline(lambda record: record.value["b"])) == []
    assert "cannot be compared" in caplog.text


def _with_rows_of(store: Store, name: str) -> None:
    from millwheel.model.codec import unpack
    from millwheel.store.keyspace import row_prefix, row_suffix

    with store.journal.snapshot() as snapshot:
        numbers = unpack(snapshot.get(b"numbers") or b"")
    with store.shards[0].snapshot() as snapshot:
        prefix = row_prefix(numbers["Counter"])
        row = snapshot.get(prefix + row_suffix("x"))
    assert row is not None
    store.shards[0].write([(row_prefix(numbers[name]) + row_suffix("x"), row)])


def test_our_own_code_is_no_part_of_a_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = topology.fingerprint(mw.by("a"))
    monkeypatch.setattr(type(mw.by("a")), "__call__", _another_call)
    assert topology.fingerprint(mw.by("a")) == before


def _another_call(self: Any, record: mw.Record) -> str:
    return str(record.value) * 2


_another_call.__module__ = "millwheel.model.keys"


def test_the_key_of_an_operator_is_compared_too(store: Store) -> None:
    def keyed(*fields: str) -> mw.Pipeline:
        p = mw.Pipeline("started")
        records = [mw.Record(value={"a": "x", "b": "y"}, timestamp=1)]
        stream = p.inject("in", mw.injectors.Records(records))
        stream.key_by(*fields).map(lambda value: value).process(Counter(), outputs=["counts"])
        return p

    started(store, keyed("a"))
    assert started(store, keyed("a")) == []
    with pytest.raises(mw.PipelineError, match=r"by\('a'\) and now is by\('a', 'b'\)"):
        started(store, keyed("a", "b"))


def test_every_run_on_spark_compares(tmp_path: Path, spark: SparkSession) -> None:
    where = str(tmp_path / "state")
    assert mw.run(pipeline(), store=where, spark=spark).changes_at_start == []
    with pytest.raises(mw.PipelineError, match="accept="):
        mw.run(pipeline(mw.by("b")), store=where, spark=spark)
    report = mw.run(pipeline(extra="New"), store=where, spark=spark)
    assert report.changes_at_start == ["added computation New"]
    with mw.start(pipeline(extra="New"), store=where, spark=spark) as job:
        assert job.status().changes_at_start == []
        with pytest.raises(mw.PipelineError, match="accept="):
            job.apply(pipeline(mw.by("b")))
        assert job.apply(pipeline(mw.by("b")), accept=["Counter"]).removed == ("New",)
    report = mw.run(pipeline(), store=where, spark=spark, accept=["Counter"])
    (line,) = report.changes_at_start
    assert "by('b') and now is by('a') (accepted)" in line
