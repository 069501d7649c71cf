"""Objects of committed epochs, each put once as a whole, on object storage.

    PREFIX/part-*                          the published objects
    PREFIX/_millwheel/STORE/staged/...     the tasks' batches, by epoch and shard
    PREFIX/_millwheel/STORE/log/N          commit N: its epochs, and their batches

1. Tasks stage their batches. *Crash*: the epoch is run again, and stages the same.
2. The epoch is committed in the journal. *Crash*: the next driver finds them staged, and does 3.
3. The driver puts entry N + 1 of the log, if it does not exist. *It exists*: another driver was first; this
   one starts again after it. *Crash*: the next driver finds the entry, and does 4 with the same batches.
4. It puts the objects of the entry. Their names have its number, so that a retry puts the same again.
5. It removes the batches, then older entries. *Crash*: missing batches of an entry show that 4
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
from millwheel.sinks.schedule import Schedule

Render = Callable[[Sequence[bytes]], list[tuple[str, bytes]]]
"""Batches to objects: a name with ``{}`` for the number, and the bytes of each."""

_ATTEMPTS = 20  # at an entry: this many other drivers would have to be first


class ObjectPublisher:
    """Publishes to a prefix, in the driver, for all sinks that write there."""

    def __init__(self, url: str, sink: str, render: Render) -> None:
        self._url = url
        self._sink = sink
        self._render = render
        self.schedule = Schedule(self._publish)
        self._origin = ""
        self._staging = ObjectStaging(url, sink)
        self._target: Objects | None = None

    def begin(self, origin: str, epoch: int, every: float, size: int) -> None:
        """Publish committed epochs that the last driver left staged."""
        self._staging = staging(self._url, origin, self._sink)
        with self.schedule.begin(self._staging, epoch, every, size):
            self._target = open_objects(self._url, error=MillWheelError)
            self._origin = origin

    def _publish(self) -> None:
        for _ in range(_ATTEMPTS):
            staged = self._staging.batches(0, self.schedule.committed)
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
        """Put the missing objects of an entry; remove its batches."""
        there = {item.name: item for item in staged}
        left = [there[name] for name in entry["batches"] if name in there]
        if left and len(left) == len(entry["batches"]):
            assert self._target is not None
            for name, data in self._render([item.read() for item in left]):
                self._target.put(name.format(f"{self._origin[:8]}-{number:010d}"), data)
        self._staging.objects.delete([item.name for item in left])


def staging(url: str, origin: str, sink: str) -> ObjectStaging:
    """Return the staging for a prefix, one for each store."""
    return ObjectStaging(below(url, f"_millwheel/{origin}"), sink)


publishers: dict[str, ObjectPublisher] = {}
"""The publishers of this process, by prefix."""


def begin(
    url: str, sink: str, render: Render, origin: str, epoch: int, every: float, size: int
) -> ObjectStaging:
    """Prepare a prefix, and return its staging for tasks.

    A process has one publisher of a prefix: the sinks of several streams may share it.
    """
    place = staging(url, origin, sink)
    place.open()
    if url not in publishers:
        publishers[url] = ObjectPublisher(url, sink, render)
    publishers[url].begin(origin, epoch, every, size)
    return place


def commit(url: str, epoch: int) -> None:
    """Schedule the publication of an epoch's batches for a prefix."""
    publishers[url].schedule.commit(epoch)


def close(url: str) -> None:
    """Publish all that is committed, and drop the publisher, if there is one."""
    if url in publishers:
        publishers.pop(url).schedule.close()
