"""What Spark's Python workers run: callables that carry a plan to tasks."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from pyspark import TaskContext
from pyspark.cloudpickle import dumps as cloud_dumps

from millwheel.errors import MillWheelError, PipelineError
from millwheel.model import codec
from millwheel.model.graph import Graph
from millwheel.spark.shared_memory import Parcel, receive, send
from millwheel.store.base import Store
from millwheel.store.lmdb.environment import LmdbShard
from millwheel.store.lmdb.lmdb_errors import explained
from millwheel.store.lmdb.manifest import private_folder
from millwheel.store.open import open_store, open_to_read, place_of
from millwheel.worker.cache import Cache
from millwheel.worker.commit import settle_after
from millwheel.worker.epoch import inject, run_epoch, run_level
from millwheel.worker.plan import Plan
from millwheel.worker.step import Worker

logger = logging.getLogger("millwheel")

dumps: Callable[[Any], bytes] = cloud_dumps
"""Pickles what is defined in a script or a notebook by value."""


def ship(graph: Graph, numbers: dict[str, int], address: str, cache: int = 0) -> bytes:
    """Pickles the topology: definitions of a script by value, the rest by name.

    The driver's import path comes first: a module beside the user's script is found if the workers
    see the same disk.
    """
    try:
        topology = dumps((codec.registered(), graph, numbers, address, cache))
    except Exception as error:
        raise PipelineError(f"{_culprit(graph)} cannot be sent to the workers ({error})") from error
    return pickle.dumps((list(sys.path), topology))


def _culprit(graph: Graph) -> str:
    """The part of a pipeline that does not pickle."""
    parts: dict[str, Any] = {f"computation {name!r}": node for name, node in graph.nodes.items()}
    parts |= {f"the injector of {source.stream!r}": source.injector for source in graph.sources}
    parts |= {f"the sink of {stream!r}": sinks for stream, sinks in graph.sinks.items()}
    for name, part in parts.items():
        try:
            dumps(part)
        except Exception:
            return f"pipeline {graph.name!r}: {name} has a value that does not pickle, so it"
    return f"pipeline {graph.name!r}"


@dataclass
class Shipment:
    """A topology for the workers; by its ``id`` a worker recognises one that it has."""

    id: str
    broadcast: Any
    notes: str | None = None
    """The folder for notes of the workers' activity, on the driver's machine."""
    careful: bool = False
    """Whether every hook is noted first: the epoch has killed workers before."""

    def watched(self, worker: Worker, plan: Plan) -> AbstractContextManager[None]:
        """Wraps a worker's task, so that its activity is visible."""
        attempt = TaskContext.get()
        careful = self.careful or (attempt is not None and attempt.attemptNumber() > 0)
        return worker.activity.task(plan.epoch, self.notes, careful=careful)


_stores: dict[str, Store] = {}
_workers: dict[str, Worker] = {}


def _worker(shipment: Shipment) -> Worker:
    """This process's worker for a topology, made once to keep its soft state."""
    worker = _workers.get(shipment.id)
    if worker is None:
        path, topology = pickle.loads(shipment.broadcast.value)
        sys.path.extend(entry for entry in path if entry not in sys.path)
        classes, graph, numbers, address, cache = pickle.loads(topology)
        for cls in classes.values():
            codec.register(cls)
        store = _store(address)
        for old in [id for id, known in _workers.items() if known.store is store]:
            del _workers[old]  # the topology was changed: the old one is no longer used
            shutil.rmtree(_scratch(old), ignore_errors=True)
        worker = Worker(graph, numbers, store, cache=open_cache(shipment.id, cache), home=_home())
        _workers[shipment.id] = worker
        _permanent.begin()
    return worker


def open_cache(id: str, size: int) -> Cache | None:
    """The cache that this executor's Python workers share, if there is one."""
    if not size:
        return None

    def shelf(shard: int) -> LmdbShard:
        folder = _scratch(id)
        with explained(folder):
            private_folder(folder)
        return LmdbShard(folder / f"shard-{shard:02d}", sync=False, map_size=size)

    return Cache(shelf, size)


def _home() -> str:
    """A short name of this executor, by the folders that Spark has made for it alone."""
    return xxhash.xxh3_64_hexdigest(os.environ.get("SPARK_LOCAL_DIRS", "").encode())


def _scratch(id: str) -> Path:
    """A folder of this executor, which Spark removes at its end."""
    folders = os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
    return Path(folders.split(",")[0]) / f"millwheel-cache-{id}"


