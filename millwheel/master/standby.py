"""Standby: a driver that takes over the pipeline when its leader fails.

The journal has the leader and the standbys. A leader whose process has ended has lost the store's lock; one
that hangs, or is cut off, stops writing. A new leader takes the next generation, as any driver does, and all
later writes of the former leader are refused (6.2): so it does not matter whether it has really failed.

    standby...  one entry for each standby: its name, its start, and its last sign of life
    beat        a number that the leader changes twice a second while there are standbys
    claim       the standby that takes over from a driver that hangs, and that driver
    ended       the driver that was stopped on request, or has finished: no takeover
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from millwheel.errors import FencedError, MillWheelError, PipelineError, StandbyEnded
from millwheel.model.codec import pack, unpack
from millwheel.store.base import Get, Snapshot, Store, read
from millwheel.store.keyspace import JournalKey, after

logger = logging.getLogger("millwheel")

TAKEOVER_AFTER = 2.0
"""Seconds without a heartbeat of a leader that still has the lock."""

_EVERY = 0.5  # seconds between beats, and between checks for standbys
_STARTING = 30.0  # seconds until a leader's first heartbeat: it may have to read its whole store first
_CHECK_EVERY = 0.1  # seconds between checks of the lock, and so until a killed leader is noticed
_REFRESH = 1.0  # seconds between heartbeats of a standby
_FORGOTTEN = 10.0  # seconds without a heartbeat, after which a standby is removed
_SHOWN = 5_000_000  # microseconds since its last heartbeat for which a standby is shown

Write = Callable[[list[tuple[bytes, bytes]]], None]


@dataclass(frozen=True)
class StandbyView:
    """A standby: its name, and its start, in microseconds since 1970."""

    owner: str
    since: int


def read_standbys(snapshot: Snapshot, now: int) -> list[StandbyView]:
    """The standbys with a recent heartbeat, the oldest first."""
    found = [unpack(value) for _, value in snapshot.scan(JournalKey.STANDBY, after(JournalKey.STANDBY))]
    return sorted(
        (StandbyView(owner, since) for owner, since, at in found if now - at < _SHOWN),
        key=lambda one: (one.since, one.owner),
    )


def check_takeover_after(given: Any) -> float:
    """The option as a number of seconds; heartbeats come twice a second."""
    if isinstance(given, bool) or not isinstance(given, int | float) or given < 2 * _EVERY:
        raise PipelineError(
            f"the option takeover_after is a number of seconds, {2 * _EVERY:.0f} or more, not {given!r}"
        )
    return float(given)


class Heartbeat:
    """The leader's side: writes heartbeats while there is a standby."""

    def __init__(self, store: Store, write: Write, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._write = write
        self._clock = clock
        self._count = 0
        self._last: dict[bytes, tuple[bytes, float]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millwheel-heartbeat", daemon=True)

    def start(self) -> None:
        """Starts the heartbeats."""
        self._thread.start()

    def beat(self) -> None:
        """Writes a heartbeat if there is a standby; removes standbys that ended."""
        now = self._clock()
        found = read(
            self._store.journal,
            lambda snapshot: list(snapshot.scan(JournalKey.STANDBY, after(JournalKey.STANDBY))),
        )
        seen = {key: self._last.get(key, (b"", now)) for key, _ in found}
        self._last = {key: seen[key] if seen[key][0] == value else (value, now) for key, value in found}
        gone = [key for key, (_, at) in self._last.items() if now - at > _FORGOTTEN]
        if gone:
            self._store.journal.write([], gone)
        if len(found) > len(gone):
            self._count += 1
            self._write([(JournalKey.BEAT, pack(self._count))])

    def close(self, *, ended: bool) -> None:
        """Stops the heartbeats. ``ended``: no standby is to take over."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        if ended:
            # For example, the disk is full: then a standby takes over and fails in the same way.
            with suppress(MillWheelError):
                entry = read(self._store.journal, lambda snapshot: snapshot.get(JournalKey.DRIVER))
                if entry is not None:
                    self._write([(JournalKey.ENDED, entry)])

    def _run(self) -> None:
        while not self._closed.wait(_EVERY):
            try:
                self.beat()
            except FencedError:  # it was taken over, or is just changing its generation
                continue
            except MillWheelError:  # the store does not answer: the epoch will fail by that too
                logger.debug("the heartbeat failed", exc_info=True)


class _Moved(Exception):
    """Another standby was faster."""


class Standby:
    """Waits until a pipeline has no leader."""

    def __init__(
        self,
        store: Store,
        owner: str,
        takeover_after: float = TAKEOVER_AFTER,
        *,
        able: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], int] = lambda: time.time_ns() // 1000,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._store = store
        self._owner = owner
        self._takeover_after = takeover_after
        self._able = able
        """Raises if this standby could not lead: it is to end now, not when it is needed."""
        self._clock = clock
        self._wall = wall
        self._pause = pause or threading.Event().wait
        self._id = os.urandom(8)
        self._since = wall()

    def wait(self) -> bool:
        """Returns when this driver is to lead; True: it replaces a leader that hangs.

        Raises `StandbyEnded` if the pipeline was stopped, or has finished.
        """
        signs: _Signs | None = None
        changed = refreshed = -1e9
        led = heard = False
        try:
            while True:
                self._able()
                now = self._clock()
                found = read(self._store.journal, _signs)
                if found != signs:
                    if signs is not None:
                        heard = found.driver == signs.driver and (heard or found.beat != signs.beat)
                    signs, changed = found, now
                in_use = self._store.in_use()
                if in_use is False:
                    if led and found.ended is not None and found.ended == found.driver:
                        raise StandbyEnded("the pipeline was stopped, or has finished: its standby ends too")
                    return False
                if not led:
                    led = True
                    logger.info(
                        "%s is a standby; the leader of the pipeline is %s", self._owner, found.leader
                    )
                patience = self._takeover_after if heard else max(self._takeover_after, _STARTING)
                if now - changed >= patience and self._claim(found):
                    logger.warning(
                        "%s has sent no heartbeat for %.1f s: %s takes over",
                        found.leader,
                        now - changed,
                        self._owner,
                    )
                    return True
                if now - refreshed >= _REFRESH:
                    refreshed = now
                    self._store.journal.write(
                        [(JournalKey.STANDBY + self._id, pack([self._owner, self._since, self._wall()]))]
                    )
                self._pause(_CHECK_EVERY)
        finally:
            self._store.journal.write([], [JournalKey.STANDBY + self._id])

    def lost(self) -> bool:
        """Whether another standby has become the leader."""
        return self._store.in_use() is not False

    def _claim(self, found: _Signs) -> bool:
        """Whether this standby is the first to claim the takeover.

        A claim that led to no new leader within the timeout passes to another standby.
        """

        def guard(get: Get) -> None:
            if get(JournalKey.DRIVER) != found.driver or get(JournalKey.CLAIM) not in (found.claim, claim):
                raise _Moved

        claim = pack([found.driver, self._id, os.urandom(8)])
        try:
            self._store.journal.write([(JournalKey.CLAIM, claim)], (), guard)
        except _Moved:
            return False
        return True


@dataclass(frozen=True)
class _Signs:
    """What shows that there is a leader, or will be in a moment."""

    driver: bytes | None
    beat: bytes | None
    commit: bytes | None
    claim: bytes | None
    ended: bytes | None

    @property
    def leader(self) -> str:
        return str(unpack(self.driver)[1]) if self.driver is not None else "a driver that is just starting"


def _signs(snapshot: Snapshot) -> _Signs:
    return _Signs(
        *snapshot.get_each(
            [JournalKey.DRIVER, JournalKey.BEAT, JournalKey.COMMIT, JournalKey.CLAIM, JournalKey.ENDED]
        )
    )
