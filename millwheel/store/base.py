"""The interface of a backing store.

A store is a journal, which the driver writes, and a number of shards, which hold the rows of the keys.
Each is an ordered map of bytes. `Shard.write` is atomic and durable: all or nothing.
`millwheel.store.keyspace` defines the meaning of the bytes; a store does not interpret them.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from millwheel.errors import StoreError
from millwheel.model.keys import TABLETS

T = TypeVar("T")

Get = Callable[[bytes], bytes | None]
Guard = Callable[[Get], None]
"""Checks the shard inside a write, before any change; raises to refuse it (6.2)."""


Range = tuple[bytes, bytes, int]
"""From a key, to before another one, and the largest number of entries wanted."""


class SnapshotLost(StoreError):
    """The store was lost during a read. Nothing is lost: read from the beginning."""


class Snapshot(Protocol):
    """A consistent read of one shard: later writes of others are not visible."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, or None; fastest when the keys are sorted."""

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries from ``start`` to before ``stop``, in order."""

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Announces the next reads.

        A store for which a read is a round trip fetches all of it in one; `scan` and `get` are then answered
        from it if they ask for exactly that range, or for the key of a `just` that was fetched.
        """


class Shard(Protocol):
    """An ordered map of bytes with snapshots and atomic writes."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Opens a snapshot; close it before writing."""

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
        *,
        kept: bool = False,
    ) -> None:
        """Deletes, then puts, in one atomic and durable write, unless ``guard`` raises.

        May iterate over ``puts`` and ``deletes`` more than once: pass lists. A store whose connection is lost
        during the write repeats all of it, as the result is unknown: so a guard either recognises its own
        write, or accepts it a second time.

        ``kept`` states that the writer has the rows of keys in a cache, and will rarely read them soon: a
        store may then apply them later.
        """


class Store(abc.ABC):
    """A journal and the shards of the key space, each an equal run of tablets."""

    address: str
    """The URL that opens the same store in another process."""
    journal: Shard
    shards: Sequence[Shard]
    tablets: int = TABLETS
    """The number of tablets of its key space, chosen when it is made: the most intervals of a level."""

    @abc.abstractmethod
    def lock(self, owner: str, *, takeover: bool = False) -> None:
        """Takes the store for one driver; a `StoreError` names the driver that holds it.

        With ``takeover`` it is taken from that driver, whose next write is refused.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Releases the lock and all resources."""

    @abc.abstractmethod
    def size(self) -> int:
        """The size of the store in bytes."""

    def in_use(self) -> bool | None:
        """Whether a driver holds the lock, without trying it; None: unknown.

        To try it would hold it for a moment, in which a driver that starts would be refused.
        """
        return None

    def verify(self) -> None:
        """Raises a `StoreError` if a file is damaged; a server checks its own."""
        return None

    def verify_ahead(self, interrupted: Callable[[], bool]) -> int:
        """Verifies ahead of `lock`, while another driver leads.

        Returns the number of pages that were new; ends early once ``interrupted()``.
        """
        return 0

    def compact(self) -> tuple[int, int]:
        """Frees unused space; returns the bytes before and after. The lock must be held."""
        raise StoreError(f"{self.address} cannot be compacted: it keeps no more than it needs")


def read(shard: Shard, look: Callable[[Snapshot], T]) -> T:
    """Runs a function on a snapshot; again from the start if the store is lost.

    A store has a timeout for reconnecting; after that it raises another `StoreError`.
    """
    while True:
        try:
            with shard.snapshot() as snapshot:
                return look(snapshot)
        except SnapshotLost:
            continue


def just(key: bytes) -> Range:
    """The range of a single key, for `Snapshot.prefetch`.

    >>> just(b"k")
    (b'k', b'k\\x00', 1)
    """
    return key, key + b"\x00", 1
