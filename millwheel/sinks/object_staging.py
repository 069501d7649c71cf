"""Staging on object storage: the counterpart of `Staging` in a bucket.

An object appears as a whole, and is then durable: tasks put theirs under (epoch, shard),
and nothing is ever half written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from millwheel.errors import MillWheelError
from millwheel.objects import Objects, open_objects

_PROBE = ".probe"


class StagedObject(NamedTuple):
    """The output of one shard in one epoch."""

    epoch: int
    shard: int
    name: str
    size: int
    objects: Objects

    def read(self) -> bytes:
        """Return its content."""
        data = self.objects.get(self.name)
        if data is None:
            raise MillWheelError(
                f"{self.objects.name}/{self.name}: a staged object was removed: nothing else may remove it"
            )
        return data


class ObjectStaging:
    """Durable batches by (epoch, shard): tasks put, the driver reads and drops."""

    def __init__(self, url: str, sink: str = "the sink") -> None:
        self._url = url
        self._sink = sink
        self._opened: Objects | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def objects(self) -> Objects:
        """The objects below the prefix."""
        if self._opened is None:
            self._opened = open_objects(self._url, error=MillWheelError)
        return self._opened

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Name the sink in errors of its storage; the rest of the message has the fix."""
        try:
            yield
        except MillWheelError as error:
            if str(error).startswith(self._sink):
                raise
            raise MillWheelError(f"{self._sink}: {error}; nothing is lost") from None

    def open(self) -> None:
        """Check that the storage is writable."""
        with self.writing():
            self.objects.put(_PROBE, b"")
            self.objects.delete([_PROBE])

    def put(self, epoch: int, shard: int, data: bytes | Iterable[bytes]) -> None:
        """Put a batch, whole or in pieces; that of an earlier attempt is overwritten."""
        whole = data if isinstance(data, bytes) else b"".join(data)
        with self.writing():
            self.objects.put(f"staged/{epoch:010d}-{shard:08d}", whole)

    def batches(self, after: int, through: int) -> list[StagedObject]:
        """Return the batches of some epochs, in order."""
        return [item for item in self._all() if after < item.epoch <= through]

    def size(self) -> int:
        """Return the staged bytes."""
        return sum(item.size for item in self._all())

    def drop(self, through: int | None = None) -> None:
        """Remove the batches of epochs that were published (None: of all epochs)."""
        self.objects.delete([item.name for item in self._all() if through is None or item.epoch <= through])

    def _all(self) -> list[StagedObject]:
        found = []
        for entry in self.objects.list("staged/"):
            epoch, _, shard = entry.name.rpartition("/")[2].partition("-")
            found.append(StagedObject(int(epoch), int(shard), entry.name, entry.size, self.objects))
        return sorted(found)

    def sweep(self) -> None:
        """Do nothing: nothing is ever half written."""
