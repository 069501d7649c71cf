"""The watchdog: watches a long epoch while the job's thread waits for it.

It reports the hook that is running, notices a stop request, and cancels the epoch when the timeout of the
stop is over. Such an epoch is journaled and not committed: the next run continues it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.master.executor import Executor, Interruptible
from millwheel.model.codec import pack, unpack
from millwheel.store.base import Snapshot
from millwheel.store.keyspace import JournalKey
from millwheel.worker.activity import Note
from millwheel.worker.envelope import Frame
from millwheel.worker.plan import Plan

logger = logging.getLogger("millwheel")

SLOW = JournalKey.SLOW
"""The journal's key for the hooks that have been running for long."""

_EVERY = 0.5  # seconds between checks of an epoch that runs
_LONG = 1.0  # seconds: shorter epochs are not watched

Notes = list[tuple[bytes, bytes]]


class Watchdog:
    """An executor that passes epochs to another one, and watches them in a thread."""

    def __init__(
        self,
        *,
        slow_after: float,
        write: Callable[[Notes], None],
        asked: Callable[[], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slow_after = slow_after
        self._write = write
        self._asked = asked
        self._clock = clock
        self._lock = threading.Lock()
        self._executor: Executor | None = None
        self._epoch = 0
        self._began = 0.0
        self._give_up: float | None = None
        self._named: set[tuple[str, str | None]] = set()
        self.slow: list[Note] = []
        """The hooks that have been running for long."""
        self._cancelled = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millwheel-watchdog", daemon=True)

    def start(self) -> None:
        """Starts the thread; removes what a killed driver has reported."""
        self._note([])
        self._thread.start()

    def close(self) -> None:
        """Stops the thread."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def stop_within(self, seconds: float) -> None:
        """Cancels an epoch that still runs after this many seconds."""
        with self._lock:
            moment = self._clock() + seconds
            self._give_up = moment if self._give_up is None else min(moment, self._give_up)

    def watched(self, executor: Executor) -> Executor:
        """An executor like the given one, watched."""
        return _Watched(self, executor)

    def begin(self, executor: Executor, plan: Plan) -> None:
        """Notes that an epoch is about to run."""
        with self._lock:
            self._executor, self._epoch, self._began = executor, plan.epoch, self._clock()

    def end(self) -> None:
        """Notes its end. From here on the job's thread writes the journal."""
        with self._lock:
            self._executor = None
            self._named.clear()
            if self.slow:
                self.slow = []
                with suppress(MillWheelError):  # the commit that follows fails by the same
                    self._note([])

    def _run(self) -> None:
        while not self._closed.wait(_EVERY):
            with self._lock:
                if self._executor is not None and self._clock() - self._began >= _LONG:
                    try:
                        self.check()
                    except MillWheelError:  # the store does not answer: the epoch will fail by that too
                        logger.debug("the check of a long epoch failed", exc_info=True)

    def check(self) -> None:
        """Checks the running epoch."""
        executor, now = self._executor, self._clock()
        if not isinstance(executor, Interruptible):
            return
        asked = self._asked()
        if asked is not None and self._give_up is None:
            self._give_up = now + asked
        if now - self._began >= self._slow_after:
            self._name(executor, now - self._began)
        if self._give_up is not None and now >= self._give_up and not self._cancelled:
            self._cancelled = True
            places = "".join(f"; it was in {note.place}" for note in executor.doing()[:3])
            logger.warning(
                "epoch %d was cancelled after %.0f s, as the run is to stop%s. Nothing is lost: the next run "
                "continues it",
                self._epoch,
                now - self._began,
                places,
            )
            executor.cancel()

    def _name(self, executor: Interruptible, seconds: float) -> None:
        """Logs and journals, once each, hooks that have been running for long."""
        wall = time.time()
        found = [note for note in executor.doing() if note.alive and note.epoch == self._epoch]
        slow = [note for note in found if wall - min(note.since, note.at) >= self._slow_after]
        places = {(note.what, note.key) for note in slow}
        if places <= self._named:
            return
        self._named |= places
        for note in slow:
            silent = wall - note.at >= self._slow_after
            logger.warning(
                "epoch %d has been in %s for %.0f s; it had %s%s",
                self._epoch,
                note.place,
                wall - note.since,
                note.hand,
                ", when its process last answered: it is in native code" if silent else "",
            )
        self.slow = slow
        self._note(slow)

    def _note(self, slow: list[Note]) -> None:
        self._write([(SLOW, pack([asdict(note) for note in slow]))])


def read_slow(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The hooks of a running pipeline that have been running for long."""
    data = snapshot.get(SLOW)
    return [] if data is None else list(unpack(data))


class _Watched:
    """An executor with a watchdog."""

    def __init__(self, watchdog: Watchdog, executor: Executor) -> None:
        self._watchdog = watchdog
        self._executor = executor
        self.job: int | None = None

    def execute(self, plan: Plan) -> list[Frame]:
        self._watchdog.begin(self._executor, plan)
        try:
            return self._executor.execute(plan)
        finally:
            self.job = self._executor.job
            self._watchdog.end()

    def close(self) -> None:
        self._executor.close()
