"""Verifies the store while a standby waits, to shorten a takeover.

Without it a takeover on LMDB audited every entry of the store: 1 s of CPU time for a million keys.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

from millwheel.errors import MillWheelError
from millwheel.store.base import Store

logger = logging.getLogger("millwheel")

_AT_LEAST = (
    5.0  # seconds between two audits: a page that changed since the last one is audited at the takeover
)
_SHARE = 20  # times as long as an audit took: at most 5% of a core


class StandbyAudit:
    """Verifies a store in a thread, from time to time, until the end of the context."""

    def __init__(
        self, store: Store, clock: Callable[[], float] = time.monotonic, at_least: float = _AT_LEAST
    ) -> None:
        self._store = store
        self._clock = clock
        self._at_least = at_least
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millwheel-audit", daemon=True)

    def __enter__(self) -> StandbyAudit:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        warned = False
        while not self._ended.is_set():
            began = self._clock()
            try:
                self._store.verify_ahead(self._ended.is_set)
            except MillWheelError as error:  # the takeover itself verifies, and raises it
                if not warned:
                    logger.warning("a takeover by this standby would fail: %s", error)
                warned = True
            self._ended.wait(max(self._at_least, _SHARE * (self._clock() - began)))
