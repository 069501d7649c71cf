"""How a job's thread waits: for an injector, a request, or the time of a poll."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from millwheel.model.injector import Injector

SHORTEST = 0.002  # seconds between polls right after work, and after a needless call
_LONGEST = 0.05  # between polls of an idle pipeline; a wall timer wakes it earlier
SELDOM = 0.25  # of one whose injectors all notify: 4 polls a second cost nothing


class Waker:
    """Any thread may call `wake`; `rest` returns if it was called since `begin`."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._short = threading.Event()
        self.all_notify = False
        self._wait = SHORTEST
        self._in_vain = False

    def follow(self, injectors: Iterable[Injector]) -> None:
        """Registers with injectors; polls are frequent if one of them does not notify."""
        self.all_notify = all([injector.notify(self.wake) for injector in injectors])

    def wake(self) -> None:
        """Notifies that there may be work."""
        self._event.set()

    def begin(self) -> None:
        """Notes that a poll starts: later calls of `wake` end the next `rest`."""
        self._event.clear()

    def worked(self) -> None:
        """Notes that there was work, and more may come soon."""
        self._wait = SHORTEST
        self._in_vain = False

    def rest(self, most: float) -> None:
        """Waits for a call, the time of a poll, or at most ``most`` seconds."""
        if self._in_vain:
            # A line may be written byte by byte: it is not polled after each of them.
            self._short.wait(max(min(SHORTEST, most), 0.0))
        called = self._event.wait(max(min(SELDOM if self.all_notify else self._wait, most), 0.0))
        self._in_vain = called
        self._wait = min(self._wait * 2, _LONGEST)
