"""Which version of a side table a record sees is decided by its epoch: a retry sees the same."""

from __future__ import annotations

import itertools
import logging
import threading
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.planner import Mode
from millwheel.model.graph import build
from millwheel.store.memory import MemoryStore
from millwheel.store.open import open_store
from millwheel.worker.plan import Plan
from millwheel.worker.side_tables import SideTables, read_version
from millwheel.worker.step import Worker
from tests.lookup.growing import Growing, Killed, Mortal, enriched
from tests.spark.waiting import eventually
from tests.store.driving import contents, take


def _seen(h: mw.testing.Harness) -> list[Any]:
    return [record.value["read"] for record in h.output("found")]


def test_a_table_is_read_at_the_start_and_again_when_refresh_has_passed() -> None:
    table = Growing()
    h = mw.testing.Harness(enriched(table, refresh=10))
    h.send("in", {"id": 0}, timestamp=1)
    h.advance_wall(9)
    h.send("in", {"id": 0}, timestamp=1)
    h.advance_wall(10)
    h.send("in", {"id": 0}, timestamp=1)
    assert (_seen(h), table.reads) == ([1, 1, 2], 2)


def test_without_refresh_it_is_read_at_each_start_alone() -> None:
    h = mw.testing.Harness(enriched(Growing()))
    h.send("in", {"id": 0}, timestamp=1)
    h.advance_wall(1 << 60)
    h.send("in", {"id": 0}, timestamp=1)
    h.reopen()
    h.send("in", {"id": 0}, timestamp=1)
    assert _seen(h) == [1, 1, 2]


def test_a_table_that_has_not_changed_gives_no_new_version() -> None:
    table = Growing(changes=False)
    h = mw.testing.Harness(enriched(table, refresh=10))
    for wall in (0, 10, 20):
        h.advance_wall(wall)
    assert table.reads == 3
    assert h.status().lookups["in.lookup"].version == 1
    assert h.status().lookups["in.lookup"].read_at == 20


def test_the_store_keeps_two_versions_and_no_more() -> None:
    h = mw.testing.Harness(enriched(Growing(), refresh=1))
    for wall in range(20):
        h.advance_wall(wall)
    with h.store.journal.snapshot() as snapshot:
        kept = [n for n in range(30) if read_version(snapshot, "in.lookup", n) is not None]
    assert kept == [19, 20]


@pytest.fixture
def killed_between(where: str) -> tuple[Growing, str]:
    """A store whose driver died when the first of two levels of an epoch had committed."""
    table = Growing()
    store = open_store(where, shards=2)
    driver, _ = take(enriched(table, refresh=1, records=8), store, slots=2, compact_below=0)
    plan = driver.next_plan()
    assert plan is not None
    with pytest.raises(Killed):
        driver.run(plan, Mortal(Worker(driver.graph, driver.numbers, store)))
    driver.let_go()
    store.close()
    return table, where


def test_an_epoch_that_is_run_again_sees_the_version_that_it_was_begun_with(
    killed_between: tuple[Growing, str],
) -> None:
    table, where = killed_between
    store = open_store(where)
    pipeline = enriched(table, refresh=1, records=8)
    found = pipeline.sinks[0][1]
    driver, executor = take(pipeline, store, slots=2, compact_below=0, clock=lambda: 100)
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    assert table.reads == 1, "an epoch that was begun needs the table no more"
    assert {record.value["read"] for record in found.records} == {1}  # type: ignore[attr-defined]
    assert len(found.records) == 8  # type: ignore[attr-defined]
    driver.close()


def test_one_that_continues_another_keeps_its_version() -> None:
    table = Growing()
    h = mw.testing.Harness(enriched(table, refresh=1), due_limit=1)
    with h.epoch():
        for id in range(3):
            h.send("in", {"id": id}, timestamp=id)
    reads = table.reads
    h.advance_wall(10)
    h.drain()
    last = [record.value["read"] for record in h.output("late")]
    assert len(last) == 3
    assert len(set(last)) == 1, "three epochs, as one key fires in each, and one version"
    assert table.reads > reads


