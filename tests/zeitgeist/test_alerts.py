"""Anomalies told elsewhere: a webhook gets each, one that is away does not stop detection."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.apps.zeitgeist.alerts import open_alert

ANOMALY = mw.Record(key="home", value={"key": "home", "kind": "dip"}, timestamp=5)


class Hook(HTTPServer):
    """A webhook that remembers what was posted to it; ``refuse``: how many times it answers 500 first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.posted: list[tuple[str, dict[str, str]]] = []
        self.refuse = 0


class Answer(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.refuse:
            self.server.refuse -= 1
            self.send_response(500)
        else:
            self.server.posted.append((self.headers["Idempotency-Key"], body))
            self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_the_anomaly_under_a_name_that_a_retry_repeats(hook: Hook) -> None:
    hook.refuse = 1
    sink = open_alert(f"http://127.0.0.1:{hook.server_port}/alerts")
    sink.write(7, 1, [ANOMALY])
    sink.write(7, 1, [ANOMALY])
    assert hook.posted == [("7-1-0", ANOMALY.value)] * 2


def test_a_webhook_that_refuses_is_logged_and_detection_goes_on(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    hook.refuse = 99
    with caplog.at_level(logging.WARNING, "millwheel.zeitgeist"):
        open_alert(f"http://127.0.0.1:{hook.server_port}/").write(1, 0, [ANOMALY])
    assert "did not take an anomaly of 'home' in 3 attempts" in caplog.text


def test_a_command_gets_the_anomaly_on_its_standard_input(tmp_path: Path) -> None:
    open_alert(f"command:tee '{tmp_path / 'got it'}'").write(1, 0, [ANOMALY])
    assert json.loads((tmp_path / "got it").read_text()) == ANOMALY.value


def test_a_command_that_is_not_there_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "millwheel.zeitgeist"):
        open_alert("command:no-such-command-here").write(1, 0, [ANOMALY])
    assert "'no-such-command-here' failed for an anomaly of 'home'" in caplog.text


@pytest.mark.parametrize("target", ["kafka://broker:9092", "kafka:///topic", "command:", "smtp://ops", ""])
def test_a_target_that_is_none_is_refused(target: str) -> None:
    with pytest.raises(mw.PipelineError, match="an alert goes to kafka://HOST:PORT/TOPIC"):
        open_alert(target)
