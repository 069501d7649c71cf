"""No page in a browser of this machine gets a record into the HTTP injector, whatever it tries."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from tests.servers.browser import chromium, needs_chromium

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

pytestmark = needs_chromium

_EVIL = "evil.example"  # which the browser finds at this machine, as after DNS rebinding


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium(f"--host-resolver-rules=MAP {_EVIL} 127.0.0.1") as driver:
        yield driver


@pytest.fixture
def injector(tmp_path: Path) -> Iterator[mw.injectors.Http]:
    found = mw.injectors.Http(0, timestamp="t", log=tmp_path / "log")
    found.open(follow=True)
    found.begin("a store", "in")
    yield found
    found.close()


class _Page(BaseHTTPRequestHandler):
    """An empty page of another server."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """The port of another server on this machine, with a page."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


_FETCH = """
    const [url, options, done] = arguments;
    const failed = error => done([String(error), -1]);
    fetch(url, options).then(answer => done([answer.type, answer.status]), failed);
"""

_FORM = """
    const [url, kind, done] = arguments;
    const frame = document.createElement("iframe");
    frame.name = kind;
    document.body.append(frame);
    const form = document.createElement("form");
    Object.assign(form, {method: "POST", action: url, target: kind, enctype: kind});
    const field = document.createElement("input");
    Object.assign(field, {name: '{"t": 1, "x', value: '": 2}'});
    form.append(field);
    document.body.append(form);
    frame.onload = () => done(true);
    form.submit();
"""

_BEACON = """
    const [url, record, done] = arguments;
    const answered = list => list.getEntries().some(entry => entry.initiatorType == "beacon") && done(true);
    new PerformanceObserver(answered).observe({type: "resource"});
    navigator.sendBeacon(url, record) || done(false);
"""

_RECORD = '{"t": 1}'


def _taken(injector: mw.injectors.Http) -> list[Any]:
    ((partition, end),) = injector.poll().items()
    return [record.value for record in injector.read(partition, None, end)] if end else []


def _tries(browser: Any, url: str) -> dict[str, Any]:
    """What a page may do without being asked, and what it may not: the answer to each."""
    answers: dict[str, Any] = {}
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json", None):
        for mode in ("no-cors", "cors", "same-origin"):
            options: dict[str, Any] = {"method": "POST", "mode": mode, "body": _RECORD}
            if kind is not None:
                options["headers"] = {"Content-Type": kind}
            answers[f"{mode} {kind}"] = browser.execute_async_script(_FETCH, url, options)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answers[f"form {kind}"] = browser.execute_async_script(_FORM, url, kind)
    answers["beacon"] = browser.execute_async_script(_BEACON, url, _RECORD)
    return answers


def test_a_page_of_another_server_gets_no_record_in(
    browser: Any, injector: mw.injectors.Http, elsewhere: int
) -> None:
    browser.get(f"http://127.0.0.1:{elsewhere}/")
    answers = _tries(browser, f"http://127.0.0.1:{injector.port}/")
    assert _taken(injector) == [], answers


@pytest.mark.parametrize("host", [_EVIL, "127.0.0.1"], ids=["a name that was bound anew", "its own address"])
def test_a_page_of_the_injectors_own_origin_gets_no_record_in(
    host: str, browser: Any, injector: mw.injectors.Http
) -> None:
    url = f"http://{host}:{injector.port}/"
    browser.get(url)  # refused; but what the page then asks for has this origin
    answers = _tries(browser, url)
    assert _taken(injector) == [], answers
    assert answers["same-origin application/json"] == ["basic", 403]


def test_a_program_of_this_machine_does(injector: mw.injectors.Http) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", injector.port, timeout=30)
    connection.request("POST", "/", _RECORD, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()
    assert _taken(injector) == [{"t": 1}]
