"""The page in a real browser: headless Chromium, driven by Selenium."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.watch.server import Server
from tests.servers.browser import chromium, needs_chromium
from tests.spark.sources import Feed
from tests.spark.waiting import eventually
from tests.watch.running import HOSTILE, SPARK_JOB, SPARK_PAGE, operators, pipeline, running, visits

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    with chromium("--window-size=1280,900") as driver:
        yield driver


class Live:
    """A pipeline that runs, its page, and the feed that gives it more."""

    def __init__(self, server: Server, feed: Feed) -> None:
        self.server = server
        self.feed = feed


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    records = visits(200)
    records[20] = mw.Record(value={"user": HOSTILE, "hold": True}, timestamp=2 * mw.SECOND)
    feed = Feed({"only": records}, opened=65)
    store = LmdbStore(tmp_path_factory.mktemp("page") / "store", shards=2)
    with running(pipeline(feed), store) as job:
        eventually(lambda: job.status().records_in == 65)
        server = Server(store)
        yield Live(server, feed)
        server.close()


@pytest.fixture
def page(browser: Any, live: Live) -> Iterator[Any]:
    """The page, loaded, with its first event shown; nothing may be wrong with it in the end."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(live.server.url)
    eventually(lambda: text(browser, "state") == "live")
    yield browser
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def text(browser: Any, element: str) -> str:
    return str(browser.execute_script("return document.getElementById(arguments[0]).textContent", element))


def click(browser: Any, selector: str) -> None:
    browser.execute_script(
        "document.querySelector(arguments[0]).dispatchEvent(new MouseEvent('click', {bubbles: true}))",
        selector,
    )


def search(browser: Any, computation: str, key: str) -> None:
    """As a person does: choose, write, press Enter."""
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("id", "search-computation")).select_by_value(computation)
    field = browser.find_element("id", "search-key")
    field.clear()
    field.send_keys(key + "\n")
    eventually(lambda: text(browser, "key-name") == key if exists(browser, "key-name") else False)


def exists(browser: Any, element: str) -> bool:
    return bool(browser.execute_script("return document.getElementById(arguments[0]) !== null", element))


def test_the_page_shows_the_graph_with_its_figures(page: Any) -> None:
    assert page.title == "visits · millwheel"
    assert text(page, "pipeline") == "visits"
    graph = text(page, "graph")
    for name in ("in", "Visits", "Totals", "seconds", "totals", "Collect", "level 2"):
        assert name in graph
    assert "65 in all" in text(page, "figures")
    assert "Visits" in text(page, "computations")
    assert "visits" in text(page, "user"), "counts of self.count"


def test_boxes_do_not_lie_upon_each_other(page: Any) -> None:
    overlaps = page.execute_script("""
        const boxes = [...document.querySelectorAll("#graph rect")].map((box) => box.getBoundingClientRect());
        return boxes.filter((a, i) => boxes.some((b, j) => j > i && a.left < b.right && b.left < a.right
            && a.top < b.bottom && b.top < a.bottom)).length;
    """)
    assert overlaps == 0


def test_it_follows_the_pipeline_without_a_reload(page: Any, live: Live) -> None:
    before = text(page, "figures")
    live.feed.opened = min(live.feed.opened + 30, 200)
    eventually(lambda: f"{live.feed.opened} in all" in text(page, "figures"))
    assert text(page, "figures") != before


def test_a_click_says_why_the_watermark_is_where_it_is(page: Any) -> None:
    click(page, "[data-computation=Totals]")
    eventually(lambda: "has the hold 'open visit'" in text(page, "why"))
    assert "Totals" in text(page, "detail-name")
    assert "it waits for Visits" in text(page, "why")
    click(page, "#why button")
    eventually(lambda: exists(page, "key-name") and text(page, "key-name") == HOSTILE)
    assert '"seen": 1' in text(page, "key-state")


def test_the_keyboard_opens_a_computation_too(page: Any) -> None:
    node = page.find_element("css selector", "[data-computation=Visits]")
    node.send_keys("\n")
    eventually(lambda: text(page, "detail-name") == "Visits")
    assert page.execute_script("return !document.getElementById('detail').hidden")


def test_a_key_is_found_and_followed(page: Any, live: Live) -> None:
    search(page, "Visits", "regular")
    seen = json.loads(text(page, "key-state"))["seen"]
    assert "watermark" in text(page, "key")
    live.feed.opened = min(live.feed.opened + 6, 200)
    eventually(lambda: json.loads(text(page, "key-state"))["seen"] > seen)
    assert "Changes since you looked" in text(page, "key")


def test_a_key_that_is_not_there_is_said(page: Any) -> None:
    search(page, "Totals", "nobody")
    eventually(lambda: "No row" in text(page, "key"))


