"""A store has one pipeline, one format, and one driver at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from millwheel.errors import FencedError, StoreError
from millwheel.master.journal import Journal
from millwheel.master.registry import enrol
from millwheel.model.codec import pack
from millwheel.model.graph import build
from millwheel.store.base import Store
from millwheel.store.lmdb.lmdb_store import LmdbStore
from tests.computations import Idle
from tests.store.driving import contents, run, take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _pipeline(name: str = "mine", injector: mw.Injector | None = None) -> mw.Pipeline:
    p = mw.Pipeline(name)
    records = [mw.Record(value=1, timestamp=1)]
    p.inject("in", injector if injector is not None else mw.injectors.Records(records))
    p.add(Idle(), name="C", inputs={"in": mw.by_key})
    return p


class Endless(mw.Injector):
    """Never has anything, and never ends."""

    bounded = False

    def poll(self) -> dict[str, int]:
        return {}


class TestOneDriverAtATime:
    def test_a_second_driver_is_refused_with_the_name_of_the_first(self, store: Store) -> None:
        driver, _ = take(_pipeline(), store, owner="process 1 on host one")
        with pytest.raises(StoreError, match="in use by process 1 on host one"):
            store.lock("process 2 on host two")
        driver.close()

    def test_a_second_process_is_refused_with_the_name_of_the_first(self, tmp_path: Path) -> None:
        store = LmdbStore(tmp_path)
        store.lock("process 1 on host one")
        script = """
import sys
from millwheel.errors import StoreError
from millwheel.store.lmdb.lmdb_store import LmdbStore
store = LmdbStore(sys.argv[1])
try:
    store.lock("process 2")
except StoreError as error:
    print(error)
"""
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert "in use by process 1 on host one" in done.stdout
        assert "stop that one first" in done.stdout
        store.close()

    def test_a_refused_driver_leaves_the_name_of_the_owner(self, tmp_path: Path) -> None:
        store = LmdbStore(tmp_path)
        store.lock("the owner")
        for _ in range(2):
            with pytest.raises(StoreError, match="the owner"):
                store.lock("somebody else")
        store.close()

    def test_the_store_is_free_when_the_first_is_closed(self, tmp_path: Path) -> None:
        first = LmdbStore(tmp_path)
        first.lock("the first, with a long name")
        first.close()
        second = LmdbStore(tmp_path)
        second.lock("second")
        with pytest.raises(StoreError, match="in use by second:"):
            second.lock("third")
        second.close()

    def test_a_store_that_is_open_in_this_process_is_refused_with_the_name_of_its_driver(
        self, tmp_path: Path
    ) -> None:
        first = LmdbStore(tmp_path)
        first.lock("the first driver")
        with pytest.raises(StoreError, match="in use by the first driver"):
            LmdbStore(tmp_path).lock("the second driver")
        first.close()

    @pytest.mark.spark
    def test_a_second_job_in_this_process_is_refused_while_the_first_goes_on(
        self, tmp_path: Path, spark: SparkSession
    ) -> None:
        with mw.start(_pipeline(injector=Endless()), store=tmp_path / "store", spark=spark) as job:
            with pytest.raises(StoreError, match=r"in use by process \d+ on "):
                mw.start(_pipeline(injector=Endless()), store=tmp_path / "store", spark=spark)
            job.status()


class TestOnePipeline:
    def test_a_store_of_another_pipeline_is_refused_and_named(self, make_store: Callable[..., Store]) -> None:
        store = make_store()
        journal = Journal(store)
        journal.acquire(build(_pipeline("theirs")), "them")
        before = contents(store.journal)
        with pytest.raises(StoreError, match="belongs to the pipeline 'theirs', not to 'mine'"):
            Journal(store).acquire(build(_pipeline("mine")), "me")
        assert contents(store.journal) == before

    def test_the_pipeline_that_was_refused_takes_nothing_from_the_other(self, tmp_path: Path) -> None:
        run(_pipeline("theirs"), LmdbStore(tmp_path))
        with pytest.raises(StoreError):
            run(_pipeline("mine"), LmdbStore(tmp_path))
        report = run(_pipeline("theirs"), LmdbStore(tmp_path))
        assert report.records_in == 0

    @pytest.mark.spark
    def test_run_refuses_the_store_of_another_pipeline_and_lets_go_of_it(
        self, tmp_path: Path, spark: SparkSession
    ) -> None:
        mw.run(_pipeline("theirs"), store=tmp_path / "store", spark=spark)
        with pytest.raises(StoreError, match="belongs to the pipeline 'theirs'"):
            mw.run(_pipeline("mine"), store=tmp_path / "store", spark=spark)
        mw.run(_pipeline("theirs"), store=tmp_path / "store", spark=spark)


class TestOneFormat:
    def test_a_store_of_another_format_is_refused(self, make_store: Callable[..., Store]) -> None:
        store = make_store()
        store.journal.write([(b"format", pack(99))])
        with pytest.raises(StoreError, match="format 99"):
            Journal(store).acquire(build(_pipeline()), "me")

    def test_a_refused_format_is_not_overwritten(self, store: Store) -> None:
        store.journal.write([(b"format", pack(99))])
        before = contents(store.journal)
        with pytest.raises(StoreError):
            take(_pipeline(), store)
        assert contents(store.journal) == before


def test_numbers_of_computations_are_never_given_twice(store: Store) -> None:
    def numbers(*names: str) -> dict[str, int]:
        p = mw.Pipeline("mine")
        p.inject("in", mw.injectors.Records([]))
        for name in names:
            p.add(Idle(), name=name, inputs={"in": mw.by_key})
        journal = Journal(store)
        journal.acquire(build(p), "me")
        return enrol(journal, store, build(p), journal.recover()).numbers

    assert numbers("a", "b") == {"a": 0, "b": 1}
    assert numbers("c")["c"] == 2
    assert numbers("d", "a") == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_of_two_drivers_that_start_in_the_same_moment_one_is_refused(store: Store) -> None:
    graph = build(_pipeline())
    first, second = Journal(store), Journal(store)
    original = store.journal.write

    def in_between(*arguments: object) -> None:
        store.journal.write = original  # type: ignore[method-assign]
        second.acquire(graph, "the faster one")
        original(*arguments)  # type: ignore[arg-type]

    store.journal.write = in_between  # type: ignore[method-assign]
    with pytest.raises(FencedError, match="the faster one"):
        first.acquire(graph, "the slower one")