def _store(address: str) -> Store:
    """This process's handle of a store; closes one of an earlier store at that place."""
    if address not in _stores:
        place = place_of(address)
        for old in [known for known in _stores if place_of(known) == place]:
            _stores.pop(old).close()
        _stores[address] = open_store(address)
    return _stores[address]


@contextmanager
def reading(address: str) -> Iterator[Store]:
    """A store to read: this process's handle if it has one (LMDB opens once).

    Without an ``id``, an address means any store that the process has open there.
    """
    if address == place_of(address):
        for known, store in _stores.items():
            if place_of(known) == address:
                yield store
                return
    elif any(place_of(known) == place_of(address) for known in _stores):
        yield _store(address)
        return
    store = open_to_read(address)
    try:
        yield store
    finally:
        store.close()


@dataclass
class InjectTask:
    """Stage 0."""

    shipment: Shipment
    plan: bytes
    folder: str | None
    """For large frames, if the next stage sees the same disk."""

    def __call__(self, index: int, items: Iterable[Any]) -> Iterator[tuple[int, Parcel]]:
        _drain(items)
        worker, plan = _worker(self.shipment), Plan.from_bytes(self.plan)
        with no_collection(), self.shipment.watched(worker, plan):
            frames = inject(worker, plan, index, dumps)
        yield from send(frames, self.folder)


@dataclass
class LevelTask:
    """One level: the partition is the slot. The last level returns only reports."""

    shipment: Shipment
    plan: bytes
    level: int
    last: bool
    folder: str | None

    def __call__(self, index: int, items: Iterable[Any]) -> Iterator[Any]:
        received = receive(items)
        plan = Plan.from_bytes(self.plan)
        worker = _worker(self.shipment)
        with no_collection(), self.shipment.watched(worker, plan):
            frames = run_level(worker, plan, self.level, index, received, dumps)
        if self.level in worker.weak and not self.last:
            _settle_later(worker, plan, self.level)
        if self.last:
            yield frames[index].to_bytes()
            return
        yield from send(frames, self.folder)


def _settle_later(worker: Worker, plan: Plan, level: int) -> None:
    """Makes a weak level's write after the later commits, in the background.

    If the process dies meanwhile, the driver finds it missing and runs the epoch again."""
    deferred = worker.take_deferred(plan, level)
    later = range(level + 1, len(worker.graph.levels) + 1)

    def wait() -> None:
        try:
            settle_after(worker.store, plan, later, deferred)
        except MillWheelError as error:  # fenced, or the disk is full: the driver will fail by that too
            logger.warning("epoch %d, level %d: %s", plan.epoch, level, error)

    threading.Thread(target=wait, name="millwheel-settles", daemon=True).start()


@dataclass
class WholeTask:
    """A small epoch: the whole graph in one task, with no shuffle."""

    shipment: Shipment
    plan: bytes

    def __call__(self, items: Iterable[Any]) -> Iterator[bytes]:
        _drain(items)
        worker, plan = _worker(self.shipment), Plan.from_bytes(self.plan)
        with no_collection(), self.shipment.watched(worker, plan):
            frames = run_epoch(worker, plan, dumps)
        for frame in frames:
            yield frame.to_bytes()


@contextmanager
def no_collection() -> Iterator[None]:
    """Disables the garbage collector during a task.

    A task makes a million objects that all live to its end; searching them for cycles takes a tenth of its
    time. Cycles of the user's code are collected after the task."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _permanent.task()


class Permanent:
    """Hides from the garbage collector what lives as long as the process.

    Spark's worker collects all garbage after every task. Scanning the modules of PySpark, NumPy and
    millwheel took 25 ms each time, for which the next stage waits. Objects are hidden after
    the first tasks of a topology only: one that later becomes a part of a cycle is never freed.
    """

    _AFTER = (1, 4, 16, 64)  # tasks: a module may be imported when a record first needs it

    def __init__(self) -> None:
        self._tasks = 0

    def begin(self) -> None:
        """Notes a new topology."""
        self._tasks = 0

    def task(self) -> None:
        """Notes the end of a task."""
        self._tasks += 1
        if self._tasks in self._AFTER:
            gc.collect()
            gc.freeze()


_permanent = Permanent()


def _drain(items: Iterable[Any]) -> None:
    """Reads all input: otherwise Spark drops the Python worker."""
    for _ in items:
        pass


def slot_of(key: int) -> int:
    """The partition of a frame: its slot."""
    return key
