"""Objects of committed epochs, each whole and put once, for sinks on object storage.

    PREFIX/part-*                          what was published
    PREFIX/_millwheel/STORE/staged/...     what tasks wrote, by epoch and shard
    PREFIX/_millwheel/STORE/log/N          what is published by commit N: its epochs, and the batches of them

1. Tasks stage their batches. *Crash*: the epoch is run again, and stages the same.
2. The epoch is committed in the journal. *Crash*: the next driver finds them staged, and does 3.
3. The driver puts entry N + 1 of the log, if there is none. *There is one*: another driver was first; this
   one begins again behind it. *Crash*: the next driver finds the entry, and does 4 with the same batches.
4. It puts the objects of the entry. Their names have its number, so that a second time puts the same again.
5. It removes the batches, then older entries. *Crash*: batches of an entry that are not all there say that 4
   is done, and the rest is removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.model.lakehouse import below
from millwheel.objects import Objects, open_objects
from millwheel.sinks.object_staging import ObjectStaging, StagedObject
from millwheel.sinks.staging import Later

Render = Callable[[Sequence[bytes]], list[tuple[str, bytes]]]
"""Batches into objects: a name with ``{}`` for the number, and the bytes of each."""

_ATTEMPTS = 20  # at an entry: as many drivers would have to be first each time


class ObjectPublisher:
    """Publishes to a prefix, in the driver, for all sinks of the pipeline that write there."""

    def __init__(self, url: str, sink: str, render: Render) -> None:
        self._url = url
        self._sink = sink
        self._render = render
        self._later = Later(0, self._publish_later)
        self._size = 0
        self._origin = ""
        self._committed = 0
        self._staging = ObjectStaging(url, sink)
        self._target: Objects | None = None

    def begin(self, origin: str, epoch: int, every: float, size: int) -> None:
        """Publish what the last driver left of committed epochs."""
        self._staging = staging(self._url, origin, self._sink)
        with self._later.lock, self._staging.writing():
            self._target = open_objects(self._url, error=MillWheelError)
            self._later.seconds, self._size = every, size
            self._origin, self._committed = origin, epoch
            self._publish()

    def commit(self, epoch: int) -> None:
        """Publish what an epoch has staged, soon. Where that fails, it stays staged."""
        with self._later.lock, self._staging.writing():
            if epoch <= self._committed:
                return
            self._committed = epoch
            if self._later.seconds <= 0 or self._staging.size() >= self._size:
                self._later.cancel()
                self._publish()
            else:
                self._later.ask()

    def close(self) -> None:
        """Publish all that is committed."""
        with self._later.lock, self._staging.writing():
            self._later.cancel()
            if self._origin:
                self._publish()
                self._origin = ""

    def _publish_later(self) -> None:
        with self._staging.writing():
            self._publish()

    def _publish(self) -> None:
        for _ in range(_ATTEMPTS):
            staged = self._staging.batches(0, self._committed)
            if not staged:
                return
            number, entry = self._last()
            self._put(number, entry, staged)
            new = [item for item in staged if item.epoch > entry["through"]]
            if not new:
                return
            entry = {"through": new[-1].epoch, "batches": [item.name for item in new]}
            if self._staging.objects.create(f"log/{number + 1:010d}", json.dumps(entry).encode()):
                self._put(number + 1, entry, new)
                self._staging.objects.delete([f"log/{number:010d}"] if number else [])
                return
        raise MillWheelError(f"{self._sink}: other drivers came first {_ATTEMPTS} times: run one of them")

    def _last(self) -> tuple[int, dict[str, Any]]:
        """Return the newest entry of the log, and its number."""
        entries = self._staging.objects.list("log/")
        if not entries:
            return 0, {"through": 0, "batches": []}
        name = entries[-1].name
        data = self._staging.objects.get(name)
        return int(name.rpartition("/")[2]), json.loads(data or b'{"through": 0, "batches": []}')

    def _put(self, number: int, entry: dict[str, Any], staged: list[StagedObject]) -> None:
        """Put the objects of an entry, unless they are there; remove its batches."""
        there = {item.name: item for item in staged}
        left = [there[name] for name in entry["batches"] if name in there]
        if left and len(left) == len(entry["batches"]):
            assert self._target is not None
            for name, data in self._render([item.read() for item in left]):
                self._target.put(name.format(f"{self._origin[:8]}-{number:010d}"), data)
        self._staging.objects.delete([item.name for item in left])


def staging(url: str, origin: str, sink: str) -> ObjectStaging:
    """Return where tasks stage what they write for a prefix, one place for each store."""
    return ObjectStaging(below(url, f"_millwheel/{origin}"), sink)


publishers: dict[str, ObjectPublisher] = {}
"""Those of this process, by prefix."""


def object_publisher(url: str, sink: str, render: Render) -> ObjectPublisher:
    """Return this process's publisher of a prefix: the sinks of several streams may share one."""
    if url not in publishers:
        publishers[url] = ObjectPublisher(url, sink, render)
    return publishers[url]


def close(url: str) -> None:
    """Publish all that is committed, and forget the publisher; one that never began has nothing."""
    if url in publishers:
        publishers.pop(url).close()