def test_markup_in_a_key_is_shown_and_not_run(page: Any) -> None:
    search(page, "Visits", HOSTILE)
    eventually(lambda: exists(page, "key-state"))
    assert page.title == "visits · millwheel"
    assert page.execute_script("return document.querySelectorAll('main script, main img').length") == 0
    assert text(page, "key-name") == HOSTILE


def test_the_policy_stops_what_would_get_in_all_the_same(browser: Any, page: Any) -> None:
    page.execute_script("""
        const script = document.createElement("script");
        script.textContent = "document.title = 'run'";
        document.body.append(script);
        const image = document.createElement("div");
        image.innerHTML = "<img src=x onerror=\\"document.title='run'\\">";
        image.firstChild.addEventListener("error", () => { document.body.dataset.tried = "yes"; });
        document.body.append(image);
    """)
    eventually(lambda: page.execute_script("return document.body.dataset.tried") == "yes")
    refused = eventually_logs(browser, "Content Security Policy", times=2)  # the script, and the handler
    assert refused
    assert page.title == "visits · millwheel"


def eventually_logs(browser: Any, wanted: str, times: int) -> list[str]:
    """The browser's complaints, taken out of its log once there are so many of the wanted ones."""
    found: list[str] = []

    def came() -> bool:
        found.extend(entry["message"] for entry in browser.get_log("browser"))
        return sum(wanted in message for message in found) >= times

    eventually(came)
    return found


def test_intervals_and_epochs_are_drawn(page: Any) -> None:
    cells = page.execute_script("return document.querySelectorAll('#intervals .cell').length")
    assert cells == 4, "two intervals in each of two levels"
    eventually(lambda: page.execute_script("return document.querySelectorAll('#epochs .hit').length") > 0)
    assert "records in" in text(page, "epoch")
    assert "commit" in text(page, "legend")
    link = page.find_element("css selector", "#epoch a")
    assert link.text == f"Spark job {SPARK_JOB}"
    assert link.get_attribute("href") == f"{SPARK_PAGE}/jobs/job/?id={SPARK_JOB}"


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_window(page: Any, width: int) -> None:
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    try:
        click(page, "[data-computation=Visits]")
        eventually(lambda: page.execute_script("return innerWidth") == width)
        eventually(
            lambda: page.execute_script(
                "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            )
        )
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_dark_is_dark_and_can_be_changed(page: Any) -> None:
    def ground() -> int:
        color = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(",")[:3])

    media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    light = ground()
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        assert ground() < 150 < 600 < light
        click(page, "#theme")
        assert ground() == light
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


class Passes(mw.Computation):
    """Passes on what it gets."""

    def process_record(self, record: mw.Record) -> None:
        self.produce(f"s{self.number}", record.value)

    def __init__(self, number: int) -> None:
        self.number = number


def wide(feed: mw.Injector, count: int) -> mw.Pipeline:
    """Computations in a tree: each is read by three others."""
    p = mw.Pipeline("wide")
    p.inject("in", feed)
    for number in range(count):
        reads = "in" if number < 3 else f"s{number // 3 - 1}"
        p.add(
            Passes(number),
            name=f"Stage number {number}",
            inputs={reads: mw.by("user")},
            outputs=[f"s{number}"],
        )
    return p


@pytest.fixture(scope="module", params=[20, 100])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The page of a pipeline with many computations, whose records are years old."""
    records = visits(20, start=1_435_751_430 * mw.SECOND)
    store = LmdbStore(tmp_path_factory.mktemp("large") / "store", shards=2)
    with running(wide(Feed({"only": records}, opened=20), request.param), store) as job:
        eventually(lambda: job.status().records_in == 20)
        server = Server(store)
        yield server
        server.close()


OVERFLOWING = """
    return [...document.querySelectorAll("#graph g.node, #graph g.injector")].flatMap((group) => {
        const box = group.querySelector("rect.box").getBoundingClientRect();
        return [...group.querySelectorAll("text")].filter((text) => {
            const own = text.getBoundingClientRect();
            return text.textContent && (own.right > box.right || own.left < box.left);
        }).map((text) => text.textContent);
    });
