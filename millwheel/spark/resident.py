"""A resident task: one Spark task that serves many compact epochs, so that none waits for a job to start.

An executor in front of `SparkExecutor`, which runs everything that the resident task does not: wide epochs,
the first compact ones, and every epoch in which it dies. See docs/mechanisms/resident.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from pyspark import InheritableThread, SparkContext

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
"""The setting that fixes the port at which the driver waits for its resident task."""

_PLAN, _END, _FRAMES, _FAILED, _IDLE = range(5)

_AFTER = 3  # compact epochs in a row: a backlog that ends with one or two does not need a resident task
_IDLE_AFTER = 10.0  # seconds: it keeps a core's slot, and a job costs 30 ms at such a pace
_PATIENCE = 10.0  # seconds for it to start: as long as the next epoch may wait for a slot
_BACKOFF = 4  # times as many compact epochs until the next attempt, after each death
_LONGEST_BACKOFF = 1_000  # epochs
_PROVEN = 100  # epochs served, after which a death is the first one again
_FAREWELL = 5.0  # seconds to end in; a task that is in a hook then is cancelled

_ENCRYPTED = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
)


@dataclass
class ResidentTask:
    """What the Python worker runs: plans in, frames out, until the driver is done or gone."""

    shipment: Shipment
    address: Address
    secret: bytes
    idle_after: float

    def __call__(self, items: Iterable[object]) -> Iterator[int]:
        for _ in items:  # a task that leaves its input unread costs Spark the Python worker
            pass
        try:
            channel = connect(self.address, self.secret, _PATIENCE)
        except OSError:  # a second attempt: the driver has given this task up
            return
        served = 0
        try:
            while self._serve(channel):
                served += 1
        except ConnectionError:
            pass  # the driver is gone, or has done with it
        finally:
            channel.close()
        yield served

    def _serve(self, channel: Channel) -> bool:
        """Runs one epoch; False: it was the end."""
        try:
            kind, parts = channel.receive(self.idle_after)
        except TimeoutError:
            channel.send(_IDLE)
            return False
        if kind == _END:
            return False
        try:
            frames = list(WholeTask(self.shipment, parts[0])(()))
        except Exception as error:  # a job of its own has the attempts that this may need
            channel.send(_FAILED, [f"{type(error).__name__}: {error}".encode(errors="replace")])
            return False
        channel.send(_FRAMES, frames)
        return True


class Resident(Protocol):
    """One resident task, from its start to its end."""

    job: int | None

    @property
    def alive(self) -> bool:
        """Whether it has not ended, as far as is known."""

    def ask(self, plan: bytes) -> list[bytes] | None:
        """The frames of an epoch, or None where it was not begun; `ConnectionError` where it died."""

    def end(self, seconds: float = 0.0) -> None:
        """Lets it end, and waits so long until it has."""

    def cancel(self) -> None:
        """Ends it, whatever it is doing."""


class ResidentExecutor:
    """Hands compact epochs to a resident task, and all others to an executor that runs jobs."""

    def __init__(
        self,
        jobs: Executor,
        start: Callable[[], Resident | None],
        *,
        after: int = _AFTER,
        idle_after: float = _IDLE_AFTER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job: int | None = None
        self._jobs = jobs
        self._start = start
        self._least = self._wanted = after
        self._idle_after = idle_after
        self._clock = clock
        self._task: Resident | None = None
        self._in_a_row = 0
        self._last = 0.0
        self._served = 0
        self._cancelled = False

    def execute(self, plan: Plan) -> list[Frame]:
        """Runs one epoch: where the resident task cannot, or dies in it, as a job."""
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
                raise Interrupted(f"epoch {plan.epoch} was ended before it was committed")
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
                    "epoch %d: the resident task is gone (%s): the epoch is run again as a job of its own",
                    plan.epoch,
                    error,
                )
            task.cancel()  # where it only seems to be gone, Spark ends it
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
        return [Frame.from_bytes(data) for data in answer]

    def _back_off(self) -> None:
        self._in_a_row = 0
        self._wanted = min(self._wanted * _BACKOFF, _LONGEST_BACKOFF)

    def _let_go(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.end()

    def doing(self) -> list[Note]:
        """What workers on this machine have in hand."""
        return self._jobs.doing() if isinstance(self._jobs, Interruptible) else []

    def cancel(self) -> None:
        """Ends the epoch that runs, from another thread."""
        self._cancelled = True
        task = self._task
        if task is not None:
            task.cancel()
        if isinstance(self._jobs, Interruptible):
            self._jobs.cancel()

    def close(self) -> None:
        """Ends the resident task, and lets go of the other executor."""
        task, self._task = self._task, None
        if task is not None:
            task.end(_FAREWELL)
        self._jobs.close()


class _SparkResident:
    """A resident task on Spark: a job in a thread of its own, and a connection to its task."""

    def __init__(self, context: SparkContext, shipment: Shipment, name: str, idle_after: float) -> None:
        self._context = context
        self._listener = _listener(context)
        self._task = ResidentTask(shipment, self._listener.address, self._listener.secret, idle_after)
        self._name = name
        self._group = f"{shipment.id}-resident-{self._listener.secret.hex()[:8]}"
        self._channel: Channel | None = None
        self._over = threading.Event()
        self.job: int | None = None
        self._thread = InheritableThread(target=self._run, name="millwheel-resident", daemon=True)

    @property
    def alive(self) -> bool:
        return not self._over.is_set()

    def start(self) -> bool:
        """Whether it has come within its time."""
        self._thread.start()
        self._channel = self._listener.accept(_PATIENCE, lambda: self.alive)
        if self._channel is None:
            self.cancel()
            return False
        if self._over.is_set():
            self._channel.shut()
        if self._context.uiWebUrl is not None:
            with suppress(Exception):  # a Spark that is gone says so by itself
                jobs = self._context.statusTracker().getJobIdsForGroup(self._group)
                self.job = max(jobs, default=None)
        return True

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, f"{self._name}: resident task")
            self._context.parallelize([0], 1).mapPartitions(self._task).collect()
        except Exception:  # it was cancelled, or has died so often that Spark gave up
            logger.debug("the job of a resident task failed", exc_info=True)
        finally:
            self._over.set()
            if self._channel is not None:
                self._channel.shut()

    def ask(self, plan: bytes) -> list[bytes] | None:
        assert self._channel is not None
        self._channel.send(_PLAN, [plan])
        kind, parts = self._channel.receive()
        if kind == _FRAMES:
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
        except Exception:  # Spark is gone, and with it the task
            logger.debug("a resident task could not be cancelled", exc_info=True)


def _listener(context: SparkContext) -> Listener:
    if is_local(context):
        return Listener()
    conf = context.getConf()
    host = conf.get("spark.driver.host", "localhost") or "localhost"
    return Listener(host, int(conf.get(PORT, "0") or 0), conf.get("spark.driver.bindAddress", host))


def reason_against(context: SparkContext) -> str | None:
    """Why a session is not one for resident tasks; None where it is."""
    conf = context.getConf()
    threshold = "spark.speculation.task.duration.threshold"
    if conf.get("spark.speculation", "false") == "true" and conf.get(threshold, None):
        return f"Spark would start a copy of the task ({threshold})"
    encrypted = [name for name in _ENCRYPTED if conf.get(name, "false") == "true"]
    if encrypted and not is_local(context):
        return f"Spark's connections are encrypted ({encrypted[0]}), and that of the task would not be"
    return None


def with_resident_task(jobs: SparkExecutor) -> Executor:
    """An executor that serves compact epochs by a resident task, where the session allows for one."""
    context = jobs.context
    reason = reason_against(context)
    if reason is not None:
        logger.info("compact epochs run as jobs, without a resident task: %s", reason)
        return jobs

    def start() -> Resident | None:
        try:
            task = _SparkResident(context, jobs.shipment, jobs.name, _IDLE_AFTER)
        except OSError as error:
            logger.warning("compact epochs run as jobs: the driver cannot listen (%s)", error)
            return None
        return task if task.start() else None

    return ResidentExecutor(jobs, start)
