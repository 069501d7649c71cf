"""A job: a driver that runs its epochs in a thread of its own."""

from __future__ import annotations

import logging
import pickle
import queue
import sys
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

from millwheel.errors import EngineGone, FencedError, Interrupted, MillWheelError, PipelineError
from millwheel.master.diff import Change, change, check_accept
from millwheel.master.driver import Driver
from millwheel.master.executor import Executor
from millwheel.master.intervals import check_slots
from millwheel.master.mailbox import Request, Requests, reason
from millwheel.master.options import SLOW_AFTER
from millwheel.master.planner import Mode
from millwheel.master.standby import Heartbeat
from millwheel.master.status import Report
from millwheel.master.watchdog import Watchdog
from millwheel.model.graph import Graph, build
from millwheel.model.pipeline import Pipeline
from millwheel.waking import Waker
from millwheel.watch.explain import Explanation, explain
from millwheel.watch.progress import Progress

logger = logging.getLogger("millwheel")

_ANSWERED = 0.05  # seconds between checks that the job is still alive
_MICROSECONDS = 1e6
_PATIENCE = 30.0  # seconds for the running epoch at a stop: six times the longest target
_SHOWN_EVERY = 1.0  # seconds between updates in a notebook
_FAREWELL = 2.0  # seconds for a signal to the process group to reach this process


Rebuild = Callable[[Graph], tuple[Driver, Executor]]
"""Makes a driver and an executor for another graph on the same store."""


Removed = Literal["drain", "drop"]
"""For a removed computation: finish its work in flight, or stop at once."""


class _Apply:
    """A request to change the pipeline."""

    def __init__(self, pipeline: Pipeline, removed: Removed, accept: Collection[str] = ()) -> None:
        if removed not in ("drain", "drop"):
            raise PipelineError(f'removed is "drain" or "drop", not {removed!r}')
        self.pipeline = pipeline
        self.removed = removed
        self.accept = accept
        self.change: Change | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self.done.set()


