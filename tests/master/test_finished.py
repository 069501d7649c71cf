"""Partitions that are read to their end cost an epoch nothing, and count as they did when they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import millwheel as mw
from millwheel.master.finished import Finished
from millwheel.master.sources import Sources
from millwheel.model.names import SourceName
from millwheel.model.pipeline import Source
from millwheel.model.time import MAX_TIME, MIN_TIME


def test_a_partition_that_grows_is_not_finished_until_it_is_read_again() -> None:
    finished = Finished()
    finished.update({"a": 1, "b": 1})
    finished.add("a", 1, newest=7)
    assert finished.others == {"a": 1, "b": 1}
    assert finished.newest == MIN_TIME
    finished.update({"a": 1, "b": 1})
    assert finished.others == {"b": 1}
    assert finished.newest == 7
    finished.update({"a": 2, "b": 1})
    assert finished.others == {"a": 2, "b": 1}
    finished.add("a", 2, newest=5)
    finished.update({"a": 2, "b": 1})
    assert finished.others == {"b": 1}


def test_the_order_is_that_of_the_poll() -> None:
    finished = Finished()
    finished.update({"a": 1, "b": 1, "c": 1})
    finished.add("b", 1, newest=1)
    finished.update({"c": 1, "b": 2, "a": 1})
    assert list(finished.others) == ["c", "b", "a"]


def test_when_one_is_gone_the_others_count_again() -> None:
    finished = Finished()
    finished.update({"a": 1, "b": 1})
    finished.add("a", 1, newest=7)
    finished.add("b", 1, newest=9)
    finished.update({"a": 1})
    assert finished.others == {"a": 1}
    assert finished.newest == MIN_TIME


class _Logs(mw.Injector):
    """Many partitions; counts how often it is asked for a watermark."""

    bounded = False
    slack = 10

    def __init__(self, count: int) -> None:
        self.ends = {f"log-{number}": 1 for number in range(count)}
        self.asked = 0

    def poll(self) -> Mapping[str, int]:
        return self.ends

    def low_watermark(self, partition: str, offset: Any) -> int:
        self.asked += 1
        return MAX_TIME if offset == self.ends[partition] else MIN_TIME


def test_an_epoch_asks_for_the_watermark_of_partitions_alone_that_are_not_read_to_their_end() -> None:
    logs, name = _Logs(200), SourceName("logs", 0)
    sources = Sources([Source(name, logs)], {}, {})
    sources.poll(0)
    for number, state in enumerate(sources.partitions[name].values()):
        state.offset, state.newest = 1, number
    sources.poll(0)
    sources.poll(0)
    assert sources.marks([], 0)[name].newest == 199
    logs.asked = 0
    logs.ends = {**logs.ends, "log-7": 2}
    sources.poll(0)
    mark = sources.marks([], 0)[name]
    assert logs.asked < 10
    assert mark.newest == 199
    assert mark.watermark() == sources.holders[name].watermark
    assert sources.holders[name].partition == "log-7"
    assert sources.lag() == {str(name): 1}
    assert [item.partition for item in sources.choose(100, 1, 100, MAX_TIME)] == ["log-7"]
