"""A small HTTP server with limits, and checks against other sites' pages.

Invariant: whatever a client sends or leaves out, it holds one of a limited number of connections, for a
limited time, with a limited number of bytes, and gets an answer or is disconnected.
"""

from __future__ import annotations

import hmac
import http.client
import io
import ipaddress
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

logger = logging.getLogger("millwheel")

_MOST_DIGITS = 18  # of a Content-Length: longer is too large, and int() refuses 5,000 digits


@dataclass(frozen=True)
class Limits:
    """The limits of one client."""

    connections: int = 256
    """At the same time; each has a thread."""
    header_bytes: int = 16 << 10
    """The request line and all headers: browsers and proxies send less than 8 kB."""
    seconds: float = 30.0
    """For a request's headers from its beginning, and again for its body."""


class Refused(Exception):
    """A request that is answered with an error: its status, and the reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class LimitedServer(ThreadingHTTPServer):
    """A thread for each connection, up to the limit."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, address: tuple[str, int], handler: type[Handler], limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self._places = threading.BoundedSemaphore(self.limits.connections)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection, or refuses it at once."""
        if not self._places.acquire(blocking=False):
            _turn_away(request)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves one connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs an error; a client that disconnected is not one."""
        gone = isinstance(sys.exc_info()[1], ConnectionError | TimeoutError)
        logger.log(logging.DEBUG if gone else logging.ERROR, "a request failed", exc_info=True)


def _turn_away(request: socket.socket) -> None:
    body = b'{"error": "too many connections: try again later"}'
    head = (
        f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    try:
        request.setblocking(False)
        request.send(f"{head}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n".encode() + body)
        request.shutdown(socket.SHUT_WR)
        request.recv(1 << 16)  # with unread bytes the kernel would drop the answer
    except OSError:
        pass


class _Deadline(io.RawIOBase):
    """Reads a connection until a deadline, however slowly its bytes arrive."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._timeout = connection.gettimeout()
        self.at = 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(self._timeout)


class _HeadersTooLong(http.client.LineTooLong):
    """The headers exceed the limit."""

    def __init__(self) -> None:
        super().__init__("header")


class _Reader(io.BufferedReader):
    """Lines of headers, up to a number of bytes; a body does not count."""

    left = 0

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(self.left + 1)
        self.left -= len(line)
        if self.left < 0:
            raise _HeadersTooLong
        return line


class Handler(BaseHTTPRequestHandler):
    """One connection, under the server's limits. Errors are answered as JSON."""

    protocol_version = "HTTP/1.1"
    sys_version = ""
    server: LimitedServer
    headers_sent: Mapping[str, str] = {}
    """Sent with every answer."""

    def setup(self) -> None:
        """Takes over the connection, with a reader of its own."""
        super().setup()
        self.connection.settimeout(self.server.limits.seconds)
        self.rfile.close()
        self._deadline = _Deadline(self.connection)
        self.rfile = self._lines = _Reader(self._deadline)

    def handle_one_request(self) -> None:
        """Reads a request and answers it."""
        limits = self.server.limits
        self._deadline.at = time.monotonic() + limits.seconds
        self._lines.left = limits.header_bytes
        try:
            super().handle_one_request()
        except _HeadersTooLong:  # in the request line; those in headers are answered by the base class
            self.requestline, self.request_version, self.command = "", self.protocol_version, ""
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def read_body(self, limit: int) -> bytes:
        """The body of a request; `Refused` if it is too long, or takes too long."""
        lengths = set(self.headers.get_all("Content-Length", []))
        if not lengths or "Transfer-Encoding" in self.headers:
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "the length of the body is needed: Content-Length")
        text = lengths.pop().strip()
        if lengths or not (text.isascii() and text.isdigit()):
            raise Refused(HTTPStatus.BAD_REQUEST, "the Content-Length is not a number")
        text = text.lstrip("0") or "0"
        if len(text) > _MOST_DIGITS or int(text) > limit:
            reason = f"the body is larger than {limit:,} bytes: send fewer at once"
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        self._deadline.at = time.monotonic() + self.server.limits.seconds
        try:
            body = self.rfile.read(int(text))
        except TimeoutError:
            seconds = self.server.limits.seconds
            raise Refused(
                HTTPStatus.REQUEST_TIMEOUT, f"the body took more than {seconds:g} seconds"
            ) from None
        if len(body) < int(text):
            raise Refused(HTTPStatus.BAD_REQUEST, "the body is shorter than its Content-Length")
        return body

    def refuse(self, status: HTTPStatus, reason: str) -> None:
        """Answers before the whole request is read: the connection cannot be reused."""
        self.close_connection = True
        self.answer(status, json.dumps({"error": reason}).encode(), headers={"Connection": "close"})

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Called by the base class for invalid requests."""
        status = HTTPStatus(code)
        self.refuse(status, message or status.phrase)

    def answer(
        self,
        status: HTTPStatus,
        data: bytes,
        kind: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Sends a whole answer."""
        self.send_response(status)
        for name, value in {**self.headers_sent, "Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing to the terminal; the address may have a token."""
        logger.debug("%s: %s", self.client_address[0], args[1] if len(args) > 1 else "")


def foreign(headers: Message, *, browsers: bool) -> str | None:
    """Why a request without a token is refused; None if it is accepted.

    Only names of this machine are answered, so that no site can reach the server under its own name (DNS
    rebinding). If ``browsers`` are not expected, a page's request is refused by the headers that every
    browser sends with a POST.
    """
    host = host_name(headers.get("Host", ""))
    if not is_loopback(host):
        return f"this server does not answer to the name {host!r}"
    if not browsers and ("Origin" in headers or headers.get("Sec-Fetch-Site", "none") != "none"):
        return "requests from web pages are not accepted"
    return None


def matches(given: str, token: str) -> bool:
    """Whether a token from a header or an address is correct, in constant time.

    >>> matches("a&b", "a&b"), matches("é".encode().decode("latin-1"), "é"), matches("", "é")
    (True, True, False)
    """
    wanted = token.encode("utf-8", "surrogatepass")
    forms = (given.encode("utf-8", "surrogatepass"), given.encode("latin-1", "replace"))
    return any([hmac.compare_digest(form, wanted) for form in forms])


def host_name(header: str) -> str:
    """The name in a Host header, which may be invalid.

    >>> host_name("localhost:8080"), host_name("[::1]:80"), host_name("[::")
    ('localhost', '::1', '')
    """
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether a name or an address is local to this machine.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("example.org")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
