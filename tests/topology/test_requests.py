"""What another process asks is done by the driver that it was asked of, or by none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.master import mailbox as module
from millwheel.master.mailbox import Requests, ask
from millwheel.model.codec import pack
from millwheel.store.lmdb.lmdb_store import LmdbStore
from tests.store.driving import contents


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    """A store on which the driver with sequencer 7 runs."""
    store = LmdbStore(tmp_path)
    store.lock("process 1 on a host")
    store.journal.write([(b"driver", pack([7, "process 1 on a host"]))])
    yield store
    store.close()


def _ask(store: LmdbStore, what: str = "stop", timeout: float = 30.0) -> Any:
    return ask(store, what, {"drain": True}, who="a test", timeout=timeout, tell=lambda text: None)


def _left(store: LmdbStore) -> list[bytes]:
    return [key for key in contents(store.journal) if key.startswith((b"request", b"answer"))]


class Asking(threading.Thread):
    """Somebody who waits for an answer."""

    def __init__(self, store: LmdbStore, **options: Any) -> None:
        super().__init__(daemon=True)
        self._call = lambda: _ask(store, **options)
        self.answer: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as error:
            self.error = error


def _taken(requests: Requests) -> list[module.Request]:
    pause = threading.Event()
    for _ in range(3_000):
        requests.checked_at = 0.0
        if found := requests.take():
            return found
        pause.wait(0.01)
    raise AssertionError("nothing was asked")


def test_what_is_asked_is_taken_once_and_answered(store: LmdbStore) -> None:
    requests = Requests(store, 7)
    asking = Asking(store)
    (request,) = _taken(requests)
    assert (request.what, request.given) == ("stop", {"drain": True})
    requests.checked_at = 0.0
    assert requests.take() == []
    requests.answer(request, {"epoch": 3})
    asking.join(30)
    assert asking.answer == {"epoch": 3}
    assert _left(store) == []


def test_a_refusal_says_why(store: LmdbStore) -> None:
    requests = Requests(store, 7)
    asking = Asking(store, what="apply")
    requests.refuse(_taken(requests)[0], "the codec cannot read it")
    asking.join(30)
    assert isinstance(asking.error, mw.PipelineError)
    assert "the codec cannot read it" in str(asking.error)


def test_a_job_that_ends_leaves_nobody_waiting(store: LmdbStore) -> None:
    requests = Requests(store, 7)
    asking = Asking(store, what="apply")
    _taken(requests)
    requests.refuse_all("the pipeline has ended")
    asking.join(30)
    assert "the pipeline has ended" in str(asking.error)


def test_a_request_that_nobody_took_up_is_not_carried_out_by_a_later_driver(store: LmdbStore) -> None:
    store.journal.write([(b"request\x00" + b"x" * 16, pack([6, "stop", {}]))])
    store.journal.write([(b"answer\x00" + b"y" * 16, pack(["done", None]))])
    requests = Requests(store, 7)
    assert _left(store) == [], "what is for those who are gone is cleared away"
    store.journal.write([(b"request\x00" + b"x" * 16, pack([6, "stop", {}]))])
    requests.checked_at = 0.0
    assert requests.take() == []


def test_a_request_to_the_driver_that_this_one_came_from_is_carried_out(store: LmdbStore) -> None:
    requests = Requests(store, 7)
    asking = Asking(store)
    requests.follow(8)
    requests.answer(_taken(requests)[0], 1)
    asking.join(30)
    assert asking.answer == 1


def test_who_waits_too_long_takes_the_request_back(store: LmdbStore) -> None:
    with pytest.raises(mw.PipelineError, match="process 1 on a host has not answered in 0 s: the request is"):
        _ask(store, timeout=0.2)
    assert _left(store) == []


def test_where_nobody_runs_nobody_is_asked(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    with pytest.raises(mw.PipelineError, match="no pipeline runs on this store"):
        _ask(store)
    store.close()


def test_a_driver_that_dies_is_noticed(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALIVE_EVERY", 0.05)
    asking = Asking(store)
    _taken(Requests(store, 7))
    store.lock_file.close()  # as its process does when it dies
    asking.join(30)
    assert "ended without an answer" in str(asking.error)
