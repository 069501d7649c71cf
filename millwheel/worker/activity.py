"""What a worker is doing: the computation, key and record of the running hook.

It explains an epoch that takes long, or whose worker dies. A thread checks once a second, so a record costs
nothing, and notes in a file what is running and since when. For a worker that dies that is too late: when its
task is retried, every hook is noted before it is called, so that the next crash can be attributed.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millwheel.errors import shorten
from millwheel.model.timer import Timer

if TYPE_CHECKING:
    from millwheel.worker.context import HookContext

logger = logging.getLogger("millwheel")

EVERY = 1.0  # seconds between checks

_HOOKS = ("process_record", "process_timer")


@dataclass(frozen=True)
class Note:
    """What a worker process is running, and since when, in seconds since 1970."""

    process: int
    epoch: int
    what: str
    since: float
    at: float
    """When it was noted, in seconds since 1970: once a second, unless in native code."""
    exact: bool = False
    """Whether it was noted just before it began."""
    computation: str | None = None
    key: str | None = None
    hand: str | None = None
    hook: str | None = None

    @property
    def alive(self) -> bool:
        """Whether the process still exists."""
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    @property
    def place(self) -> str:
        """The running hook, for a message."""
        if self.computation is None:
            return self.what
        return f"{self.hook} of computation {self.computation!r}, key {shorten(self.key, 80)}"


def read_notes(folder: Path | None) -> list[Note]:
    """The notes of all worker processes on this machine, the longest first."""
    found = []
    for path in folder.glob("*.json") if folder is not None else ():
        with suppress(OSError, ValueError, TypeError):  # it was removed, or is being written
            found.append(Note(**json.loads(path.read_text())))
    return sorted(found, key=lambda note: note.since)


class Activity:
    """What one worker process is doing: set by its task, read by another thread."""

    def __init__(self) -> None:
        self._epoch = 0
        self._now: tuple[Callable[[], str], HookContext | None] | None = None
        self._careful = False
        self._path: Path | None = None
        self._noted = False

    def enter(self, what: Callable[[], str], context: HookContext | None = None) -> None:
        """Notes that the task starts a computation, an injector or a sink."""
        self._now = (what, context)
        if self._careful:
            if context is not None:
                self._note_hooks(context)
            else:
                self._write(self._note(what, None, None, time.time()))

    @contextmanager
    def task(self, epoch: int, folder: str | None, *, careful: bool) -> Iterator[None]:
        """Wraps a task; a careful one notes every hook in the folder before it calls it."""
        if folder is not None and self._path is None:
            self._path = Path(folder) / f"{os.getpid()}.json"
            thread = threading.Thread(
                target=_watch, args=(weakref.ref(self),), name="millwheel-activity", daemon=True
            )
            thread.start()
        self._epoch, self._careful = epoch, careful and self._path is not None
        try:
            yield
        finally:
            self._now = None
            if self._careful:
                self._remove()

    def _note_hooks(self, context: HookContext) -> None:
        """Wraps the hooks of a computation, as long as this worker lives."""

        def noted(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def call(hand: Any) -> Any:
                if self._careful:
                    self._write(self._note(str, context, hand, time.time()))
                return hook(hand)  # a hook returns nothing, which its caller checks

            return call

        for name in _HOOKS:
            if name not in context.attributes:
                context.attributes[name] = noted(getattr(context.computation, name))

    def _check(self, last: Any, hand: Any, since: float) -> tuple[Any, Any, float]:
        """Notes what is running and since when; returns it for the next check."""
        now = self._now
        held = now[1].hand if now is not None and now[1] is not None else None
        if now is not last or held is not hand:
            last, hand, since = now, held, time.time()
        if self._careful:
            return last, hand, since
        if now is None:
            if self._noted:
                self._remove()
        else:
            self._write(self._note(now[0], now[1], held, since))
        return last, hand, since

    def _note(self, what: Callable[[], str], context: HookContext | None, hand: Any, since: float) -> Note:
        process, at, exact = os.getpid(), time.time(), self._careful
        if context is None:
            return Note(process, self._epoch, what(), since, at, exact)
        hook = _HOOKS[isinstance(hand, Timer)]
        name = context.node.name
        return Note(process, self._epoch, name, since, at, exact, name, context.key, shorten(hand), hook)

    def _write(self, note: Note) -> None:
        assert self._path is not None
        self._noted = True
        try:
            self._path.write_text(json.dumps(asdict(note)))
        except OSError:  # the folder is gone: the run is over
            logger.debug("the activity of a worker cannot be noted", exc_info=True)

    def _remove(self) -> None:
        assert self._path is not None
        self._noted = False
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _watch(found: weakref.ref[Activity]) -> None:
    """Checks once a second, as long as the worker has this topology."""
    before: tuple[Any, Any, float] = (None, None, 0.0)
    while True:
        time.sleep(EVERY)
        activity = found()
        if activity is None:
            return
        before = activity._check(*before)
        del activity
