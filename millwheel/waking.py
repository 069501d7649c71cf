"""How a job's thread rests: until an injector has something, somebody asks, or it is time to poll."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from millwheel.model.injector import Injector

_SHORTEST = 0.002  # seconds between polls right after there was work, and after a call that brought nothing
_LONGEST = 0.05  # between polls of an idle pipeline; a wall timer wakes it earlier
_SELDOM = 0.25  # of one whose injectors all say when there is something: 4 polls in a second cost nothing


class Waker:
    """Any thread may call `wake`; one that came since `begin` is not missed by `rest`."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._short = threading.Event()
        self._all = False
        self._wait = _SHORTEST
        self._in_vain = False

    def follow(self, injectors: Iterable[Injector]) -> None:
        """Lets injectors call; they are polled often as long as one of them does not."""
        self._all = all([injector.notify(self.wake) for injector in injectors])

    def wake(self) -> None:
        """There may be something to do."""
        self._event.set()

    def begin(self) -> None:
        """The injectors are about to be polled: what comes from here on counts for the next `rest`."""
        self._event.clear()

    def worked(self) -> None:
        """There was something to do, and more may come soon."""
        self._wait = _SHORTEST
        self._in_vain = False

    def rest(self, most: float) -> None:
        """Returns after a call, when it is time to poll, or after ``most`` seconds."""
        if self._in_vain:
            # Somebody writes a line byte by byte: it is not looked at after each of them.
            self._short.wait(max(min(_SHORTEST, most), 0.0))
        called = self._event.wait(max(min(_SELDOM if self._all else self._wait, most), 0.0))
        self._in_vain = called
        self._wait = min(self._wait * 2, _LONGEST)
