"""The interface of a backing store.

A store is a journal, which the driver writes, and a number of shards, which hold the rows of the keys.
Each is an ordered map of bytes. `Shard.write` is atomic and durable: all of it is there afterwards, or
none. What the bytes mean is said in `millwheel.store.keyspace`; a store does not know.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from millwheel.errors import StoreError

T = TypeVar("T")

Get = Callable[[bytes], bytes | None]
Guard = Callable[[Get], None]
"""Looks at the shard inside a write, before anything is changed, and raises to refuse it (6.2)."""


Range = tuple[bytes, bytes, int]
"""From a key, to before another one, and how many entries of it are wanted at most."""


class SnapshotLost(StoreError):
    """The store went away in the middle of a reading. Nothing is lost: read from the beginning."""


class Snapshot(Protocol):
    """A consistent reading of one shard: no write of others is seen while it is open."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, or None; fastest when the keys are sorted."""

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries from ``start`` to before ``stop``, in order."""

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Says what will be read next.

        A store for which a read is a round trip fetches all of it in one; `scan` and `get` are then answered
        from it where they ask for just that range, or for the key of a `just` that was fetched.
        """


class Shard(Protocol):
    """An ordered map of bytes with snapshots and atomic writes."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Opens a reading; close it before writing."""

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
        *,
        kept: bool = False,
    ) -> None:
        """Deletes, then puts, in one atomic and durable write, unless ``guard`` raises.

        May go over ``puts`` and ``deletes`` more than once: give lists. A store that is cut off in the
        middle makes the whole write again, as nobody knows whether it was made: so a guard either knows its
        own write when it sees it, or lets it pass a second time.

        ``kept`` says that the writer has the rows of keys in a cache, and will hardly read them soon: a
        store may then take its time to put them in their places.
        """


class Store(abc.ABC):
    """A journal and the shards of the key space; each shard holds an equal run of tablets."""

    address: str
    """The URL that opens the same store in another process."""
    journal: Shard
    shards: Sequence[Shard]

    @abc.abstractmethod
    def lock(self, owner: str, *, takeover: bool = False) -> None:
        """Takes the store for one driver; a `StoreError` names the driver that has it.

        With ``takeover`` it is taken from that driver, whose writes are refused from its next one on.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of the lock and of every resource."""

    @abc.abstractmethod
    def size(self) -> int:
        """The bytes that the store takes."""

    def in_use(self) -> bool | None:
        """Whether a driver has the lock, which is looked up and not tried; None where nobody can tell.

        To try it would be to hold it for a moment, in which a driver that starts would be refused.
        """
        return None

    def verify(self) -> None:
        """Raises a `StoreError` where a file of the store is damaged; a server looks after its own."""
        return None

    def compact(self) -> tuple[int, int]:
        """Gives space back that nobody uses; the bytes before and after. Only for who holds the lock."""
        raise StoreError(f"{self.address} cannot be compacted: it keeps no more than it needs")


def read(shard: Shard, look: Callable[[Snapshot], T]) -> T:
    """Looks at a shard in one reading; where the store is cut off meanwhile, from the beginning again.

    A store waits only so long until it can be reached; then it raises another `StoreError`.
    """
    while True:
        try:
            with shard.snapshot() as snapshot:
                return look(snapshot)
        except SnapshotLost:
            continue


def just(key: bytes) -> Range:
    """The range that is a key alone, to be prefetched.

    >>> just(b"k")
    (b'k', b'k\\x00', 1)
    """
    return key, key + b"\x00", 1
