"""`run` and `start`: a pipeline, a store, a Spark session."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from millwheel import tracebacks
from millwheel.errors import FencedError, PipelineError, StoreError
from millwheel.job import Job
from millwheel.master.balancer import Balancer
from millwheel.master.clock import WallClock
from millwheel.master.diff import change_at_start
from millwheel.master.driver import Driver
from millwheel.master.ending import Ending, Start
from millwheel.master.executor import Executor
from millwheel.master.intervals import shard_count
from millwheel.master.options import Options, OptionValues, takes_options
from millwheel.master.sizing import Sizer
from millwheel.master.standby import Standby
from millwheel.master.status import Report
from millwheel.model.graph import Graph, build
from millwheel.model.keys import TABLETS
from millwheel.model.pipeline import Pipeline
from millwheel.model.state_codecs import codecs_of
from millwheel.objects import is_object_url
from millwheel.store.base import Store
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.open import open_store
from millwheel.store.scratch import MEMORY, Scratch
from millwheel.watch.history import Recorder
from millwheel.watch.progress import Progress, place
from millwheel.watch.view import look

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Job", "run", "start"]

INTERRUPTED = 8.0
"""Seconds for the epoch in hand after a signal: whoever sends SIGTERM often sends SIGKILL after ten."""
_CACHE = 64_000_000  # bytes: a third of a million rows of a hundred bytes
_TARGET = 1.0
_TARGET_TO_THE_END = 3.0
"""Seconds: nobody waits for the records of a backlog one by one, and a larger epoch costs less for each."""
_LONGEST = 5.0
"""Seconds, while there is a backlog: see `Sizer`."""


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
        pipeline: What is run.
        store: A path (LMDB), a URL such as ``postgresql://host/database`` or ``s3://bucket/prefix``, or
            ``memory:``.
        spark: The session to run in; by default the active one, or a new one on this machine.
        close: False: end as soon as what was there is processed, and leave windows, timers and holds as they
            are; event time goes on in the next run.
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
    """Says what becomes of a run that was interrupted."""
    print(
        f"\nmillwheel: stopping after the epoch in hand, within {INTERRUPTED:.0f} s; interrupt again to end "
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
    """Starts a pipeline that keeps running until it is stopped. The options are those of `run`."""
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
    from millwheel.spark.session import local_context
    from millwheel.spark.warm import warm

    context = spark.sparkContext if spark is not None else local_context()
    make_ready(context, where)
    follow, cores = ending is Ending.NEVER, context.defaultParallelism
    slots = options.slots or min(cores, TABLETS)
    store, discard = _open(where, slots)
    try:
        cache = _cache_size(options.cache, store)
        check_store(context, store)
    except BaseException:
        store.close()
        discard()
        raise
    takeover = options.takeover  # what a standby has found out, once there is one
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    clock = WallClock.of_the_machine()

    def drive(graph: Graph, start: Start = Start.CHANGE) -> tuple[Driver, Executor]:
        driver = Driver(
            graph,
            store,
            replace(options, slots=slots, takeover=takeover),
            clock=clock,
            owner=owner,
            start=start,
            ending=ending,
            balancer=Balancer(slots, len(store.shards), cores) if options.balance else None,
        )
        if options.target is None:
            driver.sizer = Sizer(_TARGET if follow else _TARGET_TO_THE_END, _LONGEST)

        from millwheel.spark.job_executor import SparkExecutor
        from millwheel.spark.resident import with_resident_task

        try:
            jobs = SparkExecutor(context, driver.graph, driver.numbers, store, cache)
            return driver, with_resident_task(jobs) if options.resident else jobs
        except BaseException:
            driver.let_go()
            raise

    try:
        standby = Standby(store, owner, options.takeover_after) if options.standby else None
        if standby is not None:
            warm(context)
        while True:
            if standby is not None:
                takeover = standby.wait()
            try:
                changes = change_at_start(graph, store, options.accept)
                driver, executor = drive(graph, Start.RUN)
                break
            except (FencedError, StoreError):
                if standby is None or not standby.lost():
                    raise
        driver.tally.changes_at_start = changes
        try:
            page = _watch(driver, pipeline, context.uiWebUrl, options)
        except BaseException:
            executor.close()
            raise
    except BaseException:
        store.close()
        discard()
        raise

    out = place(options.progress, bounded=not follow)
    progress = Progress(out, bounded=not follow) if out is not None else None
    job = Job(
        driver,
        executor,
        until_exhausted=not follow,
        on_close=discard,
        progress=progress,
        rebuild=drive,
        slow_after=float(options.slow_after),
    )
    job.ui = page
    job.view = lambda: look(store, time.time_ns() // 1000)
    job.start()
    return job


def _cache_size(given: int | None, store: Store) -> int:
    """What reads of LMDB would save is less than keeping a second copy costs: also of a working copy."""
    if given is None:
        return 0 if isinstance(store, LmdbStore) or is_object_url(store.address) else _CACHE
    return given


def _watch(driver: Driver, pipeline: Pipeline, spark: str | None, options: Options) -> str | None:
    """Sets an observer over the driver, and serves the page where it is wanted; its address."""
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


def _open(where: str | os.PathLike[str], slots: int) -> tuple[Store, Callable[[], None]]:
    """The store, and what to do when it is closed.

    Spark's Python workers are processes of their own, so ``memory:`` is a folder in shared memory.
    """
    if os.fspath(where) not in ("memory:", "memory://"):
        return open_store(where, shards=shard_count(slots)), lambda: None
    scratch = Scratch("store", MEMORY if os.access(MEMORY, os.W_OK) else None)
    return LmdbStore(scratch.path / "store", shards=shard_count(slots), sync=False), scratch.close
