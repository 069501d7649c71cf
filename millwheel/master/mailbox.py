"""Requests of other processes to a running pipeline, through its journal.

    request ID    the sequencer of the driver that it is for, the action, and its arguments
    answer ID     the state (taken, done, refused) and the result

A request names the sequencer of the running driver; a driver accepts only requests that name it, or a
driver that it replaced in the same process. So a request that was not accepted is never carried out by a
later run. The client removes the answer once it has read it, and its request when it has timed out.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millwheel.errors import MillWheelError, PipelineError, StoreError
from millwheel.model.codec import pack, unpack
from millwheel.store.base import Get, Snapshot, Store, read
from millwheel.store.keyspace import JournalKey, after

_LOOK_EVERY = 0.1  # seconds between checks for requests: a read of the journal, possibly over a network
_TAKEN, _DONE, _REFUSED = "taken", "done", "refused"
ALIVE_EVERY = 2.0  # seconds between checks that the driver is alive

Tell = Callable[[str], None]
"""Called with the progress while a client waits."""


@dataclass
class Request:
    """A request to this driver."""

    id: bytes
    what: str
    given: dict[str, Any]


class Requests:
    """The requests to one job. Not thread-safe: used by the job's thread only."""

    def __init__(self, store: Store, sequencer: int) -> None:
        self._journal = store.journal
        self._mine = {sequencer}
        self.checked_at = 0.0
        self._open: dict[bytes, None] = {}
        self._clear()

    def follow(self, sequencer: int) -> None:
        """Continues with the sequencer of a changed pipeline, in the same process."""
        self._mine.add(sequencer)

    def _clear(self) -> None:
        """Removes requests to drivers that ended, and answers that were not read."""
        stale = read(self._journal, self._stale)
        if stale:
            self._journal.write([], stale)

    def _stale(self, snapshot: Snapshot) -> list[bytes]:
        others = [
            key for key, value in _scan(snapshot, JournalKey.REQUEST) if unpack(value)[0] not in self._mine
        ]
        return others + [key for key, _ in _scan(snapshot, JournalKey.ANSWER)]

    def asked_to_stop(self) -> float | None:
        """The timeout in seconds of a pending stop request, if any; does not take it."""
        found = read(
            self._journal, lambda snapshot: [unpack(v) for _, v in _scan(snapshot, JournalKey.REQUEST)]
        )
        stops = [given for to, what, given in found if to in self._mine and what == "stop"]
        return min((float(given["timeout"]) for given in stops if "timeout" in given), default=None)

    def take(self, *, now: bool = False) -> list[Request]:
        """New requests; none within a short time of the last check, unless ``now``."""
        moment = time.monotonic()
        if moment - self.checked_at < _LOOK_EVERY and not now:
            return []
        self.checked_at = moment
        with self._journal.snapshot() as snapshot:
            found = [(key, unpack(value)) for key, value in _scan(snapshot, JournalKey.REQUEST)]
        taken = [
            Request(key[len(JournalKey.REQUEST) :], what, given)
            for key, (to, what, given) in found
            if to in self._mine
        ]
        for request in taken:
            self._open[request.id] = None
        if taken:
            puts = [(JournalKey.ANSWER + request.id, pack([_TAKEN, None])) for request in taken]
            self._journal.write(puts, [JournalKey.REQUEST + request.id for request in taken])
        return taken

    def answer(self, request: Request, value: Any) -> None:
        """Answers that the request is done."""
        self._put(request.id, _DONE, value)

    def refuse(self, request: Request, why: str) -> None:
        """Answers that the request will not be carried out."""
        self._put(request.id, _REFUSED, why)

    def refuse_all(self, why: str) -> None:
        """Refuses all open requests, as the job ends."""
        for id in list(self._open):
            self._put(id, _REFUSED, why)

    def _put(self, id: bytes, state: str, value: Any) -> None:
        self._open.pop(id, None)
        self._journal.write([(JournalKey.ANSWER + id, pack([state, value]))])


def _scan(snapshot: Snapshot, letter: bytes) -> list[tuple[bytes, bytes]]:
    return list(snapshot.scan(letter, after(letter)))


def is_running(store: Store, who: str) -> bool:
    """Whether a driver holds the store; tries the lock if it cannot be queried."""
    used = store.in_use()
    if used is not None:
        return used
    try:
        store.lock(who)
    except StoreError:
        return True
    return False


def ask(store: Store, what: str, given: dict[str, Any], *, who: str, timeout: float, tell: Tell) -> Any:
    """Sends a request to the driver of a store, and waits for its answer.

    A refusal is a `PipelineError` with the driver's reason.
    """
    if not is_running(store, who):
        raise PipelineError("no pipeline runs on this store: start it first")
    id = uuid.uuid4().bytes
    while (owner := _send(store, id, what, given)) is None:
        pass
    tell(f"asked {owner}, which answers when its epoch is over")
    try:
        return _wait(store, id, owner, who=who, timeout=timeout, tell=tell)
    finally:
        store.journal.write([], [JournalKey.REQUEST + id, JournalKey.ANSWER + id])


class _Moved(Exception):
    """The driver has another sequencer, or there is another driver."""


def _send(store: Store, id: bytes, what: str, given: dict[str, Any]) -> str | None:
    """Journals a request to the running driver; returns its name, or None to retry."""
    with store.journal.snapshot() as snapshot:
        driver = snapshot.get(JournalKey.DRIVER)
    if driver is None:
        raise PipelineError("no pipeline has begun to run on this store yet: ask again in a moment")
    sequencer, owner = unpack(driver)[:2]

    def guard(get: Get) -> None:
        if get(JournalKey.DRIVER) != driver:
            raise _Moved

    try:
        store.journal.write([(JournalKey.REQUEST + id, pack([sequencer, what, given]))], (), guard)
    except _Moved:
        return None
    return str(owner)


def _wait(store: Store, id: bytes, owner: str, *, who: str, timeout: float, tell: Tell) -> Any:
    state: str | None = None
    began = looked = time.monotonic()
    while True:
        with store.journal.snapshot() as snapshot:
            data = snapshot.get(JournalKey.ANSWER + id)
        before, (state, value) = state, unpack(data) if data is not None else (None, None)
        if state == _DONE:
            return value
        if state == _REFUSED:
            raise PipelineError(str(value))
        if state == _TAKEN and before is None:
            tell("it has begun")
        now = time.monotonic()
        if now - looked > ALIVE_EVERY:
            looked = now
            if not is_running(store, who):
                raise PipelineError(f"{owner} ended without an answer: see its log")
            tell(f"waiting for {now - began:.0f} s")
        if now - began > timeout:
            raise PipelineError(
                f"{owner} has not answered in {timeout:.0f} s: "
                + ("it has started, and may still finish" if state == _TAKEN else "the request is withdrawn")
                + "; check it with millwheel status"
            )
        time.sleep(_LOOK_EVERY / 2)


def reason(error: BaseException) -> str:
    """The text of an error for another process."""
    return str(error) if isinstance(error, MillWheelError) else f"{type(error).__name__}: {error}"
