"""The pages of an LMDB file whose entries were audited, by their bytes.

A standby audits the file of its leader ahead of time. When it takes over, it reads every page again, and
audits the entries of those that have changed since: most of an audit is the entries.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import xxhash

_UNKNOWN = 0


class Interrupted(Exception):
    """An audit ahead is not needed any more, or its state is not kept."""


class KnownPages:
    """Leaf pages with sound entries, each by a digest of its bytes.

    A digest has 8 bytes, a page 4,096.

    Whether a leaf's entries are sound depends on its bytes alone, and not on the state of the file.
    """

    def __init__(self) -> None:
        self._digests = array("Q")
        self.interrupted: Callable[[], bool] | None = None
        """Whether to end an audit, by `Interrupted`; None: it is not to be interrupted."""
        self.added = 0
        """The pages that were audited entry by entry."""

    def has(self, number: int, page: bytes) -> bool:
        """Whether this page was audited with these bytes."""
        if self.interrupted is not None and self.interrupted():
            raise Interrupted
        return number < len(self._digests) and self._digests[number] == _digest(page)

    def add(self, number: int, page: bytes) -> None:
        """Records a page that was audited."""
        missing = number + 1 - len(self._digests)
        if missing > 0:
            self._digests.frombytes(bytes(8 * missing))
        self._digests[number] = _digest(page)
        self.added += 1


def _digest(page: bytes) -> int:
    return xxhash.xxh3_64_intdigest(page) or _UNKNOWN + 1
