"""The same schedules on PostgreSQL, whose connections are cut for real: before a commit, and behind it."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter

import psycopg
import pytest

from millwheel.store.base import Store
from millwheel.store.postgres.postgres_store import PostgresStore
from millwheel.store.postgres.row_runs import Log, Rows
from millwheel.store.postgres.sessions import Session
from millwheel.testing import simulate
from tests.simulator import pipelines
from tests.store.driving import packing_much

_SCHEDULES = 4
_MOST_SCHEDULES = 16  # where some mishap did not come among the first ones
_MISHAPS = ("kill", "lose", "repeat", "cut")
_CASES = [
    (pipelines.windows, None),
    (pipelines.resent, pipelines.check_resent),
    (pipelines.weak_then_strong, None),
    (pipelines.in_order, None),
]
_numbers = itertools.count()


def _in_a_driver() -> bool:
    """Simulated drivers and their tasks are threads; what looks at the end of a run is not."""
    return threading.current_thread() is not threading.main_thread()


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Now and then a connection is gone, or a transaction is refused, just when it is to be synchronised.

    Beside them: the writes whose rows wait in a run.
    """
    chance = random.Random(7)
    happened: Counter[str] = Counter()
    sync, send, add = Session.sync, Session.send, Log.add

    def cut_off(self: Session) -> None:
        moment = chance.random() if _in_a_driver() else 0.5
        if moment < 0.01:
            happened["before"] += 1
            self.close()
            raise psycopg.OperationalError("cut off before the server heard of it")
        sync(self)
        if moment > 0.99:
            happened["behind"] += 1
            self.close()
            raise psycopg.OperationalError("cut off before the answer came")

    def refused(self: Session, query: str, parameters: object = ()) -> object:
        if query.startswith(("MERGE", "INSERT", "WITH done")) and _in_a_driver() and chance.random() < 0.02:
            happened["refused"] += 1
            query = (
                "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'could not serialize'; END $$"
            )
            parameters = ()
        return send(self, query, parameters)  # type: ignore[arg-type]

    def counted(self: Log, name: bytes, rows: Rows) -> None:
        happened["run"] += 1
        add(self, name, rows)

    monkeypatch.setattr(Log, "add", counted)
    monkeypatch.setattr(Session, "sync", cut_off)
    monkeypatch.setattr(Session, "send", refused)
    return happened


@pytest.mark.parametrize(("make", "check"), _CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_every_schedule_ends_as_the_undisturbed_run(
    make: object, check: object, database: str, cuts: Counter[str]
) -> None:
    def store(shards: int) -> Store:
        made = PostgresStore(f"{database}?schema=simulated_{next(_numbers)}", shards=shards)
        return packing_much(made)

    happened: Counter[str] = Counter()
    for seed in range(_MOST_SCHEDULES):
        happened.update(simulate(make, seeds=[seed], check=check, store=store))  # type: ignore[arg-type]
        if seed + 1 >= _SCHEDULES and all(happened[mishap] for mishap in _MISHAPS):
            break
    for mishap in _MISHAPS:
        assert happened[mishap] > 0
    for moment in ("before", "behind", "refused", "run"):
        assert cuts[moment] > 0
