"""A function of the user's own is told each batch at least once, and can make exactly once of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import millwheel as mw
from millwheel.store.memory import MemoryStore
from millwheel.worker.epoch import SinkFailure
from tests.computations import Echo
from tests.store.driving import run, run_to_the_end, take


class Crash(Exception):
    """Stands for the end of the process."""


def _pipeline(sink: mw.Sink) -> mw.Pipeline:
    p = mw.Pipeline("callback")
    records = [mw.Record(value=i, timestamp=i, key="k") for i in range(40)]
    p.inject("in", mw.injectors.Records(records, per_epoch=4))
    p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
    p.sink("out", sink)
    return p


@pytest.mark.parametrize("in_driver", [False, True], ids=["in tasks", "in the driver"])
def test_a_batch_comes_again_with_the_same_number_and_records_until_its_epoch_is_committed(
    in_driver: bool,
) -> None:
    calls: list[tuple[int, int, list[int]]] = []
    crashes = iter([False, False, True, True, False, True, *[False] * 100])

    def tell(epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        calls.append((epoch, shard, [record.value for record in records]))
        if next(crashes):
            raise Crash

    store = MemoryStore()
    for _ in range(10):
        driver, executor = take(_pipeline(mw.sinks.Callback(tell, in_driver=in_driver)), store)
        crashed = len(calls)
        try:
            run_to_the_end(driver, executor)
            break
        except (mw.MillWheelError, SinkFailure):
            assert len(calls) > crashed
        finally:
            driver.close()
    assert len(calls) == 10 + 3
    batches: dict[tuple[int, int], list[int]] = {}
    for epoch, shard, values in calls:
        assert batches.setdefault((epoch, shard), values) == values
    assert [value for place in sorted(batches) for value in batches[place]] == list(range(40))


def test_it_takes_a_function() -> None:
    with pytest.raises(mw.MillWheelError, match="a function of"):
        mw.sinks.Callback("no function")  # type: ignore[arg-type]


def test_it_is_shown_by_the_name_of_its_function() -> None:
    assert repr(mw.sinks.Callback(run)) == "Callback(run)"
