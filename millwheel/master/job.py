"""A job: a driver that runs its epochs in a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from millwheel.errors import MillWheelError, PipelineError
from millwheel.master.change import Change, change
from millwheel.master.driver import Driver, Executor
from millwheel.master.explain import Explanation, explain
from millwheel.master.intervals import check_slots
from millwheel.master.progress import Progress
from millwheel.master.status import Report
from millwheel.model.graph import Graph, build
from millwheel.model.pipeline import Pipeline

logger = logging.getLogger("millwheel")

_SHORTEST_WAIT = 0.002  # seconds between polls right after there was work
_LONGEST_WAIT = 0.05  # between polls of an idle pipeline; a wall timer wakes it earlier
_MICROSECONDS = 1e6


Rebuild = Callable[[Graph], tuple[Driver, Executor]]
"""Makes a driver and an executor for another graph on the same store."""


class _Apply:
    """Somebody waits for the pipeline to become another one."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.change: Change | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self.done.set()


class _Rescale:
    """Somebody wants another number of slots."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.error: BaseException | None = None
        self.done = threading.Event()

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self.done.set()


class Job:
    """A running pipeline. Leave the ``with`` block, or call `stop`, to end it after its epoch.

    Nothing is lost by stopping: a later run on the same store goes on where this one ended.
    """

    def __init__(
        self,
        driver: Driver,
        executor: Executor,
        *,
        until_exhausted: bool,
        on_close: Callable[[], None],
        progress: Progress | None = None,
        rebuild: Rebuild | None = None,
    ) -> None:
        self._driver = driver
        self._rebuild = rebuild
        self._requests: queue.SimpleQueue[_Apply | _Rescale] = queue.SimpleQueue()
        self._executor = executor
        self._until_exhausted = until_exhausted
        self._on_close = on_close
        self._progress = progress
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._report = driver.report()
        self._lock = threading.Lock()
        self.ui: str | None = None
        """The address of the page, where there is one."""
        self.view: Callable[[], Any] | None = None
        """Gives what there is to see of the pipeline while it runs: a `millwheel.watch.view.View`."""
        self._thread = threading.Thread(target=self._run, name=f"millwheel-{driver.graph.name}", daemon=True)

    def start(self) -> None:
        """Begins to run epochs."""
        self._thread.start()

    def status(self) -> Report:
        """What was done so far, as of the last epoch; raises what the job failed with, if it did."""
        self._raise()
        with self._lock:
            return self._report

    def explain_watermark(self, computation: str) -> Explanation:
        """Why a computation's low watermark stands where it stands."""
        return explain(self._driver.store, computation)

    def apply(self, pipeline: Pipeline) -> Change:
        """Lets the running pipeline become the given one, between two epochs.

        State, timers and watermarks of what is in both stay as they are. A computation that is new starts
        at the current watermarks, one that is gone leaves its state in the store. A change that kept
        state could not survive is a `PipelineError`, and the pipeline goes on as it was.
        """
        if self._rebuild is None:
            raise PipelineError("this job cannot be changed while it runs")
        request = _Apply(pipeline)
        self._ask(request, "there is nothing to apply a pipeline to")
        assert request.change is not None
        return request.change

    def rescale(self, slots: int) -> None:
        """Works on the key space in another number of pieces, from the next epoch on.

        A later start has the number of slots that it is given, whatever this was.
        """
        check_slots(slots)
        self._ask(_Rescale(slots), "start the pipeline with other slots")

    def _ask(self, request: _Apply | _Rescale, otherwise: str) -> None:
        """Has something done between two epochs, and waits for it."""
        self._requests.put(request)
        while not request.done.wait(_LONGEST_WAIT):
            if not self._thread.is_alive() and not request.done.is_set():
                self._raise()
                raise PipelineError(f"the job has ended: {otherwise}")
        if request.error is not None:
            raise request.error

    def wait(self, timeout: float | None = None) -> Report | None:
        """Waits for the job to end by itself; None where it still runs after ``timeout`` seconds."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            return None
        return self.status()

    def stop(self) -> Report:
        """Ends the job after the epoch that it is in."""
        self._stop.set()
        self._thread.join()
        return self.status()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if error is None:
            self._raise()

    def _raise(self) -> None:
        if self._error is not None and not self._thread.is_alive():
            raise self._error

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:
            if not isinstance(error, MillWheelError):
                logger.exception("the pipeline %s failed", self._driver.graph.name)
            self._error = error
        finally:
            if self._progress is not None:
                self._progress.close()
            try:
                self._driver.close()
            except Exception as error:
                self._error = self._error or error
            self._executor.close()
            self._on_close()

    def _apply(self, request: _Apply) -> None:
        """Changes the pipeline, or leaves it as it was."""
        old = self._driver
        try:
            graph = build(request.pipeline)
            found = change(old.graph, graph, old.store, old.numbers)
        except MillWheelError as error:
            request.finish(error)
            return
        old.let_go()  # a port of the old one may be wanted by the new one
        try:
            self._become(graph)
            request.change = found
            request.finish()
        except MillWheelError as error:
            try:
                self._become(old.graph)
            finally:
                request.finish(error)

    def _rescale(self, request: _Rescale) -> None:
        try:
            self._driver.rescale(request.slots)
            request.finish()
        except MillWheelError as error:
            request.finish(error)
            raise

    def _become(self, graph: Graph) -> None:
        assert self._rebuild is not None
        before, used = self._driver, self._executor
        driver, executor = self._rebuild(graph)
        driver.baseline = before.baseline
        driver.rescale(before.slots)
        driver.observer = before.observer
        if driver.observer is not None:
            driver.observer.follow(driver)
        self._driver, self._executor = driver, executor
        used.close()

    def _loop(self) -> None:
        wait = _SHORTEST_WAIT
        while not self._stop.is_set():
            while not self._requests.empty():
                request = self._requests.get()
                if isinstance(request, _Rescale):
                    self._rescale(request)
                else:
                    self._apply(request)
            driver = self._driver
            plan = driver.next_plan_to_the_end() if self._until_exhausted else driver.next_plan()
            if plan is None and self._until_exhausted and driver.ended:
                break
            if plan is not None:
                driver.run(plan, self._executor)
                wait = _SHORTEST_WAIT
                self._publish()
                continue
            self._publish()
            until_wall = (driver.authority.next_wall - driver.now()) / _MICROSECONDS
            self._stop.wait(max(min(wait, until_wall), 0.0))
            wait = min(wait * 2, _LONGEST_WAIT)
        self._publish()

    def _publish(self) -> None:
        report = self._driver.report()
        with self._lock:
            self._report = report
        if self._progress is not None:
            self._progress.show(report, self._driver)
