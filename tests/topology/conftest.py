"""Changes are tested on a store in memory and on the shared one."""

from __future__ import annotations

import itertools

import pytest

from tests.store.undoing import Undoing
from tests.topology import changing


@pytest.fixture(params=["memory", "postgres"])
def on_each_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever `Changing` runs on: its stores are made there."""
    if request.param == "postgres":
        stores = itertools.islice(request.getfixturevalue("emptied_stores"), 4)
        monkeypatch.setattr(changing, "MemoryStore", lambda shards: Undoing(next(stores)))
