"""`run` and `start`: a pipeline, a store, a Spark session."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from millwheel import tracebacks
from millwheel.errors import FencedError, PipelineError, StoreError
from millwheel.job import SLOW_AFTER, Job
from millwheel.master.balancer import Balancer
from millwheel.master.clock import WallClock
from millwheel.master.diff import change_at_start
from millwheel.master.driver import Driver
from millwheel.master.executor import Executor
from millwheel.master.intervals import check_slots, shard_count
from millwheel.master.standby import TAKEOVER_AFTER, Standby, check_takeover_after
from millwheel.master.status import Report
from millwheel.model.graph import Graph, build
from millwheel.model.pipeline import Pipeline
from millwheel.objects import is_object_url
from millwheel.store.base import Store
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.open import open_store
from millwheel.store.scratch import MEMORY, Scratch
from millwheel.watch.history import Recorder
from millwheel.watch.key_view import codecs_of
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


def run(
    pipeline: Pipeline,
    *,
    store: str | os.PathLike[str],
    spark: SparkSession | None = None,
    close: bool = True,
    slots: int | None = None,
    target: float | None = None,
    due_limit: int | None = None,
    step_budget: float | None = None,
    compact_below: int | None = None,
    max_skew: int | None = None,
    cache: int | None = None,
    balance: bool = True,
    resident: bool = True,
    slow_after: float = SLOW_AFTER,
    accept: Collection[str] = (),
    takeover: bool = False,
    standby: bool = False,
    takeover_after: float = TAKEOVER_AFTER,
    watch: bool = True,
    trace: bool = False,
    ui: int | str | None = None,
    ui_token: str | None = None,
    progress: bool | None = None,
    **unknown: Any,
) -> Report:
    """Runs a pipeline until its injectors are exhausted and everything is drained.

    Args:
        pipeline: What is run.
        store: A path (LMDB), a URL such as ``postgresql://host/database`` or ``s3://bucket/prefix``, or
            ``memory:``.
        spark: The session to run in; by default the active one, or a new one on this machine.
        close: False: end as soon as what was there is processed, and leave windows, timers and holds as they
            are; event time goes on in the next run.
        slots: In how many pieces the key space is worked on at once; by default Spark's parallelism.
        target: Seconds that a full epoch is to take; by default 3, in `start` 1, with a backlog up to 5.
        due_limit: Keys with due timers that an interval takes up in one epoch; by default 100,000.
        step_budget: Seconds after which a step leaves its records to the next epoch; by default 1, or target.
        compact_below: Epochs of at most so many records run in one task; by default 4,000.
        max_skew: Microseconds that records may be read ahead of the slowest low watermark.
        cache: Bytes of the store that an executor keeps; by default 64 MB for PostgreSQL, none for LMDB.
        balance: Whether key intervals follow the load: move, split and merge.
        resident: Whether compact epochs that follow each other share one Spark task, which is faster.
        slow_after: Seconds after which a hook that has not returned is named in log, status and page.
        accept: Computations whose key extractors may be others than their rows in the store were made with.
        takeover: Whether to take the store from a driver that still holds it.
        standby: Whether to wait, ready to run, until no other driver leads the pipeline.
        takeover_after: Seconds without a sign of a leader that hangs, after which a standby takes over.
        watch: Whether the last minutes are noted in the store, for the page and `millwheel top`.
        trace: Whether each epoch becomes an OpenTelemetry span.
        ui: Serves a page: a port, on this machine alone, or an address such as ``"0.0.0.0:8080"``.
        ui_token: What a browser must know to see the page; by default a random one, if it listens wider.
        progress: Whether to show progress; by default in a terminal, in a notebook, and every ten seconds
            elsewhere for a run that ends by itself.
    """
    options = _given(locals())
    job = _launch(pipeline, store, spark, options, follow=False, close=close)
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


def start(
    pipeline: Pipeline,
    *,
    store: str | os.PathLike[str],
    spark: SparkSession | None = None,
    slots: int | None = None,
    target: float | None = None,
    due_limit: int | None = None,
    step_budget: float | None = None,
    compact_below: int | None = None,
    max_skew: int | None = None,
    cache: int | None = None,
    balance: bool = True,
    resident: bool = True,
    slow_after: float = SLOW_AFTER,
    accept: Collection[str] = (),
    takeover: bool = False,
    standby: bool = False,
    takeover_after: float = TAKEOVER_AFTER,
    watch: bool = True,
    trace: bool = False,
    ui: int | str | None = None,
    ui_token: str | None = None,
    progress: bool | None = None,
    **unknown: Any,
) -> Job:
    """Starts a pipeline that keeps running until it is stopped. The options are those of `run`."""
    return _launch(pipeline, store, spark, _given(locals()), follow=True)


_NO_OPTIONS = ("pipeline", "store", "spark", "close", "unknown")


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """The options among the arguments of a call, without those that were left open."""
    if arguments["unknown"]:
        known = ", ".join(name for name in arguments if name not in _NO_OPTIONS)
        unknown = ", ".join(sorted(arguments["unknown"]))
        raise PipelineError(f"unknown option {unknown}; there are {known}: see help(millwheel.run)")
    return {name: value for name, value in arguments.items() if name not in _NO_OPTIONS and value is not None}


def _launch(
    pipeline: Pipeline,
    where: str | os.PathLike[str],
    spark: SparkSession | None,
    options: dict[str, Any],
    *,
    follow: bool,
    close: bool = True,
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
    slots = options.get("slots") or min(context.defaultParallelism, 64)
    check_slots(slots)
    cores = context.defaultParallelism
    store, discard = _open(where, slots)
    try:
        cache = _cache_size(options.get("cache"), store)
        check_store(context, store)
    except BaseException:
        store.close()
        discard()
        raise
    passed = ("target", "due_limit", "compact_below", "max_skew", "step_budget", "takeover")
    given = {name: options[name] for name in passed if name in options}
    if "target" not in given:
        given |= {"target": _TARGET if follow else _TARGET_TO_THE_END, "longest": _LONGEST}

    owner = f"process {os.getpid()} on {socket.gethostname()}"
    clock = WallClock.of_the_machine()

    def drive(graph: Graph, *, locked: bool = True) -> tuple[Driver, Executor]:
        driver = Driver(
            graph,
            store,
            slots=slots,
            clock=clock,
            owner=owner,
            follow=follow,
            locked=locked,
            closes=close,
            begins=not locked,
            balancer=Balancer(slots, len(store.shards), cores) if options.get("balance", True) else None,
            **given,
        )

        from millwheel.spark.job_executor import SparkExecutor
        from millwheel.spark.resident import with_resident_task

        try:
            jobs = SparkExecutor(context, driver.graph, driver.numbers, store, cache)
            return driver, with_resident_task(jobs) if options.get("resident", True) else jobs
        except BaseException:
            driver.let_go()
            raise

    try:
        waits = check_takeover_after(options["takeover_after"])
        standby = Standby(store, owner, waits) if options.get("standby") else None
        if standby is not None:
            warm(context)
        while True:
            if standby is not None:
                given["takeover"] = standby.wait()
            try:
                changes = change_at_start(graph, store, options.get("accept", ()))
                driver, executor = drive(graph, locked=False)
                break
            except (FencedError, StoreError):
                if standby is None or not standby.lost():
                    raise
        driver.changes_at_start = changes
        try:
            page = _watch(driver, pipeline, context.uiWebUrl, options)
        except BaseException:
            executor.close()
            raise
    except BaseException:
        store.close()
        discard()
        raise

    out = place(options.get("progress"), bounded=not follow)
    progress = Progress(out, bounded=not follow) if out is not None else None
    job = Job(
        driver,
        executor,
        until_exhausted=not follow,
        on_close=discard,
        progress=progress,
        rebuild=drive,
        slow_after=_slow_after(options["slow_after"]),
    )
    job.ui = page
    job.view = lambda: look(store, time.time_ns() // 1000)
    job.start()
    return job


def _slow_after(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or given <= 0:
        raise PipelineError(f"the option slow_after is a number of seconds, such as 30, not {given!r}")
    return float(given)


def _cache_size(given: Any, store: Store) -> int:
    """What reads of LMDB would save is less than keeping a second copy costs: also of a working copy."""
    if given is None:
        return 0 if isinstance(store, LmdbStore) or is_object_url(store.address) else _CACHE
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise PipelineError(f"the option cache is a number of bytes, such as 64_000_000, or 0; not {given!r}")
    return given


def _watch(driver: Driver, pipeline: Pipeline, spark: str | None, options: dict[str, Any]) -> str | None:
    """Sets an observer over the driver, and serves the page where it is wanted; its address."""
    where = options.get("ui")
    if where is None and not options.get("watch", True) and not options.get("trace"):
        return None
    driver.observer = recorder = Recorder(driver, spark=spark)
    if options.get("trace"):
        from millwheel.watch.traces import Tracer

        recorder.on_epoch = Tracer(pipeline.name)
    if where is None:
        return None
    from millwheel.watch.server import Server

    server = Server(driver.store, where, token=options.get("ui_token"), codecs=codecs_of(pipeline))
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
