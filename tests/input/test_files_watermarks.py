"""What the low watermark of a folder of files follows (5.2, Fig. 10)."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.injectors.creation_time import birth_time
from millwheel.master.driver import Driver
from millwheel.master.ending import Ending
from millwheel.master.local_executor import LocalExecutor
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.input.reading import append, jsonl, opened
from tests.store.driving import run_to_the_end, take

Files = mw.injectors.Files


def _taken(injector: mw.Injector, *, follow: bool = False) -> tuple[Driver, LocalExecutor]:
    p = mw.Pipeline("files")
    p.inject("in", injector)
    p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
    return take(p, MemoryStore(), ending=Ending.NEVER if follow else Ending.CLOSE)


def _epoch(taken: tuple[Driver, LocalExecutor], bound: int = 20_000) -> int:
    """Runs one epoch of about ``bound`` records, if there is one; the watermark behind it."""
    driver, executor = taken
    driver.sizer.bound = bound
    plan = driver.next_plan()
    if plan is not None:
        driver.run(plan, executor)
    return driver.authority.lows["C"]


class TestComplete:
    def test_a_file_holds_the_watermark_until_it_is_read_to_its_end(self, tmp_path: Path) -> None:
        path = str(jsonl(tmp_path / "a.jsonl", [{"t": 5}, {"t": 6}]))
        injector = opened(Files(path, timestamp="t"))
        ((name, end),) = injector.poll().items()
        assert injector.low_watermark(name, None) == mw.MIN_TIME
        assert injector.low_watermark(name, end - 9) == mw.MIN_TIME
        assert injector.low_watermark(name, end) == mw.MAX_TIME

    def test_it_is_the_default_of_a_run_that_ends(self, tmp_path: Path) -> None:
        jsonl(tmp_path / "a.jsonl", [{"t": i} for i in range(1000)])
        taken = _taken(Files(tmp_path / "*", timestamp="t"))
        assert taken[0].graph.sources[0].injector.slack is None
        assert _epoch(taken, bound=300) == mw.MIN_TIME
        assert run_to_the_end(*taken).low_watermarks["C"] == mw.MAX_TIME

    def test_one_unfinished_file_holds_it_for_all(self, tmp_path: Path) -> None:
        jsonl(tmp_path / "a.jsonl", [{"t": 1}])
        jsonl(tmp_path / "b.jsonl", [{"t": i} for i in range(1000)])
        taken = _taken(Files(tmp_path / "*", timestamp="t"))
        assert _epoch(taken, bound=300) == mw.MIN_TIME
        assert _epoch(taken, bound=300) == mw.MIN_TIME


class TestEvents:
    def test_it_follows_the_newest_timestamp_with_the_slack(self, tmp_path: Path) -> None:
        path = jsonl(tmp_path / "a.jsonl", [{"t": 100}, {"t": 50}])
        taken = _taken(Files(path, timestamp="t", slack=30), follow=True)
        assert _epoch(taken) == 70
        append(path, '{"t": 60}\n')
        assert _epoch(taken) == 70
        append(path, '{"t": 200}\n')
        assert _epoch(taken) == 170

    def test_a_slack_of_nothing_follows_the_newest_timestamp_itself(self, tmp_path: Path) -> None:
        path = jsonl(tmp_path / "a.jsonl", [{"t": 100}])
        assert _epoch(_taken(Files(path, timestamp="t", slack=0), follow=True)) == 100

    def test_ten_seconds_are_the_default_of_a_folder_that_is_followed(self, tmp_path: Path) -> None:
        path = jsonl(tmp_path / "a.jsonl", [{"t": 60 * mw.SECOND}])
        assert _epoch(_taken(Files(path, timestamp="t"), follow=True)) == 50 * mw.SECOND

    def test_the_slowest_unfinished_file_decides(self, tmp_path: Path) -> None:
        jsonl(tmp_path / "a.jsonl", [{"t": 1000 + i} for i in range(1000)])
        jsonl(tmp_path / "b.jsonl", [{"t": 5000 + i} for i in range(1000)])
        taken = _taken(Files(tmp_path / "*", timestamp="t", slack=0), follow=True)
        low = _epoch(taken, bound=400)
        low = max(low, _epoch(taken, bound=400))
        assert 1000 < low < 2000

    def test_a_file_that_is_not_begun_holds_it_at_its_first_line(self, tmp_path: Path) -> None:
        for number in range(5):
            time = number * mw.HOUR
            jsonl(tmp_path / f"{number}.jsonl", [{"t": time + i} for i in range(1000)])
        taken = _taken(Files(tmp_path / "*", timestamp="t", slack=3))
        lows = [_epoch(taken, bound=1_100) for _ in range(5)]
        assert mw.HOUR <= lows[0] < mw.HOUR + 1000  # the first file is read, and others are not begun
        assert lows == sorted(lows)
        assert lows[-1] > 2 * mw.HOUR

    def test_packed_logs_are_read_in_order_of_time_and_move_it_one_by_one(self, tmp_path: Path) -> None:
        for number in range(5):
            lines = [json.dumps({"t": number * mw.HOUR + i}) for i in range(1000)]
            data = gzip.compress("\n".join(lines).encode())
            (tmp_path / f"log.{5 - number}.jsonl.gz").write_bytes(data)  # as logrotate numbers them
        taken = _taken(Files(tmp_path / "*", timestamp="t", slack=0))
        lows = [_epoch(taken, bound=1) for _ in range(5)]
        assert lows == [999, mw.HOUR + 999, 2 * mw.HOUR + 999, 3 * mw.HOUR + 999, mw.MAX_TIME]

    @pytest.mark.parametrize("first", ["oops", '{"u": 1}', '{"t": "soon"}'])
    def test_a_first_line_that_tells_nothing_holds_it_until_the_file_is_looked_into(
        self, tmp_path: Path, first: str
    ) -> None:
        jsonl(tmp_path / "a.jsonl", [{"t": 100}])
        (tmp_path / "b.jsonl").write_text(first + '\n{"t": 50}\n')
        injector = opened(Files(tmp_path / "*", timestamp="t", slack=0, errors="divert"))
        found = [injector.low_watermark(name, None) for name in injector.poll()]
        assert found == [100, mw.MIN_TIME]

    def test_of_a_table_with_a_header_the_first_row_tells(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("t,k\n7,x\n9,x\n")
        injector = opened(Files(tmp_path / "*", timestamp="t", unit="ms", watermark="monotonic"))
        assert [injector.low_watermark(name, None) for name in injector.poll()] == [7_000]

    def test_a_bounded_run_ends_at_the_end_of_time(self, tmp_path: Path) -> None:
        path = jsonl(tmp_path / "a.jsonl", [{"t": 100}])
        taken = _taken(Files(path, timestamp="t", slack=10))
        assert run_to_the_end(*taken).low_watermarks["C"] == mw.MAX_TIME

    def test_a_folder_without_files_does_not_move_it(self, tmp_path: Path) -> None:
        assert _epoch(_taken(Files(tmp_path / "*", timestamp="t", slack=10), follow=True)) == mw.MIN_TIME


class TestCreated:
    @pytest.fixture
    def births(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
        times = {"a.jsonl": 1_000, "b.jsonl": 3_000, "c.jsonl": 2_000, "d.jsonl": 9_000}
        monkeypatch.setattr(
            "millwheel.injectors.creation_time.birth_time", lambda path: times[os.path.basename(path)]
        )
        return times

    def test_it_is_the_creation_of_the_oldest_unfinished_file(
        self, tmp_path: Path, births: dict[str, int]
    ) -> None:
        for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
            jsonl(tmp_path / name, [{"t": i} for i in range(1000)])
        taken = _taken(Files(tmp_path / "*", timestamp="t", watermark="created"))
        lows = []
        while not lows or lows[-1] != mw.MAX_TIME:
            lows.append(_epoch(taken, bound=300))  # one file after the other, a part at a time
        assert lows == sorted(lows)
        assert set(lows) == {1_000, 2_000, 3_000, mw.MAX_TIME} or set(lows) == {1_000, 2_000, mw.MAX_TIME}

    def test_when_all_files_are_read_and_more_may_come_it_stays(
        self, tmp_path: Path, births: dict[str, int]
    ) -> None:
        jsonl(tmp_path / "a.jsonl", [{"t": i} for i in range(1000)])
        taken = _taken(Files(tmp_path / "*", timestamp="t", watermark="created"), follow=True)
        assert _epoch(taken, bound=300) == 1_000
        for _ in range(20):
            assert _epoch(taken, bound=300) == 1_000
        jsonl(tmp_path / "d.jsonl", [{"t": i} for i in range(1000)])
        assert _epoch(taken, bound=300) == 9_000

    def test_a_file_that_is_read_to_its_end_holds_nothing(
        self, tmp_path: Path, births: dict[str, int]
    ) -> None:
        path = str(jsonl(tmp_path / "a.jsonl", [{"t": 5}]))
        injector = opened(Files(path, timestamp="t", watermark="created"), follow=True)
        ((name, end),) = injector.poll().items()
        assert injector.low_watermark(name, None) == 1_000
        assert injector.low_watermark(name, end) == mw.MAX_TIME
        append(Path(path), '{"t": 6}\n')
        injector.poll()
        assert injector.low_watermark(name, end) == 1_000

    def test_the_watermark_never_goes_back_for_a_file_that_comes_late(
        self, tmp_path: Path, births: dict[str, int]
    ) -> None:
        jsonl(tmp_path / "b.jsonl", [{"t": i} for i in range(1000)])
        taken = _taken(Files(tmp_path / "*", timestamp="t", watermark="created"), follow=True)
        assert _epoch(taken, bound=300) == 3_000
        jsonl(tmp_path / "a.jsonl", [{"t": i} for i in range(1000)])
        assert _epoch(taken, bound=300) == 3_000


def test_the_birth_of_a_file_is_between_then_and_now(tmp_path: Path) -> None:
    before = time.time_ns() // 1000 - mw.SECOND  # file systems take the time of the last tick
    path = jsonl(tmp_path / "a.jsonl", [])
    assert before <= birth_time(str(path)) <= time.time_ns() // 1000 + mw.SECOND


def test_monotonic_files_need_no_slack(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"t": 1}, {"t": 5}])
    injector = Files(path, timestamp="t", watermark="monotonic")
    injector.open(follow=False)
    assert injector.slack == 0


def test_a_function_says_the_watermark_explicitly(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"t": 1}, {"t": 5}])
    injector = Files(path, timestamp="t", watermark=lambda path, offset: 40 + offset)
    injector.open(follow=False)
    ((partition, end),) = injector.poll().items()
    assert injector.low_watermark(partition, None) == 40
    assert injector.low_watermark(partition, 9) == 49
    assert injector.low_watermark(partition, end) == mw.MAX_TIME
