"""What an epoch asks of object storage: it is what a pipeline waits for, and what its owner pays for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from millwheel.objects import Folder
from millwheel.store.open import open_store
from tests.crash.away import pipeline, sinks_in_memory
from tests.store.driving import take

_EPOCHS = 10
_LEVELS = 2


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The requests, by what is asked for and of which part of the store."""
    asked: Counter[str] = Counter()

    def count(method: str) -> None:
        original = getattr(Folder, method)

        def counted(self: Folder, name: str, *arguments: object, **options: object) -> object:
            asked[f"{method} {name.partition('/')[0].partition('-')[0]}"] += 1
            return original(self, name, *arguments, **options)

        monkeypatch.setattr(Folder, method, counted)

    for method in ("create", "put", "get", "list"):
        count(method)
    return asked


@pytest.mark.parametrize("compact_below", [0, 10**6], ids=["wide", "compact"])
@pytest.mark.parametrize(("slots", "shards"), [(1, 1), (4, 4), (4, 2), (4, 1)])
def test_an_epoch_in_one_process_is_two_puts_of_the_journal_and_one_for_each_shard_and_level_less_the_merged(
    slots: int, shards: int, compact_below: int, asked: Counter[str], tmp_path: Path
) -> None:
    store = open_store(f"file://{tmp_path}/objects", shards=shards)
    driver, executor = take(pipeline({**sinks_in_memory()}), store, slots=slots, compact_below=compact_below)
    asked.clear()
    for _ in range(_EPOCHS):
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
    asked.pop("get driver", None), asked.pop("put driver", None)  # the lease, by the clock
    merged = _LEVELS - 1  # the shard that a level writes last is written by the next one in the same step
    assert asked == {
        "create journal": 2 * _EPOCHS,
        "create shard": (shards * _LEVELS - merged) * _EPOCHS,
        "get shard": slots * _LEVELS * _EPOCHS,
    }
    driver.close()
    store.close()
