"""The page's server: what it answers, whom it refuses, and that it ends with the pipeline."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

import millwheel as mw
from millwheel.model.json_form import plain
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.watch.server import Server, parse_address
from millwheel.watch.view import PartitionView
from tests.spark.sources import Feed
from tests.spark.waiting import eventually
from tests.watch.running import HOSTILE, pipeline, running, stopped, visits


class Answer:
    """A response, read to its end."""

    def __init__(self, server: Server, path: str, method: str = "GET", **headers: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request(
            method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        response = connection.getresponse()
        self.status, self.headers, self.body = response.status, response.headers, response.read()
        connection.close()

    @property
    def json(self) -> Any:
        """The body as a value."""
        return json.loads(self.body)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    records = [*visits(40), mw.Record(value={"user": HOSTILE, "hold": True}, timestamp=4 * mw.SECOND)]
    store = stopped(tmp_path / "store", records)
    yield store
    store.close()


@pytest.fixture
def server(store: LmdbStore) -> Iterator[Server]:
    server = Server(store)
    yield server
    server.close()


def test_status_is_the_view_with_its_history(server: Server) -> None:
    found = Answer(server, "/api/status").json
    assert found["view"]["pipeline"] == "visits"
    assert found["view"]["records_in"] == 41
    assert [sample["records_in"] for sample in found["history"]][-1] == 41


def test_explain_and_key_answer(server: Server) -> None:
    steps = Answer(server, "/api/explain?computation=Totals").json["steps"]
    assert [step["who"] for step in steps] == ["Totals", "Visits"]
    assert (steps[-1]["because"], steps[-1]["key"]) == ("hold", HOSTILE)
    found = Answer(server, f"/api/key?computation=Visits&key={quote(HOSTILE)}").json
    assert (found["key"], found["state"], found["holds"][0]["tag"]) == (HOSTILE, {"seen": 1}, "open visit")


@pytest.mark.parametrize(
    "path", ["/api/explain?computation=Nobody", "/api/key?computation=Nobody&key=a", "/nothing"]
)
def test_what_is_not_there_is_said(server: Server, path: str) -> None:
    answer = Answer(server, path)
    assert answer.status == 404
    assert "there is no" in answer.json["error"]


def test_the_page_and_its_parts_come_with_a_strict_policy(server: Server) -> None:
    for path, kind in [("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")]:
        answer = Answer(server, path)
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith(kind)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_nothing_of_the_page_comes_from_elsewhere(server: Server) -> None:
    for path in ("/", "/page.css", "/page.js"):
        text = Answer(server, path).body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        assert "innerHTML" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(server: Server, method: str) -> None:
    assert Answer(server, "/api/status", method).status == 501


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "192.0.2.1", "[::", "a b"])
def test_without_a_token_only_names_of_this_machine_are_answered(server: Server, host: str) -> None:
    assert Answer(server, "/api/status", Host=host).status == 403


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:99"])
def test_names_of_this_machine_are_answered(server: Server, host: str) -> None:
    assert Answer(server, "/api/status", Host=host).status == 200


@pytest.mark.parametrize("path", ["//[", "/%ff%00", "/../../etc/passwd", "/page/../server.py", "/page"])
def test_strange_paths_lead_nowhere(server: Server, path: str) -> None:
    assert Answer(server, path).status == 404


class TestToken:
    """A page that listens to more than this machine."""

    @pytest.fixture
    def guarded(self, store: LmdbStore) -> Iterator[Server]:
        server = Server(store, "0.0.0.0:0")
        yield server
        server.close()

    def test_one_is_made_that_nobody_can_guess(self, guarded: Server, store: LmdbStore) -> None:
        other = Server(store, "0.0.0.0:0")
        other.close()
        assert guarded.token != other.token
        assert len(guarded.token or "") >= 20
        assert f"?token={guarded.token}" in guarded.url

    @pytest.mark.parametrize("path", ["/", "/page.js", "/api/status", "/api/events", "/metrics", "/nothing"])
    @pytest.mark.parametrize("given", ["", "?token=wrong", "?token=%ff%fe"])
    def test_without_it_everything_is_refused(self, guarded: Server, path: str, given: str) -> None:
        answer = Answer(guarded, path + given)
        assert answer.status == 401
        assert b"visits" not in answer.body

    def test_it_is_taken_from_a_header(self, guarded: Server) -> None:
        assert Answer(guarded, "/metrics", Authorization=f"Bearer {guarded.token}").status == 200
        assert Answer(guarded, "/metrics", Authorization="Bearer wrong").status == 401

    def test_it_goes_from_the_address_into_a_cookie(self, guarded: Server) -> None:
        answer = Answer(guarded, f"/?token={guarded.token}")
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert Answer(guarded, "/", Cookie=cookie.split(";")[0]).status == 200

    @pytest.mark.parametrize(
        "token",
        ["a&b", "a+b", "a;b", "a#b", "a%b", "%26", "a b", 'a"b', "a=b,c\\d", "é", "\U0001f600", "&+;#%"],
    )
    def test_it_may_have_any_character(self, store: LmdbStore, token: str) -> None:
        server = Server(store, token=token)
        try:
            place = urlsplit(server.url)
            answer = Answer(server, f"{place.path}?{place.query}")
            assert (answer.status, answer.headers["Location"]) == (303, "/")
            cookie = answer.headers["Set-Cookie"].split(";")[0]
            assert Answer(server, "/", Cookie=cookie).status == 200
            assert Answer(server, "/", Cookie=cookie + "x").status == 401
            sent = token.encode().decode("latin-1")
            assert Answer(server, "/metrics", Authorization=f"Bearer {sent}").status == 200
        finally:
            server.close()

    def test_it_can_be_given(self, store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILLWHEEL_UI_TOKEN", "from the environment")
        server = Server(store)
        try:
            assert server.token == "from the environment"
            assert Answer(server, "/api/status").status == 401
        finally:
            server.close()


@pytest.mark.parametrize("where", ["x", "70000", -1, True, ":80", "host:", 1.5])
def test_an_address_that_is_none_is_refused(where: Any) -> None:
    with pytest.raises(mw.PipelineError, match="ui is a port"):
        parse_address(where)


def test_a_port_that_is_taken_is_an_error_that_says_so(server: Server, store: LmdbStore) -> None:
    with pytest.raises(mw.StoreError, match="choose another port"):
        Server(store, server.port)


def events(server: Server, number: int) -> list[Any]:
    """So many server-sent events."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/api/events")
    response = connection.getresponse()
    assert response.headers["Content-Type"] == "text/event-stream"
    found: list[Any] = []
    while len(found) < number:
        line = response.readline()
        if line.startswith(b"data: "):
            found.append(json.loads(line[6:]))
    connection.close()
    return found


