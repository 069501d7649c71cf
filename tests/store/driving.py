"""Drives a pipeline's epochs in this process, with the injectors it has and a store of one's choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import millwheel as mw
from millwheel.master.clock import WallClock
from millwheel.master.driver import Driver
from millwheel.master.ending import Ending, Start
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import Graph, build
from millwheel.store.base import Shard, Store
from millwheel.store.postgres.row_runs import Log
from millwheel.store.postgres.timer_bundles import Bundler
from millwheel.worker.step import Worker


def take(
    pipeline: mw.Pipeline,
    store: Store,
    *,
    owner: str = "a test",
    slots: int = 1,
    clock: WallClock | Callable[[], int] = lambda: 0,
    start: Start = Start.RECOVERY,
    ending: Ending = Ending.CLOSE,
    **options: Any,
) -> tuple[Driver, LocalExecutor]:
    """Makes a driver the owner of a store, and an executor for it."""
    return lead(build(pipeline), store, owner, slots, clock, start, ending, **options)


def lead(
    graph: Graph,
    store: Store,
    owner: str,
    slots: int,
    clock: WallClock | Callable[[], int],
    start: Start,
    ending: Ending,
    **options: Any,
) -> tuple[Driver, LocalExecutor]:
    """The driver and the executor of a graph."""
    given = Options(slots=slots, **options)
    driver = Driver(graph, store, given, clock=clock, owner=owner, start=start, ending=ending)
    return driver, LocalExecutor(Worker(graph, driver.numbers, store))


def run_to_the_end(driver: Driver, executor: LocalExecutor) -> mw.Report:
    """Epochs until the injectors are exhausted and everything is drained, as `millwheel.run` does."""
    while (plan := driver.next_plan_to_the_end()) is not None:
        driver.run(plan, executor)
    if not driver.ended:
        raise AssertionError("the driver has nothing to do, and its injectors are not exhausted")
    report = driver.report()
    driver.conclude()
    return report


def run(pipeline: mw.Pipeline, store: Store, **options: Any) -> mw.Report:
    """A whole run in this process."""
    driver, executor = take(pipeline, store, start=Start.RUN, **options)
    try:
        return run_to_the_end(driver, executor)
    finally:
        driver.close()


def contents(shard: Shard) -> dict[bytes, bytes]:
    """Everything that a shard holds."""
    with shard.snapshot() as snapshot:
        return dict(snapshot.scan(b"\x00", b"\xff" * 511))


def packing_much(store: Store) -> Store:
    """A store in PostgreSQL that packs also a single timer or row, as tests have few of them."""
    from millwheel.store.postgres.packing import Packing  # with psycopg, which not every machine has
    from millwheel.store.postgres.postgres_shard import PostgresShard

    for shard in store.shards:
        assert isinstance(shard, PostgresShard)
        shard.packing = Packing(Bundler(size=60, most=12, least=1), Log(most=4, least=1))
    return store
