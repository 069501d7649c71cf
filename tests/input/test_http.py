"""Records by HTTP: 200 means durable, whatever is killed then; everything else says what is wrong."""

from __future__ import annotations

import gc
import http.client
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.injectors.disk_log import Log, LogFull, pieces
from millwheel.master.ending import Ending
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.servers.disk import full_disk
from tests.store.driving import take

Http = mw.injectors.Http


def _post(
    port: int, body: Any, *, token: str | None = None, method: str = "POST", **more: str
) -> tuple[int, Any]:
    """The status and what came back; a body that is no bytes is sent as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {name.replace("_", "-"): text for name, text in more.items()}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, "/", body if isinstance(body, bytes) else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.fixture
def http_injector(tmp_path: Path) -> Iterator[Any]:
    """Opens an injector as a driver does, and closes it at the end."""
    opened: list[mw.injectors.Http] = []

    def open_one(**options: Any) -> mw.injectors.Http:
        injector = Http(0, log=tmp_path / "log", **{"timestamp": "t", **options})
        injector.open(follow=True)
        injector.begin("a store", "in")
        opened.append(injector)
        return injector

    yield open_one
    for injector in opened:
        injector.close()


def _read(injector: mw.injectors.Http) -> list[mw.Record]:
    ((partition, end),) = injector.poll().items()
    return list(injector.read(partition, None, end)) if end else []


def test_one_record_and_many_are_taken(http_injector: Any) -> None:
    injector = http_injector(id="id")
    assert _post(injector.port, {"t": 1, "id": "a", "v": "é"}) == (200, {"accepted": 1})
    assert _post(injector.port, [{"t": 2, "id": 2}, {"t": 3, "id": 3}]) == (200, {"accepted": 2})
    assert _post(injector.port, []) == (200, {"accepted": 0})
    records = _read(injector)
    assert [(r.timestamp, r.id) for r in records] == [(1, "a"), (2, 2), (3, 3)]
    assert records[0].value == {"t": 1, "id": "a", "v": "é"}


def test_without_a_timestamp_it_is_the_time_of_arrival(http_injector: Any) -> None:
    injector = http_injector(timestamp=None, unit="s")
    assert _post(injector.port, ["any", 1, None, {"x": 1}])[0] == 200
    records = _read(injector)
    assert [record.value for record in records] == ["any", 1, None, {"x": 1}]
    assert all(record.timestamp > 1_700_000_000 * mw.SECOND for record in records)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{oops", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"", "the body is not JSON"),
        ([{"t": 1, "id": 1}, 7], "record 1: it is a int, not an object"),
        ([{"t": 1, "id": 1}, {"id": 1}], "record 1: it has no timestamp field 't'"),
        ({"t": "soon", "id": 1}, "record 0: the timestamp field 't' is 'soon', which is not a number"),
        ({"t": 1e300, "id": 1}, "out of the range of 64 bits"),
        ({"t": 1}, "record 0: it has no ID field 'id'"),
        ({"t": 1, "id": None}, "an ID is a text or an integer"),
    ],
    ids=lambda part: repr(part)[:30],
)
def test_a_bad_record_is_refused_with_the_reason_and_nothing_is_taken(
    http_injector: Any, body: Any, reason: str
) -> None:
    injector = http_injector(id="id")
    status, answer = _post(injector.port, body)
    assert status == 400
    assert reason in answer["error"]
    assert _read(injector) == []


def test_too_much_is_refused(http_injector: Any) -> None:
    injector = http_injector(max_body=100, max_pending=150)
    assert _post(injector.port, {"t": 1, "v": "x" * 200})[0] == 413
    body = {"t": 1, "v": "x" * 60}
    assert _post(injector.port, body)[0] == 200
    status, answer = _post(injector.port, [body, body][:1])
    assert status == 200
    status, answer = _post(injector.port, body)
    assert status == 429
    assert "are not injected yet" in answer["error"]
    injector.commit(injector.poll())
    assert _post(injector.port, body)[0] == 200


@pytest.mark.parametrize("depth", [250, 300, 1_000, 1_100, 200_000])
@pytest.mark.parametrize("timestamp", ["t", None])
def test_json_of_many_levels_gets_an_answer(http_injector: Any, depth: int, timestamp: str | None) -> None:
    injector = http_injector(timestamp=timestamp)
    status, answer = _post(injector.port, b'{"t": 1, "v": ' + b"[" * depth + b"]" * depth + b"}")
    assert status == (200 if depth == 250 else 400), answer
    assert _post(injector.port, {"t": 2})[0] == 200
    assert len(_read(injector)) == (2 if depth == 250 else 1)


@pytest.mark.parametrize(
    ("headers", "status", "reason"),
    [
        ({"Host": "evil.example"}, 403, "does not answer to the name 'evil.example'"),
        ({"Host": "127.0.0.1.evil.example:8080"}, 403, "does not answer to the name"),
        ({"Host": ""}, 403, "does not answer to the name"),
        ({"Origin": "https://evil.example"}, 403, "from web pages"),
        ({"Origin": "null"}, 403, "from web pages"),
        ({"Origin": "http://localhost:3000"}, 403, "from web pages"),
        ({"Sec_Fetch_Site": "cross-site"}, 403, "from web pages"),
        ({"Content_Type": "text/plain"}, 415, "Content-Type: application/json"),
        ({"Content_Type": "application/x-www-form-urlencoded", "Origin": "null"}, 403, "from web pages"),
        ({"Content_Type": "multipart/form-data; boundary=x"}, 415, "multipart/form-data"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_a_web_page_cannot_send(http_injector: Any, headers: Any, status: int, reason: str) -> None:
    injector = http_injector()
    found, answer = _post(injector.port, {"t": 1}, **headers)
    assert found == status
    assert reason in answer["error"]
    assert _read(injector) == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content_Type": "application/json"},
        {"Content_Type": "application/json; charset=utf-8"},
        {"Content_Type": "application/cloudevents+json"},
        {"Content_Type": "application/x-www-form-urlencoded"},  # as curl -d and urllib have it
        {"Host": "localhost:1"},
        {"Host": "[::1]:1"},
    ],
    ids=str,
)
def test_a_program_of_this_machine_can(http_injector: Any, headers: Any) -> None:
    assert _post(http_injector().port, {"t": 1}, **headers)[0] == 200


def test_with_the_token_callers_of_any_kind_can(http_injector: Any) -> None:
    injector = http_injector(token="a&b+c;d#e%f é")
    kind = {"Host": "api.example.org", "Content_Type": "text/plain"}
    sent = "a&b+c;d#e%f é".encode().decode("latin-1")
    assert _post(injector.port, {"t": 1}, **kind)[0] == 401
    assert _post(injector.port, {"t": 1}, token=sent, **kind)[0] == 200


@pytest.mark.parametrize("length", ["-1", "+5", "1_0", "٣", "5, 5", "x"])
def test_a_length_that_is_no_number_is_refused(http_injector: Any, length: str) -> None:
    injector = http_injector()
    sent = length.encode().decode("latin-1")
    assert _post(injector.port, b"", Content_Length=sent)[0] == 400


def test_a_body_that_takes_too_long_is_refused(http_injector: Any) -> None:
    injector = http_injector(timeout=0.2)
    status, answer = _post(injector.port, b"", Content_Length="5")
    assert (status, answer["error"]) == (408, "the body took more than 0.2 seconds")


def test_other_methods_are_refused(http_injector: Any) -> None:
    injector = http_injector()
    assert _post(injector.port, b"", method="GET")[0] == 405


def test_a_token_is_asked_for(http_injector: Any) -> None:
    injector = http_injector(token="s3cret")
    assert _post(injector.port, {"t": 1})[0] == 401
    assert _post(injector.port, {"t": 1}, token="guess")[0] == 401
    assert _post(injector.port, {"t": 1}, token="s3cret")[0] == 200
    assert len(_read(injector)) == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.1", "::", "example.org"])
def test_whoever_listens_wider_needs_a_token(host: str) -> None:
    with pytest.raises(mw.InputError, match="needs a token"):
        Http(8080, host=host)
    Http(8080, host=host, token="s3cret")


def test_a_port_that_is_taken_is_named(http_injector: Any, tmp_path: Path) -> None:
    taken = http_injector().port
    other = Http(taken, log=tmp_path / "other")
    with pytest.raises(mw.InputError, match=f"Http.{taken}.*it cannot listen there"):
        other.begin("a store", "in")


def test_a_restart_goes_on_and_a_half_written_line_is_dropped(http_injector: Any, tmp_path: Path) -> None:
    first = http_injector()
    _post(first.port, [{"t": 1}, {"t": 2}])
    first.close()
    (path,) = (tmp_path / "log").iterdir()
    with open(path, "ab") as file:
        file.write(b'{"t": 3, "never": "acknowl')
    second = http_injector()
    _post(second.port, {"t": 4})
    assert [record.timestamp for record in _read(second)] == [1, 2, 4]


def test_a_log_that_was_lost_is_an_error_and_nothing_is_skipped(http_injector: Any) -> None:
    injector = http_injector()
    _post(injector.port, {"t": 1})
    with pytest.raises(mw.InputError, match="was lost, or is another one's"):
        injector.commit({"log": 10_000})


def test_a_pipeline_takes_what_comes(tmp_path: Path) -> None:
    injector = Http(0, timestamp="t", id="id", log=tmp_path / "log")
    p = mw.Pipeline("http")
    p.inject("in", injector)
    p.add(Echo(), name="C", inputs={"in": mw.by("k")}, outputs=["out"])
    sink = mw.sinks.Collect()
    p.sink("out", sink)
    driver, executor = take(p, MemoryStore(), ending=Ending.NEVER)
    for number in range(5):
        for _ in range(2):  # the answer got lost, say
            _post(injector.port, {"t": number, "id": number, "k": "k"})
        while (plan := driver.next_plan()) is not None:
            driver.run(plan, executor)
    driver.close()
    assert [record.timestamp for record in sink.records] == list(range(5))


def test_many_callers_at_once_lose_nothing(http_injector: Any) -> None:
    injector = http_injector()

    def call(caller: int) -> None:
        for number in range(20):
            assert _post(injector.port, {"t": caller * 100 + number + 1})[0] == 200

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = sorted(caller * 100 + number + 1 for caller in range(8) for number in range(20))
    assert sorted(record.timestamp for record in _read(injector)) == expected


class TestLog:
    def test_files_turn_are_read_across_and_are_removed(self, tmp_path: Path) -> None:
        log = Log(tmp_path, 10_000, file_size=50)
        for number in range(20):
            log.append(b"%019d\n" % number)
        assert log.durable == 400
        found = b""
        for path, begin, first, last in pieces(tmp_path, 30, 390):
            with open(path, "rb") as file:
                file.seek(first - begin)
                found += file.read(last - first)
        assert found == b"".join(b"%019d\n" % number for number in range(20))[30:390]
        before = len(list(tmp_path.iterdir()))
        log.release(200)
        assert len(list(tmp_path.iterdir())) < before
        log.close()
        again = Log(tmp_path, 10_000, file_size=50)
        assert again.durable == 400
        again.close()

    def test_it_takes_no_more_than_its_limit(self, tmp_path: Path) -> None:
        log = Log(tmp_path, 100)
        log.append(b"x" * 89 + b"\n")
        with pytest.raises(LogFull):
            log.append(b"x" * 20 + b"\n")
        log.release(90)
        log.append(b"x" * 20 + b"\n")
        log.close()

    def test_a_disk_that_is_full_takes_nothing_and_loses_nothing_later(self, tmp_path: Path) -> None:
        log = Log(tmp_path, 1 << 20)
        log.append(b"whole\n")
        with full_disk(1_000), pytest.raises(OSError, match="too large"):
            log.append(b"not whole\n" * 200)
        for number in range(100):
            log.append(b"again %d\n" % number)
        log.close()
        gc.collect()  # whatever still holds a buffer writes it now
        (path,) = tmp_path.iterdir()
        expected = b"whole\n" + b"".join(b"again %d\n" % number for number in range(100))
        assert path.read_bytes() == expected
        again = Log(tmp_path, 1 << 20)
        assert again.durable == len(expected)
        again.close()

    def test_a_part_that_cannot_be_truncated_yet_is_truncated_before_the_next_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = Log(tmp_path, 1 << 20)
        log.append(b"whole\n")
        with monkeypatch.context() as patch:
            patch.setattr("millwheel.injectors.disk_log.os.ftruncate", _fail)
            with full_disk(1_000), pytest.raises(OSError, match="too large"):
                log.append(b"not whole\n" * 200)
            with pytest.raises(OSError, match="planted"):
                log.append(b"again\n")
        log.append(b"again\n")
        log.close()
        (path,) = tmp_path.iterdir()
        assert path.read_bytes() == b"whole\nagain\n"

    def test_a_sync_that_fails_takes_back_all_that_waited_for_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = Log(tmp_path, 1 << 20)
        log.append(b"whole\n")
        with monkeypatch.context() as patch:
            patch.setattr("millwheel.injectors.disk_log.os.fsync", _fail)
            with pytest.raises(OSError, match="planted"):
                log.append(b"never durable\n")
        assert log.durable == 6
        log.append(b"again\n")
        log.close()
        (path,) = tmp_path.iterdir()
        assert path.read_bytes() == b"whole\nagain\n"

    def test_nobody_else_can_read_it(self, tmp_path: Path) -> None:
        folder = tmp_path / "new"
        old = os.umask(0o022)
        try:
            log = Log(folder, 10_000, file_size=5)
            log.append(b"first\n")
            log.append(b"second\n")
            log.close()
        finally:
            os.umask(old)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
        for path in folder.iterdir():
            path.chmod(0o644)  # as a former version made them
        Log(folder, 10_000).close()
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def _fail(*_: Any) -> None:
    raise OSError(5, "planted")


def test_what_is_answered_with_200_after_a_full_disk_is_there(http_injector: Any) -> None:
    injector = http_injector(max_body=1 << 20)
    assert _post(injector.port, {"t": 1})[0] == 200
    with full_disk(2_000):
        status, answer = _post(injector.port, [{"t": 2, "v": "x" * 50}] * 50)
    assert status == 503
    assert "the log cannot be written" in answer["error"]
    for number in range(3, 200):
        assert _post(injector.port, {"t": number})[0] == 200
    gc.collect()
    assert [record.timestamp for record in _read(injector)] == [1, *range(3, 200)]


SERVER = """
import sys, time
import millwheel as mw
injector = mw.injectors.Http(0, timestamp="t", log=sys.argv[1])
injector.open(follow=True)
injector.begin("a store", "in")
print(injector.port, flush=True)
time.sleep(600)
"""


def test_what_was_answered_with_200_outlives_a_kill(tmp_path: Path, http_injector: Any) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    accepted: list[int] = []
    enough = threading.Event()

    def call() -> None:
        for number in range(1, 100_000):
            try:
                status, _ = _post(port, {"t": number})
            except (OSError, http.client.HTTPException):
                break
            assert status == 200
            accepted.append(number)
            if number >= 30:
                enough.set()

    caller = threading.Thread(target=call)
    caller.start()
    enough.wait(60)
    os.kill(process.pid, 9)
    process.wait()
    caller.join()
    found = [record.timestamp for record in _read(http_injector())]
    assert found[: len(accepted)] == accepted
    assert len(found) <= len(accepted) + 1
