"""Runs epochs as Spark jobs: one RDD job for each.

A small epoch is one task. A larger one is a stage that injects and a stage for each level, with a
shuffle before each; Spark handles (slot, bytes) only.
"""

from __future__ import annotations

import logging
import queue
import re
import shutil
import threading
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException

from millwheel.errors import EngineError, Interrupted, UserCodeError
from millwheel.master.collection import paused_collection
from millwheel.model.graph import Graph
from millwheel.spark.jvm import check_alive
from millwheel.spark.placement import Addressed, Last, Placement, allows_placement
from millwheel.spark.shared_memory import Parcels
from millwheel.spark.tasks import InjectTask, LevelTask, Shipment, WholeTask, ship, slot_of
from millwheel.store.base import Store
from millwheel.store.objects.object_store import ObjectStore
from millwheel.worker.activity import Note, read_notes
from millwheel.worker.commit import await_commits, weak_levels
from millwheel.worker.envelope import Frame
from millwheel.worker.plan import Plan

logger = logging.getLogger("millwheel")

_LONGEST_WAIT = 10.0  # seconds for a write that follows its epoch; it takes milliseconds

_ATTEMPTS = 3  # at a whole epoch, after Spark's own attempts at its tasks: an epoch is idempotent


class SparkExecutor:
    """Runs plans as Spark jobs, and returns their frames."""

    def __init__(
        self, context: SparkContext, graph: Graph, numbers: dict[str, int], store: Store, cache: int = 0
    ) -> None:
        self.context = context
        self._store = store
        self.name = graph.name
        self._shown = context.uiWebUrl is not None
        self.job: int | None = None
        self._depth = len(graph.levels)
        self._weak = weak_levels(graph)
        self._broadcast = context.broadcast(ship(graph, numbers, store.address, cache))
        self._bases: dict[int, RDD[int]] = {}
        # LMDB's store is shared by all executors: a slot has its state anywhere.
        stays = cache > 0 or isinstance(store, ObjectStore)
        self.placement = Placement(context) if stays and allows_placement(context) else None
        self.parcels = Parcels(context)
        self.shipment = Shipment(uuid.uuid4().hex, self._broadcast, self.parcels.notes)
        self._group = f"millwheel-{self.shipment.id}"
        self._grouped: int | None = None
        self._cancelled = False
        self.cleaner = _Cleaner(context)

    def execute(self, plan: Plan) -> list[Frame]:
        """Runs one epoch; retries after Spark gave up, if that may help."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                shipment = replace(self.shipment, careful=True) if attempt > 1 else self.shipment
                parcels = self._run(plan, shipment)
                with paused_collection():
                    frames = [Frame.from_bytes(data) for data in parcels]
                if self.placement is not None:
                    self.placement.count(frames)
                if any(frame.error for frame in frames) or self._settled(plan):
                    return frames
                logger.warning("epoch %d: attempt %d: a deferred write was lost", plan.epoch, attempt)
            except (Py4JError, PySparkException, ConnectionError) as error:
                if self._cancelled:
                    raise Interrupted(f"epoch {plan.epoch} was cancelled before it was committed") from error
                check_alive(self.context, f"epoch {plan.epoch}", error)
                self._blame_a_hook(error)
                if attempt == _ATTEMPTS:
                    raise EngineError(
                        f"epoch {plan.epoch}: Spark gave up after {_ATTEMPTS} attempts: {_reason(error)}\n"
                        "Nothing is lost: the epoch is journaled; run again to continue it"
                    ) from error
                logger.warning("epoch %d: attempt %d failed: %s", plan.epoch, attempt, _reason(error))
        raise EngineError(
            f"epoch {plan.epoch}: computations with weak productions could not commit in {_ATTEMPTS} "
            "attempts. Nothing is lost: the epoch is journaled; run again to continue it"
        )

    def _blame_a_hook(self, error: Exception) -> None:
        """Raises if a worker died in a hook, which retries have recorded."""
        for note in self.doing():
            if note.computation is not None and note.exact and not note.alive:
                raise UserCodeError(
                    f"{note.place}: the Python worker died in it {_times(error)}. A crash (segmentation "
                    "fault), os._exit, or the kernel, when memory was short, ends a process so. It had "
                    f"{note.hand}",
                    computation=note.computation,
                    key=note.key,
                    details="Nothing of the epoch is committed: running again continues with this key",
                ) from error

    def doing(self) -> list[Note]:
        """The activities of workers on this machine."""
        folder = self.parcels.notes
        return read_notes(None if folder is None else Path(folder))

    def cancel(self) -> None:
        """Cancels the running epoch; Spark kills a Python worker that does not answer."""
        self._cancelled = True
        try:
            self.context.cancelJobGroup(self._group)
        except Exception:  # Spark has ended, and with it the epoch
            logger.debug("the epoch could not be cancelled", exc_info=True)

    def _settled(self, plan: Plan) -> bool:
        """Whether the writes of weak levels are done, or will be soon."""
        return await_commits(self._store, plan, self._weak, _LONGEST_WAIT)

    def _run(self, plan: Plan, shipment: Shipment) -> list[bytes]:
        if not self._shown:
            # A group belongs to a thread: it is set once, and is what `cancel` cancels.
            if self._grouped != threading.get_ident():
                self.context.setJobGroup(self._group, self.name)
                self._grouped = threading.get_ident()
            return self._collect(plan, shipment)
        # A job of Spark's page has the epoch in its name, and our page has the job of an epoch.
        self._group = f"millwheel-{self.shipment.id}-{plan.epoch}"
        self.context.setJobGroup(self._group, f"{self.name}: epoch {plan.epoch}")
        try:
            return self._collect(plan, shipment)
        finally:
            with suppress(Py4JError, ConnectionError):  # a Spark that has ended is reported elsewhere
                jobs = self.context.statusTracker().getJobIdsForGroup(self._group)
                self.job = max(jobs, default=None)

    def _collect(self, plan: Plan, shipment: Shipment) -> list[bytes]:
        data = plan.to_bytes()
        placement = self.placement
        if placement is not None and not placement.refresh(plan.slots):
            placement = None
        if plan.compact or not self._depth:
            return self.base_of_one().mapPartitions(WholeTask(shipment, data)).collect()
        if placement is not None:
            return self._collect_placed(placement, plan, shipment, data)
        folder = self.parcels.folder(plan.epoch)
        rdd: RDD[Any] = self._base(plan.tasks or plan.slots)
        if plan.tasks:
            rdd = rdd.mapPartitionsWithIndex(InjectTask(shipment, data, folder))
        for level in range(1, self._depth + 1):
            if level > 1 or plan.tasks:
                rdd = rdd.partitionBy(plan.slots, slot_of)
            task = LevelTask(shipment, data, level, level == self._depth, folder)
            rdd = rdd.mapPartitionsWithIndex(task)
        try:
            return rdd.collect()
        finally:
            self.cleaner.clean(rdd, folder)

    def _collect_placed(
        self, placement: Placement, plan: Plan, shipment: Shipment, data: bytes
    ) -> list[bytes]:
        """Runs a wide epoch with each slot where it ran before."""
        rdd: RDD[Any] = self._base(plan.tasks) if plan.tasks else placement.base(plan.slots)
        if plan.tasks:
            rdd = rdd.mapPartitionsWithIndex(Addressed(InjectTask(shipment, data, None)))
        senders = plan.tasks
        for level in range(1, self._depth + 1):
            if senders:
                rdd = placement.shuffled(rdd, senders, plan.slots)
            task = LevelTask(shipment, data, level, level == self._depth, None)
            rdd = rdd.mapPartitionsWithIndex(Last(task) if task.last else Addressed(task))
            senders = plan.slots
        try:
            return rdd.collect()
        finally:
            self.cleaner.clean(rdd, None)

    def base_of_one(self) -> RDD[Any]:
        """An RDD with one partition, for a task that runs whole epochs."""
        if self.placement is not None and self.placement.refresh(self.placement.slots or 1):
            return self.placement.base_of_one()
        return self._base(1)

    def _base(self, partitions: int) -> RDD[int]:
        """An RDD with this many nearly empty partitions, made once."""
        if partitions not in self._bases:
            self._bases[partitions] = self.context.parallelize(range(partitions), partitions)
        return self._bases[partitions]

    def close(self) -> None:
        """Releases what Spark holds for this pipeline."""
        self.cleaner.close()
        self.parcels.close()
        try:
            self._broadcast.destroy()
        except Exception:  # Spark may have ended already, and with it the broadcast
            logger.debug("the broadcast of a topology could not be destroyed", exc_info=True)


class _Cleaner:
    """Drops shuffle files and frames of finished epochs, in the background.

    Spark would keep its own until the driver's JVM collects garbage, every half hour by default.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._queue: queue.SimpleQueue[tuple[RDD[Any], str | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="millwheel-shuffles", daemon=True)
        self._thread.start()

    def clean(self, rdd: RDD[Any], folder: str | None) -> None:
        """Schedules the removal of an RDD's shuffles, and of a folder of frames."""
        self._queue.put((rdd, folder))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (found := self._queue.get()) is not None:
            rdd, folder = found
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            try:
                self._drop(rdd)
            except Exception:  # a Spark that is shutting down; its files go with it
                logger.debug("shuffles could not be dropped", exc_info=True)

    def _drop(self, rdd: RDD[Any]) -> None:
        cleaner = self._context._jsc.sc().cleaner()
        if cleaner.isEmpty():
            return
        current = rdd._jrdd.rdd()
        while True:
            dependencies = current.dependencies()
            if dependencies.isEmpty():
                return
            dependency = dependencies.head()
            if "ShuffleDependency" in dependency.getClass().getName():
                cleaner.get().doCleanupShuffle(dependency.shuffleId(), False)
            current = dependency.rdd()


def _times(error: Exception) -> str:
    """How often Spark has tried a task, if its message has it."""
    found = re.search(r"failed (\d+) times", str(error))
    return f"{found[1]} times" if found else "again and again"


def _reason(error: Exception) -> str:
    """The end of a worker's traceback if there is one, else Spark's first line."""
    text = str(error)
    _, mark, trace = text.rpartition("Traceback (most recent call last):")
    lines = [line for line in (trace if mark else text).splitlines() if line.strip()]
    if mark:
        lines = [line for line in lines if not line[0].isspace()]
    return lines[0].strip() if lines else type(error).__name__
