"""The mark of a store that is an unfinished copy: it cannot be opened."""

from __future__ import annotations

from typing import Final

from millwheel.errors import StoreError
from millwheel.model.codec import unpack
from millwheel.store.base import Snapshot
from millwheel.store.keyspace import JournalKey

UNFINISHED: Final = JournalKey.COPYING
"""In the journal of a copy until it is finished: its origin."""


def refuse_unfinished(journal: Snapshot) -> None:
    """Raises if a store is an unfinished copy."""
    found = journal.get(UNFINISHED)
    if found is not None:
        raise StoreError(
            f"this store is an unfinished copy of {unpack(found)}: `millwheel store copy` is still running, "
            "or was interrupted. Wait for it, or remove this store and copy again; the original is intact"
        )
