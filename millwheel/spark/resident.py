"""A resident task: one Spark task for many compact epochs, without job starts.

An executor in front of `SparkExecutor`, which runs all other epochs: wide ones,
the first compact ones, and every epoch in which it dies. See docs/mechanisms/resident.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark import RDD, InheritableThread, SparkContext

from millwheel.errors import Interrupted
from millwheel.master.executor import Executor, Interruptible
from millwheel.spark.channel import Address, Channel, Listener, connect
from millwheel.spark.cluster import is_local
from millwheel.spark.job_executor import SparkExecutor
from millwheel.spark.tasks import Shipment, WholeTask
from millwheel.worker.activity import Note
from millwheel.worker.envelope import Frame
from millwheel.worker.plan import Plan

logger = logging.getLogger("millwheel")

PORT = "spark.millwheel.resident.port"
"""The setting for the port at which the driver waits for its resident task."""

PLAN, _END, FRAMES, _FAILED, _IDLE = range(5)

_AFTER = 3  # compact epochs in a row: one or two at the end of a backlog do not count
IDLE_AFTER = 10.0  # seconds: it occupies a task slot; a job costs 30 ms
_PATIENCE = 10.0  # seconds for it to start, for which an epoch may wait
BACKOFF = 4  # times as many compact epochs until the next attempt, after each death
_LONGEST_BACKOFF = 1_000  # epochs
_PROVEN = 100  # epochs served, after which the count of failures starts again
_FAREWELL = 5.0  # seconds for it to end; after that it is cancelled

_ENCRYPTED = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
)


@dataclass
class ResidentTask:
    """The task of a Python worker: plans in, frames out, until the driver closes."""

    shipment: Shipment
    address: Address
    secret: bytes
    idle_after: float

    def __call__(self, items: Iterable[object]) -> Iterator[int]:
        for _ in items:  # a task must read all of its input, or Spark drops the Python worker
            pass
        try:
            channel = connect(self.address, self.secret, _PATIENCE)
        except OSError:  # a second attempt: the driver has dropped this task
            return
        served = 0
        try:
            while self._serve(channel):
                served += 1
        except ConnectionError:
            pass  # the driver has ended, or has closed it
        finally:
            channel.close()
        yield served

    def _serve(self, channel: Channel) -> bool:
        """Runs one epoch; False: the end."""
        try:
            kind, parts = channel.receive(self.idle_after)
        except TimeoutError:
            channel.send(_IDLE)
            return False
        if kind == _END:
            return False
        try:
            frames = list(WholeTask(self.shipment, parts[0])(()))
        except Exception as error:  # the epoch is retried as a job
            channel.send(_FAILED, [f"{type(error).__name__}: {error}".encode(errors="replace")])
            return False
        channel.send(FRAMES, frames)
        return True


class Resident(Protocol):
    """One resident task, from its start to its end."""

    job: int | None

    @property
    def alive(self) -> bool:
        """Whether it runs, as far as known."""

    def ask(self, plan: bytes) -> list[bytes] | None:
        """The frames of an epoch; None: not begun; `ConnectionError`: the task died."""

    def end(self, seconds: float = 0.0) -> None:
        """Asks it to end, and waits for that."""

    def cancel(self) -> None:
        """Cancels it in any state."""


class ResidentExecutor:
    """Runs compact epochs in a resident task, and all others as jobs."""

    def __init__(
        self,
        jobs: Executor,
        start: Callable[[], Resident | None],
        *,
        served: Callable[[list[Frame]], None] = lambda frames: None,
        after: int = _AFTER,
        idle_after: float = IDLE_AFTER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job: int | None = None
        self._jobs = jobs
        self._start = start
        self._count = served
        self._least = self._wanted = after
        self._idle_after = idle_after
        self._clock = clock
        self._task: Resident | None = None
        self._in_a_row = 0
        self._last = 0.0
        self._served = 0
        self._cancelled = False

    def execute(self, plan: Plan) -> list[Frame]:
        """Runs one epoch; as a job if the resident task cannot, or dies in it."""
        now = self._clock()
        if now - self._last > self._idle_after:
            self._in_a_row = 0
        if plan.compact:
            frames = self._served_by_the_task(plan)
            self._in_a_row += 1
        else:
            frames = None
            self._in_a_row = 0
            self._let_go()
        if frames is None:
            if self._cancelled:
                raise Interrupted(f"epoch {plan.epoch} was cancelled before it was committed")
            frames = self._jobs.execute(plan)
            self.job = self._jobs.job
        self._last = self._clock()
        return frames

    def _served_by_the_task(self, plan: Plan) -> list[Frame] | None:
        """The frames of a compact epoch; None: it must be a job."""
        if self._task is not None and not self._task.alive:
            self._let_go()
        if self._task is None:
            if self._in_a_row < self._wanted or self._cancelled:
                return None
            self._served = 0
            self._task = self._start()
            if self._task is None:
                self._back_off()
                return None
            if self._cancelled:  # while it started
                self._let_go()
                return None
        task = self._task
        try:
            answer = task.ask(plan.to_bytes())
        except OSError as error:
            if not self._cancelled:
                logger.warning(
                    "epoch %d: the resident task died (%s): the epoch is run again as a job",
                    plan.epoch,
                    error,
                )
            task.cancel()  # if it still runs, Spark ends it
            self._let_go()
            self._back_off()
            return None
        if answer is None:
            self._let_go()
            return None
        self._served += 1
        if self._served == _PROVEN:
            self._wanted = self._least
        self.job = task.job
        frames = [Frame.from_bytes(data) for data in answer]
        self._count(frames)
        return frames

    def _back_off(self) -> None:
        self._in_a_row = 0
        self._wanted = min(self._wanted * BACKOFF, _LONGEST_BACKOFF)

    def _let_go(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.end()

    def doing(self) -> list[Note]:
        """The activities of workers on this machine."""
        return self._jobs.doing() if isinstance(self._jobs, Interruptible) else []

    def cancel(self) -> None:
        """Cancels the running epoch, from another thread."""
        self._cancelled = True
        task = self._task
        if task is not None:
            task.cancel()
        if isinstance(self._jobs, Interruptible):
            self._jobs.cancel()

    def close(self) -> None:
        """Ends the resident task, and closes the other executor."""
        task, self._task = self._task, None
        if task is not None:
            task.end(_FAREWELL)
        self._jobs.close()


class SparkResident:
    """A resident task on Spark: a job in a thread, and a connection to its task."""

    def __init__(
        self,
        context: SparkContext,
        shipment: Shipment,
        name: str,
        idle_after: float,
        base: Callable[[], RDD[Any]] | None = None,
    ) -> None:
        self._context = context
        self._base = base or (lambda: context.parallelize([0], 1))
        self._listener = _listener(context)
        self._task = ResidentTask(shipment, self._listener.address, self._listener.secret, idle_after)
        self._name = name
        self._group = f"{shipment.id}-resident-{self._listener.secret.hex()[:8]}"
        self._channel: Channel | None = None
        self._over = threading.Event()
        self.job: int | None = None
        self.thread = InheritableThread(target=self._run, name="millwheel-resident", daemon=True)

    @property
    def alive(self) -> bool:
        return not self._over.is_set()

    def start(self) -> bool:
        """Whether it has started within its time."""
        self.thread.start()
        self._channel = self._listener.accept(_PATIENCE, lambda: self.alive)
        if self._channel is None:
            self.cancel()
            return False
        if self._over.is_set():
            self._channel.shut()
        if self._context.uiWebUrl is not None:
            with suppress(Exception):  # a Spark that has ended is reported elsewhere
                jobs = self._context.statusTracker().getJobIdsForGroup(self._group)
                self.job = max(jobs, default=None)
        return True

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, f"{self._name}: resident task")
            self._base().mapPartitions(self._task).collect()
        except Exception:  # it was cancelled, or Spark gave up after failures
            logger.debug("the job of a resident task failed", exc_info=True)
        finally:
            self._over.set()
            if self._channel is not None:
                self._channel.shut()

    def ask(self, plan: bytes) -> list[bytes] | None:
        assert self._channel is not None
        self._channel.send(PLAN, [plan])
        kind, parts = self._channel.receive()
        if kind == FRAMES:
            return parts
        if kind == _FAILED:
            raise ConnectionAbortedError(parts[0].decode())
        return None

    def end(self, seconds: float = 0.0) -> None:
        if self._channel is not None:
            with suppress(OSError):
                self._channel.send(_END)
            self._channel.shut()
        if seconds and not self._over.wait(seconds):
            self.cancel()

    def cancel(self) -> None:
        try:
            self._context.cancelJobGroup(self._group)
        except Exception:  # Spark has ended, and with it the task
            logger.debug("a resident task could not be cancelled", exc_info=True)


def _listener(context: SparkContext) -> Listener:
    if is_local(context):
        return Listener()
    conf = context.getConf()
    host = conf.get("spark.driver.host", "localhost") or "localhost"
    return Listener(host, int(conf.get(PORT, "0") or 0), conf.get("spark.driver.bindAddress", host))


def reason_against(context: SparkContext) -> str | None:
    """Why a session cannot have resident tasks; None if it can."""
    conf = context.getConf()
    threshold = "spark.speculation.task.duration.threshold"
    if conf.get("spark.speculation", "false") == "true" and conf.get(threshold, None):
        return f"Spark would start a copy of the task ({threshold})"
    encrypted = [name for name in _ENCRYPTED if conf.get(name, "false") == "true"]
    if encrypted and not is_local(context):
        return f"Spark's connections are encrypted ({encrypted[0]}), and that of the task would not be"
    return None


def with_resident_task(jobs: SparkExecutor) -> Executor:
    """An executor with a resident task, if the session allows for one."""
    context = jobs.context
    reason = reason_against(context)
    if reason is not None:
        logger.info("compact epochs run as jobs, without a resident task: %s", reason)
        return jobs

    def start() -> Resident | None:
        try:
            task = SparkResident(context, jobs.shipment, jobs.name, IDLE_AFTER, jobs.base_of_one)
        except OSError as error:
            logger.warning("compact epochs run as jobs: the driver cannot listen (%s)", error)
            return None
        return task if task.start() else None

    if jobs.placement is None:
        return ResidentExecutor(jobs, start)
    return ResidentExecutor(jobs, start, served=jobs.placement.count)
