"""Record IDs that are integers: up to 64 bits they travel, larger ones are bad input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.memory import MemoryStore
from millwheel.worker.step import Worker
from tests.computations import Echo

LARGE = [2**64, -(2**63) - 1, 10**40]
FITTING = [2**64 - 1, -(2**63), 0]


def ran(injector: mw.Injector) -> tuple[list[Any], list[mw.Record]]:
    """What an echo gives, and what is on the errors stream."""
    out, errors = mw.sinks.Collect(), mw.sinks.Collect()
    p = mw.Pipeline("ids")
    p.inject("in", injector)
    p.add(Echo("out"), inputs={"in": lambda record: "all"}, outputs=["out"])
    p.sink("out", out)
    if injector.errors == "divert":
        p.sink("in.errors", errors)
    graph = build(p)
    store = MemoryStore()
    driver = Driver(graph, store, Options(slots=1), clock=lambda: 0, owner="a test")
    executor = LocalExecutor(Worker(graph, driver.numbers, store))
    while (plan := driver.next_plan_to_the_end()) is not None:
        driver.run(plan, executor)
    return [record.value for record in out.records], errors.records


class Given(mw.Injector):
    """An injector of a user's own."""

    def __init__(self, ids: list[int], errors: str) -> None:
        self.ids = ids
        self.errors = errors

    def poll(self) -> Mapping[str, Any]:
        return {"one": len(self.ids)}

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        return [mw.Record(value=n, timestamp=n, id=id) for n, id in enumerate(self.ids)][start or 0 : end]

    def low_watermark(self, partition: str, offset: Any) -> int:
        return mw.MAX_TIME if offset == len(self.ids) else mw.MIN_TIME


def injectors(ids: list[int], errors: Any, folder: Path) -> list[mw.Injector]:
    file = folder / f"{errors}.jsonl"
    file.write_text("".join(f'{{"n": {n}, "id": {id}}}\n' for n, id in enumerate(ids)))
    files = mw.injectors.Files(str(file), timestamp="n", id="id", errors=errors, unit="us")
    return [Given(ids, errors), files]


@pytest.mark.parametrize("id", LARGE)
def test_an_id_of_more_than_64_bits_is_a_clear_error(id: int, tmp_path: Path) -> None:
    for injector in injectors([*FITTING, id], "stop", tmp_path):
        with pytest.raises(mw.InputError, match=r"the ID .* is an integer of more than 64 bits|the ID field"):
            ran(injector)


@pytest.mark.parametrize("id", LARGE)
def test_an_id_of_more_than_64_bits_is_diverted_alone(id: int, tmp_path: Path) -> None:
    for injector in injectors([*FITTING, id, 5, 5], "divert", tmp_path):
        values, errors = ran(injector)
        assert len(values) == len(FITTING) + 1
        assert len(errors) == 1


@pytest.mark.parametrize("id", LARGE)
def test_a_harness_refuses_an_id_of_more_than_64_bits(id: int) -> None:
    p = mw.Pipeline("ids")
    p.inject("in", mw.injectors.Records([]))
    p.add(Echo("out"), inputs={"in": mw.by_key}, outputs=["out"])
    h = mw.testing.Harness(p)
    with pytest.raises(mw.MillWheelError, match="more than 64 bits"):
        h.send("in", 1, timestamp=1, id=id)
    h.send("in", 2, timestamp=1, id=FITTING[0])
    assert [record.value for record in h.output("out")] == [2]
