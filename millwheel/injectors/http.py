"""Records by HTTP: a POST is answered when they are durable in a log."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson

from millwheel.errors import InputError
from millwheel.http_server import Handler, LimitedServer, Limits, Refused, foreign, is_loopback, matches
from millwheel.injectors import units
from millwheel.injectors.disk_log import Log, LogFull, pieces
from millwheel.injectors.lines import Reader
from millwheel.injectors.units import BadLine, Unit, to_time
from millwheel.model.injector import Injector, Offset, RecordBatch
from millwheel.model.names import folder_name
from millwheel.model.time import DAY, MIN_TIME, MINUTE, SECOND

logger = logging.getLogger("millwheel")

_PARTITION = "log"
_SLACK = 10 * SECOND  # the default for how far records may be out of order
_MAX_BODY = 8 << 20  # bytes of one POST
_MAX_PENDING = 256 << 20  # bytes not injected yet, above which callers get 429
_LINE = 100  # assumed bytes of a record; used for the size of epochs only
_TIMEOUT = 30.0  # seconds for a caller to send its headers, and then its body
# The second is the default of curl -d and urllib. A form of a page has it too, and then an Origin.
_TYPES = ("application/json", "application/x-www-form-urlencoded")
_CONNECTIONS = 256  # at the same time: each has a thread


class Http(Injector):
    """Listens on a port: a POST of a JSON object, or of an array, injects records.

    200: all of them are durable in the injector's log. 400: one is bad, with the reason, and none was
    accepted. 413: the body is larger than ``max_body`` bytes. 429: ``max_pending`` bytes are not injected
    yet. 503: the log cannot be written, or ``max_connections`` are open. A caller without an
    answer sends again: with ``id``, a record that is sent twice is processed once. Headers, and then the
    body, may take ``timeout`` seconds each.

    ``timestamp`` names the field with the event time, in ``unit``; without it, it is the time of arrival,
    and the value may be any JSON. It listens on loopback; on other interfaces (``host="0.0.0.0"``) only with
    a ``token``, which callers send as ``Authorization: Bearer TOKEN``. Use a proxy for TLS. Without a
    token only programs of this machine may send, not pages in its browsers: 403 for another name in ``Host``
    and for an ``Origin``, 415 for a ``Content-Type`` such as ``text/plain``, which a page may send unasked.

    The log is in ``log``, and is removed as it is committed. Such an injector is never exhausted.
    """

    bounded = False

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        token: str | None = None,
        timestamp: str | None = None,
        id: str | None = None,
        unit: Unit | None = None,
        slack: int = _SLACK,
        idle_after: int | None = MINUTE,
        max_body: int = _MAX_BODY,
        max_pending: int = _MAX_PENDING,
        max_connections: int = _CONNECTIONS,
        timeout: float = _TIMEOUT,
        log: str | os.PathLike[str] | None = None,
        id_retention: int = DAY,
    ) -> None:
        units.check_name(unit, "Http")
        if not token and not is_loopback(host):
            raise InputError(f"Http: to listen on {host} it needs a token=, which callers must send")
        self._port = port
        self._host = host
        self._token = token
        self._timestamp = timestamp
        self._id = id
        self._unit: Unit | None = unit
        self._max_body = max_body
        self._max_pending = max_pending
        self._limits = Limits(max_connections, seconds=timeout)
        self._given = None if log is None else Path(log).absolute()
        self._folder = Path()
        self._length = _LINE
        self._log: Log | None = None
        self._server: LimitedServer | None = None
        self._wake: Callable[[], None] = _nobody
        self.slack = slack
        self.idle_after = idle_after
        self.id_retention = id_retention

    def __repr__(self) -> str:
        return f"Http({self._port}, host={self._host!r})"

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that a task needs: the log's folder, not the token."""
        return {**self.__dict__, "_log": None, "_server": None, "_token": None, "_wake": _nobody}

    @property
    def port(self) -> int:
        """The port it listens on; useful if it was made with port 0."""
        return self._server.server_address[1] if self._server is not None else self._port

    def begin(self, origin: str, name: str) -> None:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        self._folder = self._given or state / "millwheel" / "http" / origin / folder_name(name)
        self._log = Log(self._folder, self._max_pending)
        try:
            self._server = LimitedServer((self._host, self._port), _handler(self), self._limits)
        except OSError as error:
            self._log.close()
            raise InputError(f"{self!r}: it cannot listen there ({error})") from error
        threading.Thread(target=self._server.serve_forever, name="millwheel-http", daemon=True).start()

    def notify(self, wake: Callable[[], None]) -> bool:
        self._wake = wake
        return True

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._log is not None:
            self._log.close()
        self._server = self._log = None

    def poll(self) -> Mapping[str, Offset]:
        assert self._log is not None
        return {_PARTITION: self._log.durable or None}

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return MIN_TIME

    def commit(self, offsets: Mapping[str, Offset]) -> None:
        position = offsets.get(_PARTITION)
        if self._log is None or not position:
            return
        if position > self._log.durable:
            raise InputError(
                f"{self!r}: its log in {self._folder} was lost, or is another one's: it ends at "
                f"{self._log.durable:,}, and {position:,} bytes were read; restore it, or use a new store"
            )
        self._log.release(position)

    def lost(self, offsets: Mapping[str, Offset]) -> str | None:
        return "its log is removed as it is committed"

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        target = (start or 0) + records * self._length
        return end if target >= end else min(end, self._line_end(target))

    def _line_end(self, target: int) -> int:
        for path, begin, first, _ in pieces(self._folder, target, target + 1):
            with open(path, "rb") as file:
                file.seek(first - begin)
                file.readline()
                return begin + file.tell()
        return target

    def size(self, partition: str, start: Offset, end: Offset) -> int:
        length: int = (end or 0) - (start or 0)
        return max(length // self._length, 1)

    def read_batches(self, partition: str, start: Offset, end: Offset) -> Iterable[RecordBatch]:
        reader = Reader(self._timestamp or "t", self._id, self._unit if self._timestamp else "us", "jsonl")
        for path, begin, first, last in pieces(self._folder, start or 0, end):
            for batch in reader.records(path, first - begin, last - begin):
                if self._timestamp is None:
                    values = [value["v"] for value in batch.values]
                    batch = RecordBatch(batch.timestamps, values, batch.ids, None, batch.bad)
                yield batch

    def take(self, body: bytes) -> int:
        """Makes the records of a body durable; returns their number; may raise `BadLine`."""
        try:
            found = orjson.loads(body)
        except ValueError as error:
            raise BadLine(f"the body is not JSON ({error})") from None
        records = found if isinstance(found, list) else [found]
        if not records:
            return 0
        lines = []
        for number, record in enumerate(records):
            try:
                lines.append(self._line(record))
            except BadLine as error:
                raise BadLine(f"record {number}: {error}") from None
            except TypeError as error:  # JSON that can be decoded but not encoded: hundreds of levels
                raise BadLine(f"record {number}: it cannot be stored ({error})") from None
        assert self._log is not None
        if self._unit is None and self._timestamp is not None and not self._log.durable:
            try:
                stamps = [to_time(r[self._timestamp], None, self._timestamp, text=False) for r in records]
                units.check_first(stamps, self._timestamp, "the first records")
            except InputError as error:
                raise BadLine(f"{error} (to the injector Http)") from None
        self._log.append(b"".join(lines))
        self._wake()
        self._length = max(sum(map(len, lines)) // len(lines), 1)
        return len(records)

    def _line(self, record: Any) -> bytes:
        if self._timestamp is None:
            line: dict[str, Any] = {"t": time.time_ns() // 1_000, "v": record}
            if self._id is not None:
                line[self._id] = self._checked_id(record)
            return orjson.dumps(line) + b"\n"
        if not isinstance(record, dict):
            raise BadLine(f"it is a {type(record).__name__}, not an object with fields")
        if self._timestamp not in record:
            raise BadLine(f"it has no timestamp field {self._timestamp!r}")
        stamp = to_time(record[self._timestamp], self._unit, self._timestamp, text=False)
        if not -(2**63) < stamp < 2**63:
            raise BadLine(f"the timestamp field {self._timestamp!r} is out of the range of 64 bits")
        if self._id is not None:
            self._checked_id(record)
        return orjson.dumps(record) + b"\n"

    def _checked_id(self, record: Any) -> str | int:
        if not isinstance(record, dict) or self._id not in record:
            raise BadLine(f"it has no ID field {self._id!r}")
        id = record[self._id]
        if isinstance(id, bool) or not isinstance(id, str | int):
            raise BadLine(f"the ID field {self._id!r} is {id!r}: an ID is a text or an integer")
        return id

    def check(self, headers: Message) -> None:
        """Raises `Refused` for a caller without permission."""
        if self._token:
            given = headers.get("Authorization", "").removeprefix("Bearer ")
            if not matches(given, self._token):
                raise Refused(HTTPStatus.UNAUTHORIZED, "a token is needed: Authorization: Bearer TOKEN")
            return
        reason = foreign(headers, browsers=False)
        if reason is not None:
            raise Refused(HTTPStatus.FORBIDDEN, f"{reason}; with token= any caller can be admitted")
        kind = headers.get_content_type()
        if "Content-Type" in headers and kind not in _TYPES and not kind.endswith("+json"):
            reason = f"the body is {kind}: send JSON with Content-Type: application/json (curl --json)"
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, reason)


def _nobody() -> None:
    """Does nothing: no one waits for records."""


def _handler(injector: Http) -> type[Handler]:
    limit = injector._max_body

    class Caller(Handler):
        server_version = "millwheel"

        def do_POST(self) -> None:
            try:
                status, value, headers = self._take()
            except Refused as refused:
                return self.refuse(refused.status, str(refused))
            except Exception:
                logger.exception("Http: a request failed")
                status, value, headers = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "an error of ours"}, {}
            self.answer(status, orjson.dumps(value), headers=headers)

        def _take(self) -> tuple[HTTPStatus, Any, dict[str, str]]:
            injector.check(self.headers)
            body = self.read_body(limit)
            try:
                return HTTPStatus.OK, {"accepted": injector.take(body)}, {}
            except BadLine as error:
                return HTTPStatus.BAD_REQUEST, {"error": str(error)}, {}
            except LogFull as error:
                return HTTPStatus.TOO_MANY_REQUESTS, {"error": str(error)}, {"Retry-After": "1"}
            except OSError as error:
                reason = f"the log cannot be written ({error.strerror})"
                return HTTPStatus.SERVICE_UNAVAILABLE, {"error": reason}, {}

        def do_GET(self) -> None:
            self.refuse(HTTPStatus.METHOD_NOT_ALLOWED, "records are sent with POST")

    return Caller
