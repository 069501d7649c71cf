"""How a job's thread rests: a call is never missed, and a pipeline of injectors that call polls seldom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import millwheel as mw
from millwheel import waking
from millwheel.job import Job
from millwheel.master.driver import Driver
from millwheel.master.ending import Ending
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.memory import MemoryStore
from millwheel.waking import Waker
from millwheel.worker.step import Worker
from tests.spark.waiting import eventually


class Calls(mw.Injector):
    """An injector that calls, with whatever it is given."""

    bounded = False

    def __init__(self, *, calls: bool = True) -> None:
        self.calls = calls
        self.records = 0
        self.polls = 0
        self.wake: Callable[[], None] = lambda: None

    def notify(self, wake: Callable[[], None]) -> bool:
        self.wake = wake
        return self.calls

    def poll(self) -> Mapping[str, Any]:
        self.polls += 1
        return {"all": self.records}

    def read(self, partition: str, start: Any, end: Any) -> list[mw.Record]:
        return [mw.Record(value=n, timestamp=n) for n in range(start or 0, end)]

    def low_watermark(self, partition: str, offset: Any) -> int:
        return mw.MIN_TIME


class Nothing(mw.Computation):
    def process_record(self, record: mw.Record) -> None:
        pass


def _start(injector: mw.Injector) -> Job:
    p = mw.Pipeline("waking")
    p.inject("in", injector)
    p.add(Nothing(), inputs={"in": lambda record: "k"})
    graph = build(p)
    store = MemoryStore(1)
    driver = Driver(
        graph,
        store,
        Options(slots=1),
        clock=lambda: time.time_ns() // 1000,
        owner="a test",
        ending=Ending.NEVER,
    )
    executor = LocalExecutor(Worker(graph, driver.numbers, store))
    job = Job(driver, executor, until_exhausted=False, on_close=lambda: None)
    job.start()
    return job


@pytest.fixture
def never_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "SELDOM", 600.0)


def test_a_record_is_taken_when_its_injector_calls(never_by_itself: None) -> None:
    injector = Calls()
    with _start(injector) as job:
        for number in range(1, 20):
            injector.records = number
            injector.wake()
            eventually(lambda: job.status().records_in == number)  # noqa: B023


def test_stop_rescale_and_drain_do_not_wait_for_a_poll(never_by_itself: None) -> None:
    with _start(Calls()) as job:
        eventually(lambda: job.waker.all_notify)
        job.rescale(2)
        job.stop(drain=True)


def test_an_injector_that_does_not_call_is_polled(never_by_itself: None) -> None:
    injector = Calls(calls=False)
    with _start(injector) as job:
        injector.records = 5
        eventually(lambda: job.status().records_in == 5)


def test_a_call_between_poll_and_rest_is_not_missed() -> None:
    waker = Waker()
    waker.follow([Calls()])
    waker.begin()
    waker.wake()
    waker.rest(600.0)


def test_calls_in_vain_are_not_followed_at_once() -> None:
    injector = Calls()
    with _start(injector):
        end = time.monotonic() + 0.5
        called = 0
        while time.monotonic() < end:
            injector.wake()
            called += 1
        assert injector.polls <= 0.5 / waking.SHORTEST + 5
        assert called > injector.polls


def _idle_share(folder: Path) -> float:
    """CPU time of this process beside a pipeline that waits for files, over the time that passes."""
    with _start(mw.injectors.Files(folder / "*.jsonl", timestamp="t", follow=True)) as job:
        eventually(lambda: job.status().records_in == 100)
        began, cpu = time.monotonic(), time.process_time()
        threading.Event().wait(3.0)
        return (time.process_time() - cpu) / (time.monotonic() - began)


def test_an_idle_pipeline_costs_less_than_a_fiftieth_of_a_core(tmp_path: Path) -> None:
    """In a process of its own: threads that other tests have left behind are not the pipeline's."""
    for number in range(100):
        (tmp_path / f"{number}.jsonl").write_text('{"t": 1}\n')
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        assert processes.submit(_idle_share, tmp_path).result() < 0.02


def test_http_calls_when_records_are_durable(never_by_itself: None, tmp_path: Path) -> None:
    injector = mw.injectors.Http(0, log=tmp_path / "log")
    with _start(injector) as job:
        eventually(lambda: job.waker.all_notify)
        for number in range(1, 5):
            url = f"http://127.0.0.1:{injector.port}/"
            request = Request(url, b'{"n": 1}', {"Content-Type": "application/json"})
            urlopen(request, timeout=60).close()
            eventually(lambda: job.status().records_in == number)  # noqa: B023