def test_a_table_that_cannot_be_refreshed_is_seen_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    table = Growing()
    h = mw.testing.Harness(enriched(table, refresh=10))
    h.send("in", {"id": 0}, timestamp=1)
    table.broken = True
    with caplog.at_level(logging.WARNING, "millwheel"):
        h.advance_wall(10)
    h.send("in", {"id": 0}, timestamp=1)
    assert _seen(h) == [1, 1]
    assert "cannot be read (OSError: gone)" in caplog.text
    assert "records still see version 1" in caplog.text
    assert "gone" in h.status().lookups["in.lookup"].error
    assert "it cannot be refreshed" in str(h.status())
    table.broken = False
    h.advance_wall(20)
    h.send("in", {"id": 0}, timestamp=1)
    assert _seen(h) == [1, 1, 2]
    assert h.status().lookups["in.lookup"].error == ""


def test_a_restart_goes_on_with_the_version_in_the_store_where_the_table_is_gone() -> None:
    table = Growing()
    h = mw.testing.Harness(enriched(table))
    h.send("in", {"id": 0}, timestamp=1)
    table.broken = True
    h.crash()
    h.send("in", {"id": 0}, timestamp=1)
    assert _seen(h) == [1, 1]


def test_the_first_run_does_not_start_without_its_table() -> None:
    table = Growing()
    table.broken = True
    h = mw.testing.Harness(enriched(table))
    with pytest.raises(mw.InputError, match=r"lookup 'in.lookup': the table .* cannot be read .*gone"):
        h.send("in", {"id": 0}, timestamp=1)


def test_a_table_that_is_too_large_for_the_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.master.table_versions.LARGEST", 10)
    with pytest.raises(mw.InputError, match=r"every worker would hold it in memory: at most .*join it as a"):
        mw.testing.Harness(enriched(Growing())).send("in", {"id": 0}, timestamp=1)


def test_a_version_of_which_a_part_is_missing_is_none() -> None:
    h = mw.testing.Harness(enriched(Growing()))
    h.send("in", {"id": 0}, timestamp=1)
    journal = h.store.journal
    (part,) = [key for key in contents(journal) if key.startswith(b"L") and key.endswith(b"\x01")]
    journal.write([], [part])
    with journal.snapshot() as snapshot:
        assert read_version(snapshot, "in.lookup", 1) is None


def test_a_task_of_an_epoch_that_is_long_over_says_so() -> None:
    p = enriched(Growing())
    h = mw.testing.Harness(p)
    h.send("in", {"id": 0}, timestamp=1)
    (held,) = build(p).side_tables.values()
    plan = Plan(1, 0, 1, (), (), 0, {}, {}, {}, {}, {}, True, False, 1.0, 1, lookups={"in.lookup": 7})
    with pytest.raises(mw.EngineError, match=r"version 7 .* is not in the store: the epoch is over"):
        SideTables(h.store).of(plan, held)


def test_a_large_table_is_written_and_read_in_parts(where: str) -> None:
    table = Growing(rows=30_000, width=100)
    store = open_store(where)
    driver, executor = take(enriched(table, records=8), store)
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    with store.journal.snapshot() as snapshot:
        found = read_version(snapshot, "in.lookup", 1)
        assert found is not None
        assert len(found.rows) == 30_000
    driver.close()


def test_epochs_go_on_while_a_table_is_read() -> None:
    table, times = Growing(), itertools.count()
    driver, executor = take(enriched(table, refresh=1), MemoryStore(), clock=lambda: next(times))
    driver.lookups.background = True

    def version() -> int:
        plan = driver.next_plan(Mode.FORCED)
        assert plan is not None
        driver.run(plan, executor)
        return plan.lookups["in.lookup"]

    assert version() == 1
    table.gate = threading.Event()
    assert [version() for _ in range(3)] == [1, 1, 1]
    table.gate.set()
    eventually(lambda: version() > 1)
    driver.close()
