"""A store on object storage as several hosts see it, on a network that one seed decides.

Each host has working copies of its own. Requests are lost, before they are carried out or behind it, come
twice, or late; lists are behind. Copies are lost, snapshots are taken, and the log is removed behind them.
Blocks are small, so that copies have gaps, of which some are closed at any moment.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from millwheel.objects import Entry, Unanswered
from millwheel.store.base import Get, Shard, Store
from millwheel.store.memory import MemoryShard
from millwheel.store.objects.blocks import PartGone
from millwheel.store.objects.gaps import number_entry, number_of
from millwheel.store.objects.log import Log, Puts
from millwheel.store.objects.shard import Clocks, ObjectShard
from millwheel.store.objects.snapshots import Snapshots
from millwheel.store.objects.working_copy import Moved

HOSTS = 3
GRACE = 150.0
"""In requests: the clock counts them."""
_BEHIND = 60  # requests that a list is behind at most


class Network:
    """Objects in memory, behind a network on which requests are lost, come twice, or late."""

    name = "simulated://"

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self.time = 0
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._removed: dict[str, int] = {}
        """When objects were removed that a list may still have."""
        self._late: list[Callable[[], bool]] = []

    def _tick(self) -> None:
        self.time += 1
        if self._late and self.random.random() < 0.05:
            arrived = self._late.pop(self.random.randrange(len(self._late)))()
            self.happened["late, taken" if arrived else "late, refused"] += 1

    def _create(self, name: str, data: bytes) -> bool:
        if name in self._objects:
            return False
        self._objects[name] = (data, self.time)
        return True

    def create(self, name: str, data: bytes) -> bool:
        self._tick()
        chance = self.random.random()
        if chance < 0.02:
            self.happened["refused"] += 1
            raise Unanswered("503 Slow Down")
        if chance < 0.04:
            self.happened["late"] += 1
            self._late.append(partial(self._create, name, data))
            raise Unanswered("the connection was cut")
        done = self._create(name, data)
        if chance < 0.06:
            self.happened["lost"] += 1
            raise Unanswered("the answer was lost")
        if chance < 0.08:
            self.happened["repeated"] += 1
            return self._create(name, data)
        return done

    def put(self, name: str, data: bytes) -> None:
        self._tick()
        self._objects[name] = (data, self.time)

    def get(self, name: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        self._tick()
        found = self._objects.get(name)
        if "/parts/" in name:
            self.happened["part read" if found is not None else "part gone"] += 1
        return None if found is None else found[0][start : None if length is None else start + length]

    def list(self, prefix: str, after: str = "", most: int | None = None) -> list[Entry]:
        self._tick()
        seen = self.time
        if self.random.random() < 0.3:
            self.happened["behind"] += 1
            seen -= self.random.randrange(_BEHIND)
        names = [
            name
            for name, (_, made) in self._objects.items()
            if name.startswith(f"{prefix}/") and name > after and made <= seen
        ]
        return [Entry(name, len(self._objects[name][0]), self._objects[name][1]) for name in sorted(names)][
            :most
        ]

    def delete(self, names: Sequence[str]) -> None:
        self._tick()
        for name in names:
            if self._objects.pop(name, None) is not None:
                self.happened["removed"] += 1


class MemoryCopy:
    """A working copy in memory, as one host has it."""

    def __init__(self) -> None:
        self._shard: MemoryShard | None = None

    @property
    def shard(self) -> Shard:
        assert self._shard is not None
        return self._shard

    def number(self) -> int | None:
        return None if self._shard is None else number_of(self._shard.get)

    def apply(self, number: int, puts: Puts, deletes: Sequence[bytes]) -> None:
        def guard(get: Get) -> None:
            if number_of(get) != number - 1:
                raise Moved

        with suppress(Moved):
            self.shard.write([*puts, number_entry(number)], deletes, guard)

    def replace(self, fill: Callable[[Shard], None]) -> None:
        made = MemoryShard([])
        fill(made)
        self._shard = made

    def discard(self) -> None:
        self._shard = None

    @contextmanager
    def courtesy(self) -> Iterator[None]:
        yield

    def close(self) -> None:
        """Nothing is held."""


class _Shard:
    """A shard as one host reaches it: between two requests its copy may be lost, or a snapshot is taken."""

    def __init__(self, network: Network, shard: ObjectShard, copy: MemoryCopy) -> None:
        self._network = network
        self._shard = shard
        self._copy = copy

    @contextmanager
    def snapshot(self) -> Iterator[object]:
        if self._network.random.random() < 0.02:
            self._network.happened["copy lost"] += 1
            self._copy.discard()
        elif self._network.random.random() < 0.05:
            self._fill_in_part()
        with self._shard.snapshot() as snapshot:
            yield snapshot

    def _fill_in_part(self) -> None:
        """Closes some gaps of the copy, as a process does that is killed in the middle."""
        if self._copy.number() is not None and self._shard.lazy.base() is not None:
            with suppress(PartGone):  # it is found out when a step needs it
                for _ in itertools.islice(
                    self._shard.lazy.close_gaps(), self._network.random.randrange(1, 8)
                ):
                    self._network.happened["gap closed"] += 1

    def write(self, *arguments: object, **options: object) -> None:
        self._shard.write(*arguments, **options)  # type: ignore[arg-type]
        if self._network.random.random() < 0.05:
            self._network.happened["snapshot"] += 1
            with suppress(Unanswered):  # the next one comes soon
                self._shard.checkpoint()


class _Handle(Store):
    """The store as one host has it."""

    def __init__(self, network: Network, shards: int) -> None:
        self.address = network.name
        made = [_shard(network, number) for number in range(shards + 1)]
        self.journal = made[0]  # type: ignore[assignment]
        self.shards = made[1:]  # type: ignore[assignment]

    def lock(self, owner: str, *, takeover: bool = False) -> None:
        """Nobody is kept out."""

    def close(self) -> None:
        """Nothing is held."""

    def size(self) -> int:
        return 0


def _shard(network: Network, number: int) -> _Shard:
    folder = f"shard-{number}" if number else "journal"
    width = 4 if number else 1
    copy = MemoryCopy()
    log = Log(network, "store", folder, patience=1e9, clock=lambda: network.time, pause=lambda seconds: None)
    log.each = map  # type: ignore[method-assign, assignment]
    shard = ObjectShard(
        log,
        copy,  # type: ignore[arg-type]
        Snapshots(network, "store", folder, width, block=100),
        width=width,
        grace=GRACE,
        clocks=Clocks(lambda: network.time, lambda: network.time),
        background=False,
        first=500,
    )
    return _Shard(network, shard, copy)


class Hosts(_Handle):
    """The store; `handle` gives it to a process, which runs on one of the hosts."""

    def __init__(self, shards: int, seed: int) -> None:
        self.network = Network(seed)
        super().__init__(self.network, shards)
        self._hosts = [_Handle(self.network, shards) for _ in range(HOSTS)]

    def handle(self) -> Store:
        return self.network.random.choice(self._hosts)
