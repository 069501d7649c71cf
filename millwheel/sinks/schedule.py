"""When staged epochs are published: after a time, at a size, and at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from millwheel.sinks.staging import Later


class Staged(Protocol):
    """The staging of a sink."""

    def size(self) -> int:
        """Return the staged bytes."""

    def writing(self) -> AbstractContextManager[None]:
        """Name the sink in errors of a write."""


class Schedule:
    """Calls ``publish`` for committed epochs, one call at a time, in the driver.

    If a call fails, the rest stays staged: the next call, or the next driver, publishes it.
    """

    def __init__(self, publish: Callable[[], None]) -> None:
        self._publish = publish
        self._later = Later(0, self.publish_now)
        self._staging: Staged | None = None
        self._size = 0
        self.committed = 0
        """The last committed epoch."""

    @contextmanager
    def begin(self, staging: Staged, epoch: int, every: float, size: int) -> Iterator[None]:
        """Publish the epochs that the last driver left staged, after the block has run.

        From then on, every ``every`` seconds (0: with each epoch), and when ``size`` bytes are staged.
        """
        with self._later.lock, staging.writing():
            self._later.seconds, self._size = every, size
            self.committed = epoch
            yield
            self._staging = staging
            self._publish()

    def commit(self, epoch: int) -> None:
        """Schedule the publication of an epoch."""
        assert self._staging is not None, "begin() comes before commit()"
        with self._later.lock, self._staging.writing():
            if epoch <= self.committed:
                return
            self.committed = epoch
            if self._later.seconds <= 0 or self._staging.size() >= self._size:
                self._later.cancel()
                self._publish()
            else:
                self._later.ask()

    def close(self) -> None:
        """Publish all that is committed, if it was begun."""
        if self._staging is None:
            return
        with self._later.lock, self._staging.writing():
            self._later.cancel()
            self._publish()
            self._staging = None

    def publish_now(self) -> None:
        """Publish all that is committed."""
        if self._staging is not None:
            with self._later.lock, self._staging.writing():
                self._publish()
