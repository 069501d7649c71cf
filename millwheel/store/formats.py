"""The format of a store: its version, and the number of tablets of its key space."""

from __future__ import annotations

from typing import Final

from millwheel.errors import StoreError
from millwheel.model.codec import unpack
from millwheel.model.keys import MOST_TABLETS, TABLETS, is_tablets
from millwheel.store.keyspace import A_SHARD

FORMAT: Final = 3
"""Of journal and shards. 3: injectors are named by tuples, names are in values."""
FORMAT_OF_MANY: Final = 4
"""The same of a store that has not 64 tablets: earlier versions must not take it for one that has."""


def check_tablets(shards: int, tablets: int) -> None:
    """Refuses a number of tablets that a store with ``shards`` cannot have."""
    if not is_tablets(tablets):
        raise StoreError(
            f"the number of tablets is a power of two from {TABLETS} to {MOST_TABLETS}, not {tablets}"
        )
    if not tablets // A_SHARD <= shards <= tablets:
        raise StoreError(
            f"a store with {tablets} tablets has from {max(1, tablets // A_SHARD)} to {tablets} shards, "
            f"not {shards}"
        )


def format_of(tablets: int) -> int:
    """The format of a store with a number of tablets."""
    return FORMAT if tablets == TABLETS else FORMAT_OF_MANY


def check_format(data: bytes | None, tablets: int) -> None:
    """Refuses a store whose ``format`` is another version; None: it has none yet."""
    form = format_of(tablets) if data is None else unpack(data)
    if form == format_of(tablets):
        return
    if form in (FORMAT, FORMAT_OF_MANY):
        raise StoreError(
            f"the store has {tablets} tablets, which is format {format_of(tablets)}, and its journal has "
            f"format {form}: an earlier version of millwheel, or a file of another store, was used "
            "with it. Restore all of it from one backup, or start with a new store"
        )
    age = "an earlier" if isinstance(form, int) and form < FORMAT else "a later"
    raise StoreError(
        f"the store has format {form}, and this version of millwheel reads formats {FORMAT} and "
        f"{FORMAT_OF_MANY}: {age} version wrote it. Run it with that version, or start with a new store"
    )
