"""Makes the pictures of the page in docs/pictures: ``python scripts/page_pictures.py``.

A pipeline runs in this process for a minute, and a headless Chromium looks at its page. Needs chromium
and chromium-driver, selenium and Pillow.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver

import millwheel as mw
from millwheel.job import Job
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.model.graph import build
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.watch.history import Recorder
from millwheel.watch.server import Server
from millwheel.worker.step import Worker

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
SLOTS = 16
SECONDS = 75  # of history before the pictures are taken


def now() -> int:
    """The time of day."""
    return time.time_ns() // 1000


class Windower(mw.Computation):
    """Counts a query's records per second."""

    def process_record(self, record: mw.Record) -> None:
        bucket = record.timestamp // mw.SECOND
        self.count("queries")
        self.state[bucket] = self.state.get(bucket, 0) + 1
        self.set_timer(str(bucket), (bucket + 1) * mw.SECOND)

    def process_timer(self, timer: mw.Timer) -> None:
        count = self.state.pop(int(timer.tag))
        self.produce("windows", {"query": self.key, "count": count}, timestamp=timer.timestamp - 1)


class Spikes(mw.Computation):
    """A running mean for each query."""

    def process_record(self, record: mw.Record) -> None:
        mean = self.state.get("mean", 0.0)
        if record.value["count"] > 4 + 3 * mean:
            self.produce("spikes", {"query": self.key, "count": record.value["count"]})
        self.state["mean"] = mean + (record.value["count"] - mean) / 20


class ClickJoin(mw.Computation):
    """Joins queries' windows with clicks; an open join holds the watermark."""

    def process_record(self, record: mw.Record) -> None:
        if record.stream == "clicks":
            self.state["clicks"] = self.state.get("clicks", 0) + 1
            self.release("open join")
            self.produce("joined", {"query": self.key})
        elif self.key.endswith("7"):
            self.hold(record.timestamp, "open join")


def pipeline() -> mw.Pipeline:
    """Two injectors, three computations in two levels."""
    start = now()

    def query(number: int) -> mw.Record:
        rng = random.Random(number)
        name = "cat videos" if rng.random() < 0.2 else f"query {int(3000 ** rng.random())}"
        busy = 1 + (number // 9_000) % 2
        moment = start + number * 1_250 - rng.randrange(int(1.9e6) + busy * 200_000)
        return mw.Record(value={"query": name}, timestamp=moment, id=number)

    def click(number: int) -> mw.Record:
        return mw.Record(value={"query": f"query {number % 90}"}, timestamp=start + number * 25_000)

    p = mw.Pipeline("zeitgeist")
    p.inject("queries", mw.injectors.Generator(query, rate=800, slack=2 * mw.SECOND))
    p.inject("clicks", mw.injectors.Generator(click, rate=40))
    p.add(Windower(), inputs={"queries": mw.by("query")}, outputs=["windows"], late="drop")
    p.add(Spikes(), inputs={"windows": mw.by_key}, outputs=["spikes"])
    p.add(
        ClickJoin(),
        inputs={"windows": lambda record: record.value["query"], "clicks": mw.by("query")},
        outputs=["joined"],
    )
    p.sink("spikes", mw.sinks.Collect())
    p.sink("joined", mw.sinks.Collect())
    return p


def browser() -> Any:
    """A headless Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    return webdriver.Chrome(service=webdriver.ChromeService(shutil.which("chromedriver")), options=options)


def picture(name: str, url: str, *, width: int, height: int | None, dark: bool, key: str | None) -> None:
    """One picture of the page: the whole of it, or as much as fits into a height."""
    driver = browser()
    wait = threading.Event().wait
    try:
        metrics = {"width": width, "height": height or 900, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        driver.get(url)
        wait(3)
        if key is not None:
            driver.execute_script("choose('ClickJoin'); find('ClickJoin', arguments[0]);", key)
            wait(5)
        if height is None:
            metrics["height"] = driver.execute_script("return document.documentElement.scrollHeight")
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
        wait(1.5)
        driver.save_screenshot(str(PICTURES / f"{name}.png"))
    finally:
        driver.quit()
    path = PICTURES / f"{name}.png"
    Image.open(path).convert("RGB").save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1e3:,.0f} kB")


def main() -> int:
    """Runs the pipeline and takes the pictures."""
    graph = build(pipeline())
    store = LmdbStore(tempfile.mkdtemp(), shards=SLOTS, sync=False)
    driver = Driver(graph, store, slots=SLOTS, clock=now, owner="process 4711 on mill-3", follow=True)
    driver.observer = recorder = Recorder(driver)
    executor = LocalExecutor(Worker(graph, driver.numbers, store))
    with Job(driver, executor, until_exhausted=False, on_close=lambda: None) as job:
        server = Server(store)
        recorder.before_close = server.close
        job.start()
        job.wait(SECONDS)
        picture("page", server.url, width=1180, height=None, dark=False, key="query 7")
        picture("page-dark", server.url, width=1180, height=760, dark=True, key=None)
        picture("page-phone", server.url, width=390, height=1500, dark=False, key=None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
