"""Standby: a driver that is ready, and takes the pipeline over when the one that leads is gone.

The journal says who is there. A leader whose process has ended has lost the store's lock; one that hangs, or
is cut off, has stopped to write. Whoever takes over takes the next generation, as any driver does, and all
that the former leader writes after that is refused (6.2): so it does not matter whether it was really gone.

    standby...  one entry for each standby: who, since when, and when it was last there
    beat        a number that the leader changes twice a second as long as there are standbys
    claim       which standby takes over from which driver that hangs
    ended       the driver that was stopped on request, or has come to its end: nobody takes over
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
from millwheel.store.keyspace import after

logger = logging.getLogger("millwheel")

TAKEOVER_AFTER = 2.0
"""Seconds without a sign of a leader that still has the lock."""

_STANDBY, _BEAT, _CLAIM, _ENDED = b"standby", b"beat", b"claim", b"ended"
_EVERY = 0.5  # seconds between beats, and between checks for standbys
_STARTING = 30.0  # seconds until a leader's first beat: it may have to read all of its store first
_CHECK_EVERY = 0.1  # seconds between looks at the lock: so soon is a leader missed that was killed
_REFRESH = 1.0  # seconds between signs of a standby
_FORGOTTEN = 10.0  # seconds without a sign, after which a standby is taken off the list
_SHOWN = 5_000_000  # microseconds since its last sign for which a standby is shown

Write = Callable[[list[tuple[bytes, bytes]]], None]


@dataclass(frozen=True)
class StandbyView:
    """A standby: who it is, and since when it waits, in microseconds since 1970."""

    owner: str
    since: int


def read_standbys(snapshot: Snapshot, now: int) -> list[StandbyView]:
    """The standbys that were there a moment ago, the first one first."""
    found = [unpack(value) for _, value in snapshot.scan(_STANDBY, after(_STANDBY))]
    return sorted(
        (StandbyView(owner, since) for owner, since, at in found if now - at < _SHOWN),
        key=lambda one: (one.since, one.owner),
    )


def check_takeover_after(given: Any) -> float:
    """The option as a number of seconds; beats come twice a second."""
    if isinstance(given, bool) or not isinstance(given, int | float) or given < 2 * _EVERY:
        raise PipelineError(
            f"the option takeover_after is a number of seconds, {2 * _EVERY:.0f} or more, not {given!r}"
        )
    return float(given)


class Heartbeat:
    """The leader's side: shows that it is there, as long as somebody waits for it to be gone."""

    def __init__(self, store: Store, write: Write, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._write = write
        self._clock = clock
        self._count = 0
        self._last: dict[bytes, tuple[bytes, float]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millwheel-heartbeat", daemon=True)

    def start(self) -> None:
        """Begins to beat."""
        self._thread.start()

    def beat(self) -> None:
        """Writes a sign if there is a standby; takes those off the list that have gone."""
        now = self._clock()
        found = read(self._store.journal, lambda snapshot: list(snapshot.scan(_STANDBY, after(_STANDBY))))
        seen = {key: self._last.get(key, (b"", now)) for key, _ in found}
        self._last = {key: seen[key] if seen[key][0] == value else (value, now) for key, value in found}
        gone = [key for key, (_, at) in self._last.items() if now - at > _FORGOTTEN]
        if gone:
            self._store.journal.write([], gone)
        if len(found) > len(gone):
            self._count += 1
            self._write([(_BEAT, pack(self._count))])

    def close(self, *, ended: bool) -> None:
        """Beats no more. ``ended``: nobody is to take over."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        if ended:
            with suppress(
                MillWheelError
            ):  # the disk is full, say: then a standby takes over, and finds the same
                entry = read(self._store.journal, lambda snapshot: snapshot.get(b"driver"))
                if entry is not None:
                    self._write([(_ENDED, entry)])

    def _run(self) -> None:
        while not self._closed.wait(_EVERY):
            try:
                self.beat()
            except FencedError:  # it was taken over, or is just changing its generation
                continue
            except MillWheelError:  # the store does not answer: the epoch will meet that too
                logger.debug("the heartbeat failed", exc_info=True)


class _Moved(Exception):
    """Somebody else was faster."""


class Standby:
    """Waits until a pipeline has no leader."""

    def __init__(
        self,
        store: Store,
        owner: str,
        takeover_after: float = TAKEOVER_AFTER,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], int] = lambda: time.time_ns() // 1000,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._store = store
        self._owner = owner
        self._takeover_after = takeover_after
        self._clock = clock
        self._wall = wall
        self._pause = pause or threading.Event().wait
        self._id = os.urandom(8)
        self._since = wall()

    def wait(self) -> bool:
        """Returns when this driver is to lead; True: the leader hangs, and the store is taken from it.

        Raises `StandbyEnded` where the pipeline was stopped, or has come to its end.
        """
        signs: _Signs | None = None
        changed = refreshed = -1e9
        led = heard = False
        try:
            while True:
                now = self._clock()
                found = read(self._store.journal, _signs)
                if found != signs:
                    if signs is not None:
                        heard = found.driver == signs.driver and (heard or found.beat != signs.beat)
                    signs, changed = found, now
                in_use = self._store.in_use()
                if in_use is False:
                    if led and found.ended is not None and found.ended == found.driver:
                        raise StandbyEnded(
                            "the pipeline was stopped, or has come to its end: so does its standby"
                        )
                    return False
                if not led:
                    led = True
                    logger.info("%s stands by; the pipeline is led by %s", self._owner, found.leader)
                patience = self._takeover_after if heard else max(self._takeover_after, _STARTING)
                if now - changed >= patience and self._claim(found):
                    logger.warning(
                        "%s has shown no sign for %.1f s: %s takes over",
                        found.leader,
                        now - changed,
                        self._owner,
                    )
                    return True
                if now - refreshed >= _REFRESH:
                    refreshed = now
                    self._store.journal.write(
                        [(_STANDBY + self._id, pack([self._owner, self._since, self._wall()]))]
                    )
                self._pause(_CHECK_EVERY)
        finally:
            self._store.journal.write([], [_STANDBY + self._id])

    def lost(self) -> bool:
        """Whether another one has come first: there is a leader again."""
        return self._store.in_use() is not False

    def _claim(self, found: _Signs) -> bool:
        """Whether this standby is the one that takes over: the first to say so.

        A claim that has brought no new leader for as long as a leader may be silent is taken from its owner.
        """

        def guard(get: Get) -> None:
            if get(b"driver") != found.driver or get(_CLAIM) not in (found.claim, claim):
                raise _Moved

        claim = pack([found.driver, self._id, os.urandom(8)])
        try:
            self._store.journal.write([(_CLAIM, claim)], (), guard)
        except _Moved:
            return False
        return True


@dataclass(frozen=True)
class _Signs:
    """What shows that somebody leads, or is about to."""

    driver: bytes | None
    beat: bytes | None
    commit: bytes | None
    claim: bytes | None
    ended: bytes | None

    @property
    def leader(self) -> str:
        return str(unpack(self.driver)[1]) if self.driver is not None else "a driver that is just starting"


def _signs(snapshot: Snapshot) -> _Signs:
    return _Signs(*snapshot.get_each([b"driver", _BEAT, b"commit", _CLAIM, _ENDED]))
