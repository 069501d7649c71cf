"""`run` and `start`: a pipeline, a store, a Spark session."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from millwheel import tracebacks
from millwheel.errors import FencedError, MillWheelError, PipelineError, StoreError
from millwheel.job import Job
from millwheel.master.balancer import Balancer
from millwheel.master.clock import WallClock
from millwheel.master.diff import change_at_start
from millwheel.master.driver import Driver
from millwheel.master.ending import Ending, Start
from millwheel.master.executor import Executor
from millwheel.master.intervals import check_slots, shard_count, tablet_count
from millwheel.master.options import Options, OptionValues, takes_options
from millwheel.master.sizing import Sizer
from millwheel.master.standby import Standby
from millwheel.master.standby_audit import StandbyAudit
from millwheel.master.status import Report
from millwheel.model.graph import Graph, build
from millwheel.model.keys import TABLETS
from millwheel.model.pipeline import Pipeline
from millwheel.model.state_codecs import codecs_of
from millwheel.objects import is_object_url
from millwheel.store.base import Store
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.open import open_store, place_of
from millwheel.store.scratch import MEMORY, Scratch
from millwheel.watch.history import Recorder
from millwheel.watch.progress import Progress, place
from millwheel.watch.view import look

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from typing_extensions import Unpack  # in the standard library from Python 3.11 on

__all__ = ["Job", "run", "start"]

INTERRUPTED = 8.0
"""Seconds for the epoch after a signal: SIGKILL often follows SIGTERM after ten."""
_CACHE = 64_000_000  # bytes: a third of a million rows of a hundred bytes
_TARGET = 1.0
_TARGET_TO_THE_END = 3.0
"""Seconds: single records of a backlog can wait, and a larger epoch is cheaper."""
_LONGEST = 5.0
"""Seconds, with a backlog: see `Sizer`."""


@takes_options
def run(
    pipeline: Pipeline,
    *,
    store: str | os.PathLike[str],
    spark: SparkSession | None = None,
    close: bool = True,
    **options: Unpack[OptionValues],
) -> Report:
    """Runs a pipeline until its injectors are exhausted and everything is drained.

    The other keyword arguments are `Options`.

    Args:
        pipeline: The pipeline to run.
        store: A path (LMDB), a URL such as ``postgresql://host/database`` or ``s3://bucket/prefix``, or
            ``memory:``.
        spark: The session to run in; by default the active one, or a new one on this machine.
        close: False: end when the input at the start is processed, and leave windows, timers and holds as
        they are; event time continues in the next run.
    """
    ending = Ending.CLOSE if close else Ending.LEAVE_OPEN
    job = _launch(pipeline, store, spark, Options.of(options), ending)
    try:
        report = job.wait()
    except KeyboardInterrupt:
        tell_of_the_stop()
        try:
            job.stop(timeout=INTERRUPTED)
        except KeyboardInterrupt:
            job.stop(timeout=0.0)
        raise
    assert report is not None
    return report


def tell_of_the_stop() -> None:
    """Prints what happens to an interrupted run."""
    print(
        f"\nmillwheel: stopping after the current epoch, within {INTERRUPTED:.0f} s; interrupt again to end "
        "it at once. Nothing is lost: the next run on the store continues",
        file=sys.stderr,
        flush=True,
    )


@takes_options
def start(
    pipeline: Pipeline,
    *,
    store: str | os.PathLike[str],
    spark: SparkSession | None = None,
    **options: Unpack[OptionValues],
) -> Job:
    """Starts a pipeline that runs until it is stopped; the options are `run`'s."""
    return _launch(pipeline, store, spark, Options.of(options), Ending.NEVER)


