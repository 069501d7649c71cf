"""The page's server: read-only, on loopback by default, otherwise with a token.

    /                a page of one file of HTML, one of CSS and one of JavaScript, none from elsewhere
    /api/status      the view, and its history
    /api/events      the same as server-sent events, every second
    /api/explain     why a low watermark has its value
    /api/key         one key of one computation
    /metrics         for Prometheus

Everything is read from the store on request; without requests, nothing is done.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, quote, unquote

import orjson

from millwheel.errors import MillWheelError, PipelineError, StoreError
from millwheel.http_server import Handler, LimitedServer, Limits, foreign, is_loopback, matches
from millwheel.model.codec import Codec
from millwheel.store.base import Store
from millwheel.version import VERSION
from millwheel.watch.explain import explain
from millwheel.watch.history import Sample
from millwheel.watch.key_view import inspect
from millwheel.watch.metrics import exposition
from millwheel.watch.view import View, Viewer

logger = logging.getLogger("millwheel")

_EVERY = 1.0  # seconds between events
_FRESH = 0.5  # seconds for which a view is reused
_MOST_STREAMS = 32  # pages that are open at the same time: each has a thread
_LIMITS = Limits(connections=128)  # a browser opens up to six for a page
_POLL = 0.1  # seconds until the server notices that it is to end
_COOKIE = "millwheel_token"
_PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def parse_address(where: int | str) -> tuple[str, int]:
    """The host and the port of a page.

    >>> parse_address(8080), parse_address("0.0.0.0:8080"), parse_address("[::1]:80")
    (('127.0.0.1', 8080), ('0.0.0.0', 8080), ('::1', 80))
    """
    host, colon, port = str(where).rpartition(":")
    try:
        number = int(port)
    except ValueError:
        number = -1
    if isinstance(where, bool) or not 0 <= number < 65536 or (colon and not host):
        raise PipelineError(f"ui is a port such as 8080, or an address such as '0.0.0.0:8080', not {where!r}")
    return host.strip("[]") or "127.0.0.1", number


class Server:
    """Serves the page of one store until it is closed.

    Invariant: once `close` has returned, no thread of the server reads the store.
    """

    def __init__(
        self,
        store: Store,
        where: int | str = 0,
        *,
        token: str | None = None,
        codecs: Mapping[str, Codec] | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
        limits: Limits = _LIMITS,
    ) -> None:
        host, port = parse_address(where)
        self.loopback = is_loopback(host)
        self.token = token or os.environ.get("MILLWHEEL_UI_TOKEN") or None
        if self.token is None and not self.loopback:
            self.token = secrets.token_urlsafe(18)
        self._store = store
        self._codecs = codecs
        self._clock = clock
        self._lock = threading.Lock()
        self._viewer = Viewer(store)
        self._view: View | None = None
        self._looked = 0.0
        self.closing = threading.Event()
        self.streams = threading.BoundedSemaphore(_MOST_STREAMS)
        try:
            self._http = _Http((host, port), self, limits)
        except OSError as error:
            raise StoreError(
                f"the page cannot be served at {host}:{port} ({error}): choose another port"
            ) from error
        self.port = int(self._http.server_address[1])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/" + (
            f"?token={quote(self.token, safe='')}" if self.token else ""
        )
        """The page's address, with the token if there is one."""
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_POLL,), name="millwheel-ui", daemon=True
        )
        self._thread.start()

    def look(self) -> tuple[View, list[Sample]]:
        """The view; reused for half a second."""
        with self._lock:
            self._open()
            if self._view is None or time.monotonic() - self._looked > _FRESH:
                self._view = self._viewer.look(self._clock())
                self._looked = time.monotonic()
            return self._view, self._viewer.samples

    def explain(self, computation: str) -> dict[str, Any]:
        """Why a low watermark has its value."""
        with self._lock:
            self._open()
            found = explain(self._store, computation)
        return dataclasses.asdict(found)

    def inspect(self, computation: str, key: str) -> dict[str, Any]:
        """One key."""
        with self._lock:
            self._open()
            return dataclasses.asdict(inspect(self._store, computation, key, self._codecs))

    def wait(self) -> None:
        """Waits until the server is closed, or the process is interrupted."""
        self.closing.wait()

    def _open(self) -> None:
        if self.closing.is_set():
            raise StoreError("the pipeline has ended")

    def close(self) -> None:
        """Closes the server; waits for running requests, ends open streams."""
        with self._lock:
            self.closing.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Http(LimitedServer):
    """The server with its limits, and its site."""

    def __init__(self, address: tuple[str, int], site: Server, limits: Limits) -> None:
        self.site = site
        super().__init__(address, _Handler, limits)