class _Rescale:
    """A request for another number of slots."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.error: BaseException | None = None
        self.done = threading.Event()

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self.done.set()


class Job:
    """A running pipeline. Leave the ``with`` block, or call `stop`, to end it.

    It ends after its epoch, and nothing is lost: a later run on the same store continues.
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
        slow_after: float = SLOW_AFTER,
    ) -> None:
        self.driver = driver
        self._rebuild = rebuild
        self._asked: queue.SimpleQueue[_Apply | _Rescale] = queue.SimpleQueue()
        self._requests = Requests(driver.store, driver.layout.sequencer)
        self._stoppers: list[Request] = []
        self._watchdog = Watchdog(
            slow_after=slow_after,
            write=lambda notes: self.driver.journal.note(notes),
            asked=lambda: self._requests.asked_to_stop(),
        )
        self._heartbeat = Heartbeat(driver.store, lambda notes: self.driver.journal.note(notes))
        self._executor = self._watchdog.watched(executor)
        self._until_exhausted = until_exhausted
        self._on_close = on_close
        self._progress = progress
        self.waker = Waker()
        self._stop = threading.Event()
        self._drain = threading.Event()
        self._error: BaseException | None = None
        self._report = driver.report()
        self._lock = threading.Lock()
        self.ui: str | None = None
        """The address of the page, if there is one."""
        self.view: Callable[[], Any] | None = None
        """Returns the pipeline's current `millwheel.watch.view.View`."""
        self._thread = threading.Thread(target=self._run, name=f"millwheel-{driver.graph.name}", daemon=True)

    def start(self) -> None:
        """Starts running epochs."""
        self._watchdog.start()
        self._heartbeat.start()
        self._thread.start()

    def status(self) -> Report:
        """The report as of the last epoch; raises the job's error, if it failed."""
        self._raise()
        with self._lock:
            return replace(self._report, slow=list(self._watchdog.slow))

    def _repr_html_(self) -> str:
        """The current state in a notebook."""
        from millwheel.master.html import job_html

        running = self._thread.is_alive()
        state = "running" if running else "failed" if self._error is not None else "ended"
        try:
            recent = self.view().recent if running and self.view is not None else []
        except Exception:  # it is ending, and its store is closed
            recent = []
        with self._lock:
            report = replace(self._report, slow=list(self._watchdog.slow))
        return job_html(report, state, recent, self.ui)

    def _ipython_display_(self) -> None:
        """Shows it in a notebook, and updates it while it runs."""
        from millwheel.master.html import notebook_display

        shown = notebook_display()
        handle = shown.display(shown.HTML(self._repr_html_()), display_id=True)

        def update() -> None:
            while self._thread.is_alive():
                self._thread.join(_SHOWN_EVERY)
                handle.update(shown.HTML(self._repr_html_()))

        threading.Thread(target=update, name="millwheel-notebook", daemon=True).start()

    def explain_watermark(self, computation: str) -> Explanation:
        """Why a computation's low watermark has its value."""
        return explain(self.driver.store, computation)

    def apply(
        self, pipeline: Pipeline, *, removed: Removed = "drain", accept: Collection[str] = ()
    ) -> Change:
        """Changes the running pipeline to the given one, between two epochs.

        State, timers and watermarks of what is in both stay as they are. A new computation starts
        at the current watermarks, or with ``replay="earliest"`` at the beginning of its injectors. A removed
        one leaves its state in the store; before that it finishes its work in flight, unless it is
        to be dropped. A change that does not fit the kept state is a `PipelineError`, and the pipeline
        continues unchanged. ``accept`` names computations whose key extractors may change though they have
        rows, which keep the old keys.
        """
        if self._rebuild is None:
            raise PipelineError("this job cannot be changed while it runs")
        request = _Apply(pipeline, removed, accept)
        self._ask(request, "there is nothing to apply a pipeline to")
        assert request.change is not None
        return request.change

    def rescale(self, slots: int) -> None:
        """Works on the key space in another number of pieces, from the next epoch on.

        A later start has the number of slots that it is given, whatever this was.
        """
        check_slots(slots, self.driver.store.tablets)
        self._ask(_Rescale(slots), "start the pipeline with other slots")

    def _ask(self, request: _Apply | _Rescale, otherwise: str) -> None:
        """Has something done between two epochs, and waits for it."""
        self._asked.put(request)
        self.waker.wake()
        while not request.done.wait(_ANSWERED):
            if not self._thread.is_alive() and not request.done.is_set():
                self._raise()
                raise PipelineError(f"the job has ended: {otherwise}")
        if request.error is not None:
            raise request.error

    def wait(self, timeout: float | None = None) -> Report | None:
        """Waits for the job to end by itself; None if it still runs after ``timeout``."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            return None
        return self.status()

    def stop(self, *, drain: bool = False, timeout: float | None = None) -> Report:
        """Ends the job after the epoch that it is in.

        An epoch that takes longer than ``timeout`` seconds (default: 30), because a hook hangs, say, is given
        up: its Python workers are ended, and the next run on the store continues it. With ``drain`` nothing
        more is read, and what is in flight is finished first: records that were left to the next epoch, and
        every timer that the watermarks allow; for that there is no limit unless ``timeout`` is given.
        """
        if drain:
            self._drain.set()
            self.waker.wake()
            if timeout is not None:
                self._watchdog.stop_within(timeout)
        else:
            self.ask_to_stop(timeout=_PATIENCE if timeout is None else timeout)
        self._thread.join()
        return self.status()

    def ask_to_stop(self, *, timeout: float) -> None:
        """Asks the job to end after its epoch, or after ``timeout`` seconds."""
        self._stop.set()
        self.waker.wake()
        self._watchdog.stop_within(timeout)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ask_to_stop(timeout=_PATIENCE)
        self._thread.join()
        if error is None:
            self._raise()

    def _raise(self) -> None:
        if self._error is not None and not self._thread.is_alive():
            raise self._error

    def _run(self) -> None:
        try:
            self._loop()
        except Interrupted:
            pass  # the watchdog has logged what it cancelled, and why
        except BaseException as error:
            if isinstance(error, EngineGone) and self._stop.wait(_FAREWELL):
                return  # the signal goes to the whole group, including Spark's JVM
            if not isinstance(error, MillWheelError):
                logger.exception("the pipeline %s failed", self.driver.graph.name)
            self._error = error
        finally:
            self._watchdog.close()
            self._heartbeat.close(ended=self._has_ended)
            self._answer_last()
            if self._progress is not None:
                self._progress.close()
            try:
                self.driver.close()
            except Exception as error:
                self._error = self._error or error
            self._executor.close()
            self._on_close()

    @property
    def _has_ended(self) -> bool:
        """Whether no standby is to take over: it was stopped on request, or has finished."""
        exhausted = self._until_exhausted and not self._stop.is_set() and not self._drain.is_set()
        return self._error is None and (bool(self._stoppers) or exhausted)

    def _answer_last(self) -> None:
        """Answers the remaining requests of other processes."""
        try:
            for request in self._requests.take(now=True):  # that arrived during the last epoch
                if request.what == "stop":
                    self._stoppers.append(request)
            for request in self._stoppers:
                if self._error is None:
                    self._requests.answer(request, {"epoch": self.driver.epoch})
            why = "the pipeline has ended" if self._error is None else reason(self._error)
            self._requests.refuse_all(why)
        except MillWheelError:  # for example, the disk is full: clients see that the driver has ended
            logger.debug("requests could not be answered", exc_info=True)

    def _heed(self, request: Request) -> None:
        """Carries out a request of another process."""
        if request.what == "stop":
            self._stoppers.append(request)
            (self._drain if request.given.get("drain") else self._stop).set()
            self._watchdog.stop_within(request.given.get("timeout", _PATIENCE))
            return
        if request.what == "rescale":
            try:
                self.driver.rescale(request.given["slots"])
            except PipelineError as error:  # more than the store has tablets: nothing has changed
                self._requests.refuse(request, reason(error))
                return
            answer = {"slots": self.driver.layout.slots, "epoch": self.driver.epoch}
            self._requests.answer(request, answer)
            return
        if request.what != "apply" or self._rebuild is None:
            self._requests.refuse(request, f"this pipeline does not support {request.what}")
            return
        if request.given["python"] != list(sys.version_info[:2]):
            here = ".".join(map(str, sys.version_info[:2]))
            self._requests.refuse(request, f"the pipeline runs under Python {here}: apply with the same")
            return
        try:
            made: Any = pickle.loads(request.given["factory"])()
            if not isinstance(made, Pipeline):
                raise PipelineError(f"the function returned {made!r}, not a millwheel.Pipeline")
            asked = _Apply(made, request.given["removed"], request.given.get("accept", ()))
        except Exception as error:
            self._requests.refuse(request, f"the new pipeline could not be made here ({reason(error)})")
            return
        self._apply(asked)
        if asked.error is not None:
            self._requests.refuse(request, reason(asked.error))
        else:
            assert asked.change is not None
            self._requests.answer(request, asked.change.to_value())

    def _apply(self, request: _Apply) -> None:
        """Changes the pipeline, or leaves it as it was."""
        old = self.driver
        try:
            graph = build(request.pipeline)
            check_accept(graph, request.accept)
            found = change(graph, old.store, request.accept)
            found.check()
        except MillWheelError as error:
            request.finish(error)
            return
        try:
            if old.recovering is not None and (plan := old.next_plan()) is not None:
                old.run(plan, self._executor)  # an epoch is finished by the graph that began it
            if found.removed and request.removed == "drain":
                self._finish()
        except BaseException as error:  # an epoch failed, and with it the job
            request.finish(error)
            raise
        try:
            self._become(graph)
            self._publish()  # the client sees the new pipeline in the status
            request.change = found
            request.finish()
        except FencedError as error:  # another driver has taken over the pipeline
            request.finish(error)
            raise
        except Exception as error:
            try:
                self._become(old.base)
            finally:
                request.finish(error)

    def _rescale(self, request: _Rescale) -> None:
        try:
            self.driver.rescale(request.slots)
            request.finish()
        except MillWheelError as error:
            request.finish(error)
            raise

    def _finish(self) -> None:
        """Runs the epochs that finish the work in flight, without new input."""
        while (plan := self.driver.next_plan(Mode.FINISH)) is not None:
            self.driver.run(plan, self._executor)

    def _become(self, graph: Graph) -> None:
        assert self._rebuild is not None
        before, used = self.driver, self._executor
        before.let_go()  # the new one may need a port of the old one
        driver, executor = self._rebuild(graph)
        driver.tally.follow(before.tally)
        driver.begins = before.begins
        driver.rescale(before.layout.slots)
        driver.observer = before.observer
        if driver.observer is not None:
            driver.observer.follow(driver)
        self.driver, self._executor = driver, self._watchdog.watched(executor)
        self._requests.follow(driver.layout.sequencer)
        self._follow_injectors()
        used.close()

    def _follow_injectors(self) -> None:
        self.waker.follow(source.injector for source in self.driver.base.sources)

    def _loop(self) -> None:
        self._follow_injectors()
        while not self._stop.is_set():
            while not self._asked.empty():
                asked = self._asked.get()
                if isinstance(asked, _Rescale):
                    self._rescale(asked)
                else:
                    self._apply(asked)
            self._requests.follow(self.driver.layout.sequencer)  # a change of intervals takes the next one
            for request in self._requests.take():
                self._heed(request)
            if self._drain.is_set():
                self._finish()
                break
            if self.driver.sources.level:
                self._become(self.driver.base)
            driver = self.driver
            self.waker.begin()
            plan = driver.next_plan_to_the_end() if self._until_exhausted else driver.next_plan()
            if plan is None and self._until_exhausted and driver.ended:
                self._publish()  # the report keeps this run's final watermarks
                driver.conclude()
                return
            if plan is not None:
                driver.run(plan, self._executor)
                self.waker.worked()
                self._publish()
                continue
            self._publish()
            until_wall = (driver.authority.next_wall - driver.now()) / _MICROSECONDS
            self.waker.rest(until_wall)
        self._publish()

    def _publish(self) -> None:
        report = self.driver.report()
        with self._lock:
            self._report = report
        if self._progress is not None:
            self._progress.show(report, self.driver)
