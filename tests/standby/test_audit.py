"""A standby verifies the store while it waits, and stops at once when it is to lead."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from millwheel.errors import StoreError
from millwheel.master.standby_audit import StandbyAudit
from millwheel.store.memory import MemoryStore

_PATIENCE = 60.0


class _Store(MemoryStore):
    """Verifies until it is interrupted; or is damaged."""

    def __init__(self, damage: str | None = None) -> None:
        super().__init__()
        self.damage = damage
        self.passes = 0
        self.began, self.again = threading.Event(), threading.Event()

    def verify_ahead(self, interrupted: Callable[[], bool]) -> int:
        self.passes += 1
        self.began.set()
        if self.passes > 1:
            self.again.set()
        if self.damage is not None:
            raise StoreError(self.damage)
        pause = threading.Event()
        while not interrupted():
            pause.wait(0.001)
        return 0


def test_an_audit_under_way_ends_with_the_wait() -> None:
    store = _Store()
    with StandbyAudit(store):
        assert store.began.wait(_PATIENCE)
    assert store.passes == 1


def test_damage_is_reported_once_and_the_standby_waits_on(caplog: pytest.LogCaptureFixture) -> None:
    store = _Store("the store is damaged")
    with StandbyAudit(store, clock=lambda: 0.0, at_least=0.0):
        assert store.again.wait(_PATIENCE)
    assert [record.getMessage() for record in caplog.records] == [
        "a takeover by this standby would fail: the store is damaged"
    ]