class _Handler(Handler):
    """One request. Anything but GET is refused by the base class: it is read-only."""

    server_version = f"millwheel/{VERSION}"
    headers_sent = _HEADERS
    server: _Http

    def do_GET(self) -> None:
        """Answers a request."""
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # a body is not read, and must not be parsed as the next request
        path, _, text = self.path.partition("?")
        query = {name: values[0] for name, values in parse_qs(text, keep_blank_values=True).items()}
        try:
            if not self._may_enter(query):
                return
            if path in _PAGES:
                self._page(path, query)
            elif path == "/api/status":
                view, samples = self.server.site.look()
                self._json(_message(view, samples))
            elif path == "/api/events":
                self._events()
            elif path == "/api/explain":
                self._json(self.server.site.explain(query.get("computation", "")))
            elif path == "/api/key":
                self._json(self.server.site.inspect(query.get("computation", ""), query.get("key", "")))
            elif path == "/metrics":
                data, kind = exposition(self.server.site.look()[0])
                self._send(HTTPStatus.OK, data, kind)
            else:
                self._json({"error": f"there is nothing at {path}"}, HTTPStatus.NOT_FOUND)
        except PipelineError as error:
            self._json({"error": str(error)}, HTTPStatus.NOT_FOUND)
        except MillWheelError as error:
            self._json({"error": str(error)}, HTTPStatus.SERVICE_UNAVAILABLE)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _may_enter(self, query: Mapping[str, str]) -> bool:
        """Checks the token, if there is one; otherwise the host name.

        Only names of this machine are accepted, so that no page of another site can reach this one under its
        own name."""
        site = self.server.site
        if site.token is None:
            reason = foreign(self.headers, browsers=True)
            if reason is None:
                return True
            self._json({"error": reason}, HTTPStatus.FORBIDDEN)
            return False
        given = [query.get("token", ""), self.headers.get("Authorization", "").removeprefix("Bearer ")]
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
            given.append(unquote(cookie.value) if cookie is not None else "")
        except CookieError:
            pass
        if any(matches(each, site.token) for each in given):
            return True
        self._json({"error": "the token is missing or wrong"}, HTTPStatus.UNAUTHORIZED)
        return False

    def _page(self, path: str, query: Mapping[str, str]) -> None:
        if path == "/" and "token" in query and self.server.site.token is not None:
            # From the address into a cookie: it leaves the history, and no script can read it.
            token = quote(self.server.site.token, safe="")
            cookie = f"{_COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/"
            self._send(HTTPStatus.SEE_OTHER, b"", "text/plain", {"Location": "/", "Set-Cookie": cookie})
            return
        name, kind = _PAGES[path]
        self._send(
            HTTPStatus.OK,
            resources.files("millwheel.watch").joinpath("page").joinpath(name).read_bytes(),
            kind,
        )

    def _events(self) -> None:
        site = self.server.site
        if not site.streams.acquire(blocking=False):
            self._json({"error": "too many pages are open"}, HTTPStatus.SERVICE_UNAVAILABLE)
            return
        try:
            self.close_connection = True
            self.send_response(HTTPStatus.OK)
            for name, value in {**_HEADERS, "Content-Type": "text/event-stream"}.items():
                self.send_header(name, value)
            self.end_headers()
            history = True
            while not site.closing.is_set():
                view, samples = site.look()
                self.wfile.write(b"data: " + _message(view, samples if history else []) + b"\n\n")
                history = False
                self.wfile.flush()
                site.closing.wait(_EVERY)
        except StoreError:
            pass  # the pipeline has ended: the stream ends, and the page shows it
        finally:
            site.streams.release()

    def _json(self, value: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self._send(status, data, "application/json")

    def _send(
        self, status: HTTPStatus, data: bytes, kind: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.answer(status, data, kind, headers)


def _message(view: View, samples: list[Sample]) -> bytes:
    """A view and a part of its history, as JSON; the view has the samples' epochs."""
    history = [
        {name: value for name, value in sample.__dict__.items() if name != "epochs"} for sample in samples
    ]
    try:
        return orjson.dumps({"view": view, "history": history})
    except TypeError:  # a name that is not UTF-8, or an offset of more than 64 bits
        return json.dumps({"view": view.to_value(), "history": history}).encode()
