"""The interface of a backing store.

A store is a journal, which the driver writes, and a number of shards, which hold the rows of the keys.
Each is an ordered map of bytes. `Shard.write` is atomic and durable: all of it is there afterwards, or
none. What the bytes mean is said in `millwheel.store.layout`; a store does not know.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

Get = Callable[[bytes], bytes | None]
Guard = Callable[[Get], None]
"""Looks at the shard inside a write, before anything is changed, and raises to refuse it (6.2)."""


class Snapshot(Protocol):
    """A consistent reading of one shard: no write of others is seen while it is open."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, or None; fastest when the keys are sorted."""

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries from ``start`` to before ``stop``, in order."""


class Shard(Protocol):
    """An ordered map of bytes with snapshots and atomic writes."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Opens a reading; close it before writing."""

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
    ) -> None:
        """Deletes, then puts, in one atomic and durable write, unless ``guard`` raises.

        May go over ``puts`` and ``deletes`` more than once: give lists.
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