def test_events_follow_a_running_pipeline(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "live", shards=2)
    feed = Feed({"only": visits(40)}, opened=10)
    with running(pipeline(feed), store) as job:
        server = Server(store)
        eventually(lambda: job.status().records_in == 10)
        (first,) = events(server, 1)
        feed.opened = 40
        eventually(lambda: job.status().records_in == 40)
        eventually(lambda: Answer(server, "/api/status").json["view"]["records_in"] == 40)
        assert first["view"]["records_in"] == 10
        one, two = events(server, 2)
        assert one["history"]
        assert not two["history"], "the page has it already"
        assert two["view"]["time"] > one["view"]["time"]
        server.close()


def test_a_page_that_is_open_does_not_keep_the_pipeline_from_ending(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "live", shards=2)
    with running(pipeline(Feed({"only": visits(10)}, opened=10)), store) as job:
        server = Server(store)
        job.driver.observer.before_close = server.close  # type: ignore[union-attr, attr-defined]
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", "/api/events")
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        job.stop()
        assert b"data" not in response.read().split(b"\n\n")[-1], "the stream ends, between two events"
        with pytest.raises(ConnectionError):
            Answer(server, "/api/status")


@pytest.mark.parametrize("partition", ["\ud800", "plain"])
@pytest.mark.parametrize("offset", [1, 2**70, b"\x00", {"a": [1, None]}])
def test_whatever_partitions_and_offsets_are_there_is_an_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch, partition: str, offset: Any
) -> None:
    view, samples = server.look()
    part = PartitionView(partition, plain(offset), mw.MIN_TIME, mw.MAX_TIME)
    changed = replace(view, injectors=[replace(view.injectors[0], partitions=[part])])
    monkeypatch.setattr(server, "look", lambda: (changed, samples))
    found = Answer(server, "/api/status").json["view"]["injectors"][0]["partitions"][0]
    assert (found["name"], found["watermark"], found["newest"]) == (partition, mw.MIN_TIME, mw.MAX_TIME)
    assert found["offset"] == plain(offset)


def test_too_many_open_pages_are_refused_and_make_room_again(server: Server) -> None:
    for _ in range(32):
        server.streams.acquire()
    assert Answer(server, "/api/events").status == 503
    server.streams.release()
    assert events(server, 1)


def test_many_who_ask_at_once_all_get_an_answer(server: Server) -> None:
    answers: list[int] = []

    def ask() -> None:
        answers.append(Answer(server, "/api/status").status)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 20
