"""The mark of a store that is a copy, and not finished: nobody opens one."""

from __future__ import annotations

from typing import Final

from millwheel.errors import StoreError
from millwheel.model.codec import unpack
from millwheel.store.base import Snapshot

UNFINISHED: Final = b"copying"
"""In the journal of a copy until it is finished: from where it is made."""


def refuse_unfinished(journal: Snapshot) -> None:
    """Raises where a store is a copy that was begun and not finished."""
    found = journal.get(UNFINISHED)
    if found is not None:
        raise StoreError(
            f"this store is an unfinished copy of {unpack(found)}: `millwheel store copy` is still at work, "
            "or was interrupted. Wait for it, or remove this store and copy again; the original is whole"
        )
