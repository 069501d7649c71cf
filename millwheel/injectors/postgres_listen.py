"""Waits for notifications of PostgreSQL (``LISTEN``), in place of polling."""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("millwheel.postgres")

_AGAIN = 1.0  # seconds after an error: the server is polled meanwhile
_KEEPALIVE: dict[str, Any] = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


class Listener:
    """Calls, from its thread, on each notification and whenever it starts to listen.

    What was notified while it did not listen is lost: so it calls once it listens again.
    """

    def __init__(self, url: str, channel: str, wake: Callable[[], None]) -> None:
        self._url = url
        self._channel = channel
        self._wake = wake
        self._closed = threading.Event()
        self._ending, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="millwheel-postgres", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and its connection."""
        self._closed.set()
        self._end.send(b" ")
        self._thread.join()
        self._ending.close()
        self._end.close()

    def _run(self) -> None:
        import psycopg

        while not self._closed.is_set():
            try:
                with psycopg.connect(
                    self._url, connect_timeout=5, autocommit=True, application_name="millwheel", **_KEEPALIVE
                ) as connection:
                    connection.execute(
                        psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(self._channel))
                    )
                    self._listen(connection.pgconn)
            except psycopg.Error as error:  # the server is away: the driver polls in any case, and reports it
                logger.debug("listening failed: %s", type(error).__name__)
                self._closed.wait(_AGAIN)

    def _listen(self, connection: Any) -> None:
        poll = select.poll()
        for place in (connection.socket, self._ending.fileno()):
            poll.register(place, select.POLLIN)
        self._wake()
        while not self._closed.is_set():
            found = False
            while connection.notifies() is not None:
                found = True
            if found:
                self._wake()
            poll.poll()
            connection.consume_input()