def _launch(
    pipeline: Pipeline,
    where: str | os.PathLike[str],
    spark: SparkSession | None,
    options: Options,
    ending: Ending,
) -> Job:
    tracebacks.install()
    if not isinstance(pipeline, Pipeline):
        raise PipelineError(f"a millwheel.Pipeline is run, not {pipeline!r}")
    graph = build(pipeline)

    from millwheel.spark.cluster import check_store, make_ready
    from millwheel.spark.jvm import check_before_epochs
    from millwheel.spark.session import context_of, local_context

    context = context_of(spark) if spark is not None else local_context()
    make_ready(context, where)
    wanted = options.slots or min(context.defaultParallelism, options.tablets or TABLETS)
    store, discard = _open(where, wanted, options.tablets)
    try:
        slots = options.slots or min(context.defaultParallelism, store.tablets)
        check_slots(slots, store.tablets)
        cache = _cache_size(options.cache, store)
        check_store(context, store)
        launch = _Launch(context, store, cache, replace(options, slots=slots), ending)
        driver, executor = launch.lead(graph)
        try:
            page = _watch(driver, pipeline, context.uiWebUrl, options)
        except BaseException:
            executor.close()
            raise
    except BaseException as error:
        store.close()
        discard()
        if isinstance(error, Exception) and not isinstance(error, MillWheelError):
            check_before_epochs(context, "the start", error)
        raise

    bounded = ending is not Ending.NEVER
    out = place(options.progress, bounded=bounded)
    job = Job(
        driver,
        executor,
        until_exhausted=bounded,
        on_close=discard,
        progress=Progress(out, bounded=bounded) if out is not None else None,
        rebuild=launch.drive,
        slow_after=float(options.slow_after),
    )
    job.ui = page
    job.view = lambda: look(store, time.time_ns() // 1000)
    job.start()
    return job


class _Launch:
    """Makes the drivers of one run: the first, and one for each change."""

    def __init__(
        self, context: SparkContext, store: Store, cache: int, options: Options, ending: Ending
    ) -> None:
        self._context = context
        self._store = store
        self._cache = cache
        self._options = options
        self._ending = ending
        self._owner = f"process {os.getpid()} on {socket.gethostname()}"
        self._clock = WallClock.of_the_machine()

    def lead(self, graph: Graph) -> tuple[Driver, Executor]:
        """The first driver; a standby waits until it may have the store."""
        options, store, standby = self._options, self._store, None
        if options.standby:
            from millwheel.spark.jvm import check_before_epochs
            from millwheel.spark.warm import warm

            able = partial(check_before_epochs, self._context, "this standby cannot take over")
            standby = Standby(store, self._owner, options.takeover_after, able=able)
            warm(self._context)
        while True:
            if standby is not None:  # which has checked whether the leader has failed
                with StandbyAudit(store):
                    takeover = standby.wait()
                self._options = replace(options, takeover=takeover)
            try:
                changes = change_at_start(graph, store, options.accept)
                driver, executor = self.drive(graph, Start.RUN)
                break
            except (FencedError, StoreError):
                if standby is None or not standby.lost():
                    raise
        driver.tally.changes_at_start = changes
        return driver, executor

    def drive(self, graph: Graph, start: Start = Start.CHANGE) -> tuple[Driver, Executor]:
        """A driver, and the executor for its epochs on Spark."""
        options, slots, cores = self._options, self._options.slots, self._context.defaultParallelism
        assert slots is not None
        driver = Driver(
            graph,
            self._store,
            options,
            clock=self._clock,
            owner=self._owner,
            start=start,
            ending=self._ending,
            balancer=Balancer(slots, len(self._store.shards), cores, self._store.tablets)
            if options.balance
            else None,
        )
        driver.lookups.background = True
        if options.target is None:
            follow = self._ending is Ending.NEVER
            driver.sizer = Sizer(_TARGET if follow else _TARGET_TO_THE_END, _LONGEST)

        from millwheel.spark.job_executor import SparkExecutor
        from millwheel.spark.resident import with_resident_task

        try:
            jobs = SparkExecutor(self._context, driver.graph, driver.numbers, self._store, self._cache)
            return driver, with_resident_task(jobs) if options.resident else jobs
        except BaseException:
            driver.let_go()
            raise


def _cache_size(given: int | None, store: Store) -> int:
    """The size of the cache; none for LMDB, where a copy costs more than it saves."""
    if given is None:
        return 0 if isinstance(store, LmdbStore) or is_object_url(store.address) else _CACHE
    return given


def _watch(driver: Driver, pipeline: Pipeline, spark: str | None, options: Options) -> str | None:
    """Adds an observer to the driver, and serves the page if requested; its address."""
    where = options.ui
    if where is None and not options.watch and not options.trace:
        return None
    driver.observer = recorder = Recorder(driver, spark=spark)
    if options.trace:
        from millwheel.watch.traces import Tracer

        recorder.on_epoch = Tracer(pipeline.name)
    if where is None:
        return None
    from millwheel.watch.server import Server

    server = Server(driver.store, where, token=options.ui_token, codecs=codecs_of(pipeline))
    recorder.before_close = server.close
    print(f"millwheel: {pipeline.name} is shown at {server.url}", file=sys.stderr, flush=True)
    return server.url


def _open(where: str | os.PathLike[str], slots: int, tablets: int | None) -> tuple[Store, Callable[[], None]]:
    """The store, and a function to call after it is closed; ``tablets`` as given.

    Spark's Python workers are processes of their own, so ``memory:`` is a folder in shared memory.
    """
    count = tablets or tablet_count(slots)
    shards = shard_count(slots, count)
    if os.fspath(where) in ("memory:", "memory://"):
        scratch = Scratch("store", MEMORY if os.access(MEMORY, os.W_OK) else None)
        folder = scratch.path / "store"
        return LmdbStore(folder, shards=shards, tablets=count, sync=False), scratch.close
    store = open_store(where, shards=shards, tablets=count)
    if tablets not in (None, store.tablets):
        store.close()
        raise PipelineError(
            f"the store {place_of(store.address)} has {store.tablets} tablets, not {tablets}: leave out the "
            f"option, or copy it (millwheel store copy FROM TO --tablets {tablets})"
        )
    return store, lambda: None
