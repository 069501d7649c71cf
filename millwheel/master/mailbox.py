"""What other processes ask of a running pipeline, by way of its journal.

    request ID    the sequencer of the driver that it is for, what is asked, and the particulars
    answer ID     the state (taken, done, refused) and what there is to say

Whoever asks names the sequencer of the driver that runs; a driver takes up only what names it, or a driver
that it came from in the same process. So a request that nobody took up is never carried out by a later run.
The asker removes the answer when it has read it, and its request when it has waited long enough.
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
from millwheel.store.keyspace import after

_REQUEST, _ANSWER = b"request\x00", b"answer\x00"
_LOOK_EVERY = 0.1  # seconds between looks for requests: a read of the journal, which may be across a network
_TAKEN, _DONE, _REFUSED = "taken", "done", "refused"
_ALIVE_EVERY = 2.0  # seconds between looks whether the driver is still there

Tell = Callable[[str], None]
"""Told how it goes while somebody waits."""


@dataclass
class Request:
    """Something that was asked of this driver."""

    id: bytes
    what: str
    given: dict[str, Any]


class Requests:
    """The requests to one job. Not thread-safe: the job's thread looks."""

    def __init__(self, store: Store, sequencer: int) -> None:
        self._journal = store.journal
        self._mine = {sequencer}
        self._looked = 0.0
        self._open: dict[bytes, None] = {}
        self._clear()

    def follow(self, sequencer: int) -> None:
        """The pipeline has become another one, in the same process."""
        self._mine.add(sequencer)

    def _clear(self) -> None:
        """Removes what is for drivers that are gone, and answers that nobody fetched."""
        stale = read(self._journal, self._stale)
        if stale:
            self._journal.write([], stale)

    def _stale(self, snapshot: Snapshot) -> list[bytes]:
        others = [key for key, value in _scan(snapshot, _REQUEST) if unpack(value)[0] not in self._mine]
        return others + [key for key, _ in _scan(snapshot, _ANSWER)]

    def asked_to_stop(self) -> float | None:
        """Within how many seconds somebody wants a stop, if anybody does; it is not taken by this."""
        found = read(self._journal, lambda snapshot: [unpack(v) for _, v in _scan(snapshot, _REQUEST)])
        stops = [given for to, what, given in found if to in self._mine and what == "stop"]
        return min((float(given["timeout"]) for given in stops if "timeout" in given), default=None)

    def take(self, *, now: bool = False) -> list[Request]:
        """What has come since the last look; nothing if that was just now, unless it is to be ``now``."""
        moment = time.monotonic()
        if moment - self._looked < _LOOK_EVERY and not now:
            return []
        self._looked = moment
        with self._journal.snapshot() as snapshot:
            found = [(key, unpack(value)) for key, value in _scan(snapshot, _REQUEST)]
        taken = [
            Request(key[len(_REQUEST) :], what, given) for key, (to, what, given) in found if to in self._mine
        ]
        for request in taken:
            self._open[request.id] = None
        if taken:
            puts = [(_ANSWER + request.id, pack([_TAKEN, None])) for request in taken]
            self._journal.write(puts, [_REQUEST + request.id for request in taken])
        return taken

    def answer(self, request: Request, value: Any) -> None:
        """It is done."""
        self._put(request.id, _DONE, value)

    def refuse(self, request: Request, why: str) -> None:
        """It is not done, and will not be."""
        self._put(request.id, _REFUSED, why)

    def refuse_all(self, why: str) -> None:
        """The job ends: what it has not answered yet it never will."""
        for id in list(self._open):
            self._put(id, _REFUSED, why)

    def _put(self, id: bytes, state: str, value: Any) -> None:
        self._open.pop(id, None)
        self._journal.write([(_ANSWER + id, pack([state, value]))])


def _scan(snapshot: Snapshot, letter: bytes) -> list[tuple[bytes, bytes]]:
    return list(snapshot.scan(letter, after(letter)))


def is_running(store: Store, who: str) -> bool:
    """Whether a driver has the store; where nobody can tell, the lock is tried."""
    used = store.in_use()
    if used is not None:
        return used
    try:
        store.lock(who)
    except StoreError:
        return True
    return False


def ask(store: Store, what: str, given: dict[str, Any], *, who: str, timeout: float, tell: Tell) -> Any:
    """Asks the driver that runs on a store, and waits for its answer.

    A refusal is a `PipelineError` with the driver's reason.
    """
    if not is_running(store, who):
        raise PipelineError("no pipeline runs on this store: there is nobody to ask")
    id = uuid.uuid4().bytes
    while (owner := _send(store, id, what, given)) is None:
        pass
    tell(f"asked {owner}, which answers when its epoch is over")
    try:
        return _wait(store, id, owner, who=who, timeout=timeout, tell=tell)
    finally:
        store.journal.write([], [_REQUEST + id, _ANSWER + id])


class _Moved(Exception):
    """The driver has another sequencer, or there is another driver."""


def _send(store: Store, id: bytes, what: str, given: dict[str, Any]) -> str | None:
    """Journals a request to the driver that runs, and says who that is; None: to be tried again."""
    with store.journal.snapshot() as snapshot:
        driver = snapshot.get(b"driver")
    if driver is None:
        raise PipelineError("no pipeline has begun to run on this store yet: ask again in a moment")
    sequencer, owner = unpack(driver)[:2]

    def guard(get: Get) -> None:
        if get(b"driver") != driver:
            raise _Moved

    try:
        store.journal.write([(_REQUEST + id, pack([sequencer, what, given]))], (), guard)
    except _Moved:
        return None
    return str(owner)


def _wait(store: Store, id: bytes, owner: str, *, who: str, timeout: float, tell: Tell) -> Any:
    state: str | None = None
    began = looked = time.monotonic()
    while True:
        with store.journal.snapshot() as snapshot:
            data = snapshot.get(_ANSWER + id)
        before, (state, value) = state, unpack(data) if data is not None else (None, None)
        if state == _DONE:
            return value
        if state == _REFUSED:
            raise PipelineError(str(value))
        if state == _TAKEN and before is None:
            tell("it has begun")
        now = time.monotonic()
        if now - looked > _ALIVE_EVERY:
            looked = now
            if not is_running(store, who):
                raise PipelineError(f"{owner} has ended without an answer: look at what it said")
            tell(f"waiting for {now - began:.0f} s")
        if now - began > timeout:
            raise PipelineError(
                f"{owner} has not answered in {timeout:.0f} s: "
                + ("it has begun, and may still do it" if state == _TAKEN else "the request is withdrawn")
                + "; see how it is with millwheel status"
            )
        time.sleep(_LOOK_EVERY / 2)


def reason(error: BaseException) -> str:
    """What is said of an error to somebody in another process."""
    return str(error) if isinstance(error, MillWheelError) else f"{type(error).__name__}: {error}"
