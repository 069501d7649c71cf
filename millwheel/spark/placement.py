"""Runs each slot on the executor that ran it before, where its state is.

An executor has what a slot's steps have left there: the working copy of a store on object storage, or the
rows in the cache of PostgreSQL. Spark takes a preferred location of the form ``executor_HOST_ID`` for a
partition of a JVM RDD. The frames of a shuffle are zipped with such an RDD: that needs the same number of
elements in both, and so a task sends one frame to each slot, past the batches of PySpark's `partitionBy`.
A location is a preference: a slot whose executor is lost, or busy for ``spark.locality.wait``, runs on
another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.serializers import NoOpSerializer, pack_long

from millwheel.spark.cluster import is_local
from millwheel.worker.envelope import Frame


def assign(slots: int, executors: Sequence[str], before: Sequence[str] = ()) -> list[str]:
    """An executor for each slot: the former one, while none has more than its share.

    New slots go in runs, so that neighbours, which share a shard, share a working copy.

    >>> assign(4, ["a", "b"])
    ['a', 'a', 'b', 'b']
    >>> assign(4, ["b", "c"], before=["a", "a", "b", "b"])
    ['c', 'c', 'b', 'b']
    """
    least, more = divmod(slots, len(executors))
    load: Counter[str] = Counter()
    larger = 0

    def takes(executor: str) -> bool:
        return load[executor] < least or (load[executor] == least and larger < more)

    found: list[str | None] = [None] * slots
    alive = set(executors)
    for turn in ("kept", "new"):
        for slot in range(slots):
            if turn == "kept" and before:
                wanted = before[slot * len(before) // slots]
                choice = wanted if wanted in alive and takes(wanted) else None
            elif turn == "new" and found[slot] is None:
                near = [found[slot - 1]] if slot else []
                choice = next(each for each in (*near, *executors) if each is not None and takes(each))
            else:
                continue
            if choice is not None:
                larger += load[choice] == least
                load[choice] += 1
                found[slot] = choice
    return [each for each in found if each is not None]


def allows_placement(context: SparkContext) -> bool:
    """Whether slots have preferred locations: on a cluster without speculation.

    With speculation a task that starts slowly (its Python worker is new) loses to its copy and is killed, and
    its worker with it. A slot that prefers that executor would wait for it in every epoch, and never run
    there.
    """
    return not is_local(context) and context.getConf().get("spark.speculation", "false") != "true"


class Placement:
    """The executor of each slot, kept from epoch to epoch."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._jvm: Any = context._jvm
        self._registered = ""
        self._executors: list[str] = []
        self._slots: list[str] = []  # by slot: its executor
        self._made: dict[tuple[int, int], Any] = {}
        self._homes: dict[tuple[int, int], str] = {}

    @property
    def slots(self) -> int:
        """The number of slots that have a location."""
        return len(self._slots)

    def refresh(self, slots: int) -> bool:
        """Follows the executors; False: there is none, and so no preference."""
        spark = self._context._jsc.sc()
        registered = str(spark.getExecutorMemoryStatus().keys().mkString(";"))
        if registered == self._registered and len(self._slots) == slots:
            return bool(self._executors)
        self._executors = []
        for host in sorted({each.rpartition(":")[0] for each in registered.split(";")}):
            alive = spark.taskScheduler().getExecutorsAliveOnHost(host)
            if alive.isDefined():
                ids = sorted(str(alive.get().mkString(";")).split(";"), key=lambda id: (len(id), id))
                self._executors += [f"executor_{host}_{id}" for id in ids]
        # One that has registered, and does not yet count as alive, is asked for again in the next epoch.
        known = len(self._executors) + 1 == len(registered.split(";"))
        self._registered = registered if known else ""
        slots_before = self._slots
        if self._executors:
            self._slots = assign(slots, self._executors, self._slots)
        if self._slots != slots_before:
            self._made.clear()
        return bool(self._executors)

    def base(self, slots: int) -> RDD[bytes]:
        """An RDD with one partition for each slot, at its location."""
        return RDD(self._located(slots, 1), self._context, NoOpSerializer())

    def base_of_one(self) -> RDD[bytes]:
        """An RDD with one partition, at the location of the first slot."""
        return RDD(self._located(1, 1), self._context, NoOpSerializer())

    def shuffled(self, frames: RDD[bytes], tasks: int, slots: int) -> RDD[bytes]:
        """The outputs of `Addressed` tasks, each slot's at its location."""
        frames._bypass_serializer = True  # type: ignore[attr-defined]
        pairs = self._jvm.PairwiseRDD(frames._jrdd.rdd()).asJavaPairRDD()
        # Any number serves as the identity of the function that gave the slots.
        by_slot = pairs.partitionBy(self._jvm.PythonPartitioner(slots, 0))
        zipped = self._jvm.PythonRDD.valueOfPair(by_slot).zip(self._located(slots, tasks))
        return RDD(zipped, self._context, NoOpSerializer())

    def _located(self, slots: int, elements: int) -> Any:
        """A JVM RDD with empty elements in each partition, made once for a placement."""
        place = (slots, elements)
        if place not in self._made:
            jvm = self._jvm
            locations = jvm.java.util.HashMap()
            for slot in range(slots):
                one = jvm.java.util.Collections.singletonList(self._slots[slot])
                locations.put(slot, jvm.PythonUtils.toSeq(one))
            data = jvm.java.util.Collections.nCopies(slots * elements, b"")
            self._made[place] = jvm.org.apache.spark.rdd.ParallelCollectionRDD(
                self._context._jsc.sc(),
                jvm.PythonUtils.toSeq(data),
                slots,
                jvm.PythonUtils.toScalaMap(locations),
                jvm.scala.reflect.ClassTag.Any(),
            ).toJavaRDD()
        return self._made[place]

    def count(self, frames: Iterable[Frame]) -> None:
        """Adds to the reports whether steps ran where their intervals' last ones ran."""
        for frame in frames:
            for report in frame.reports:
                if not report["level"]:
                    continue
                place = (report["level"], report["first"])
                home = report.get("home", "")  # a checkpoint of an earlier version has none
                before = self._homes.get(place)
                self._homes[place] = home
                if before is not None:
                    name = "steps_stayed" if before == home else "steps_moved"
                    for node in report["nodes"].values():
                        node[name] = 1


@dataclass
class Addressed:
    """A task whose output `Placement.shuffled` takes: one frame for each slot."""

    task: Any

    def __call__(self, index: int, items: Iterable[Any]) -> Iterator[bytes]:
        for slot, frame in self.task(index, arrived(items)):
            yield pack_long(slot)  # type: ignore[no-untyped-call]
            yield frame


@dataclass
class Last:
    """The task of the last level, of frames that `Placement.shuffled` has brought."""

    task: Any

    def __call__(self, index: int, items: Iterable[Any]) -> Iterator[Any]:
        return iter(self.task(index, arrived(items)))


def arrived(items: Iterable[Any]) -> Iterator[Any]:
    """The frames as `receive` expects them, without the elements zipped with them."""
    return ((0, item) for item in items if isinstance(item, bytes) and item)