"""


def see(browser: Any, server: Server, width: int) -> None:
    browser.set_window_size(width, 900)
    browser.get("about:blank")
    browser.get(server.url)
    eventually(lambda: text(browser, "state") == "live")
    eventually(lambda: "2015" in text(browser, "computations"))


@pytest.mark.parametrize("width", [1280, 390])
def test_many_computations_are_a_graph_that_can_be_read_or_a_list(
    browser: Any, large: Server, width: int
) -> None:
    see(browser, large, width)
    shown = "return [document.getElementById('graph').hidden, document.getElementById('graph-list').hidden]"
    as_graph, as_list = browser.execute_script(shown)
    assert as_graph != as_list
    scroll = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert browser.execute_script(scroll)
    if as_graph:  # hidden: the list has every one of them, and leads to the graph
        entries = browser.execute_script("return document.querySelectorAll('#graph-list .entry').length")
        assert entries == browser.execute_script("return Object.keys(graph.nodes).length")
        click(browser, "#graph-as")
        assert browser.execute_script(shown) == [False, True]
    assert browser.execute_script(OVERFLOWING) == []


def test_a_graph_is_zoomed_and_a_computation_found(browser: Any, large: Server) -> None:
    see(browser, large, 1280)
    if browser.execute_script("return document.getElementById('graph').hidden"):
        click(browser, "#graph-as")
    size = "return document.querySelector('#graph svg').getBoundingClientRect().width"
    click(browser, "#graph-fit")
    fitted = browser.execute_script(size)
    click(browser, "#graph-in")
    assert browser.execute_script(size) > fitted
    click(browser, "#graph-out")
    assert abs(browser.execute_script(size) - fitted) < 1
    browser.execute_script("zoom(1); document.getElementById('graph').scrollTop = 0")
    browser.find_element("id", "graph-search").send_keys("number 19")
    dim = "return document.querySelectorAll('#graph .node:not(.dim)').length"
    eventually(lambda: browser.execute_script(dim) == 1)
    assert text(browser, "graph-found").startswith("1 of ")
    seen = browser.execute_script("""
        const box = document.querySelector("#graph .node:not(.dim) rect.box").getBoundingClientRect();
        const view = document.getElementById("graph").getBoundingClientRect();
        const across = box.left >= view.left && box.right <= view.right;
        return across && box.top < view.bottom && box.bottom > view.top;
    """)
    assert seen
    click(browser, "#graph-as")
    eventually(
        lambda: (
            browser.execute_script(
                "return document.querySelectorAll('#graph-list .entry:not([hidden])').length"
            )
            == 1
        )
    )


def test_an_empty_pipeline_says_why_nothing_happens(browser: Any, tmp_path: Path) -> None:
    injector = mw.injectors.Files(tmp_path / "logs" / "*.jsonl", timestamp="time")
    store = LmdbStore(tmp_path / "store", shards=2)
    with running(pipeline(injector), store):
        server = Server(store)
        browser.set_window_size(1280, 900)
        browser.get(server.url)
        eventually(lambda: "logs/*.jsonl" in text(browser, "waiting"))
        assert "No record has come yet" in text(browser, "waiting")
        server.close()


def test_a_wrong_token_is_refused_and_the_right_one_is_remembered(browser: Any, tmp_path: Path) -> None:
    from tests.watch.running import stopped

    store = stopped(tmp_path / "store")
    server = Server(store, "0.0.0.0:0")
    try:
        place = f"http://127.0.0.1:{server.port}/"
        browser.get(f"{place}?token=wrong")
        assert "the token is missing or wrong" in browser.page_source
        browser.get(place + server.url.rpartition("/")[2])
        eventually(lambda: exists(browser, "state") and text(browser, "state") == "stopped")
        assert browser.current_url == place, "the token is not in the address any more"
        browser.get(place)
        eventually(lambda: exists(browser, "pipeline") and text(browser, "pipeline") == "visits")
    finally:
        browser.get("about:blank")
        server.close()
        store.close()
        browser.get_log("browser")


def test_a_pipeline_that_ends_is_seen_to_have_ended(browser: Any, tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store", shards=2)
    with running(pipeline(Feed({"only": visits(10)}, opened=10)), store) as job:
        server = Server(store)
        job.driver.observer.before_close = server.close  # type: ignore[union-attr, attr-defined]
        browser.get(server.url)
        eventually(lambda: exists(browser, "state") and text(browser, "state") == "live")
        threading.Thread(target=job.stop).start()
        eventually(lambda: text(browser, "state") == "no connection")
    browser.get("about:blank")
    browser.get_log("browser")


def test_operators_are_on_the_page_with_the_keys_of_windows_kept_as_columns(
    browser: Any, tmp_path: Path
) -> None:
    store = LmdbStore(tmp_path / "store", shards=2)
    with running(operators(Feed({"only": visits(40)}, opened=35)), store) as job:
        eventually(lambda: job.status().records_in == 35)
        server = Server(store)
        try:
            browser.get("about:blank")
            browser.get_log("browser")
            browser.get(server.url)
            eventually(lambda: text(browser, "state") == "live")
            graph = text(browser, "graph")
            for name in ("in.filter", "counts", "counts 2", "best", "Collect"):
                assert name in graph
            assert "read by nobody" not in graph, "in and counts are read by operators"
            search(browser, "counts", "regular")
            eventually(lambda: exists(browser, "key-state"))
            assert json.loads(text(browser, "key-state")) == {"3000000": [2]}
            click(browser, "[data-computation=counts]")
            eventually(lambda: "kept as columns" in text(browser, "why"))
            assert [entry["message"] for entry in browser.get_log("browser")] == []
        finally:
            server.close()
