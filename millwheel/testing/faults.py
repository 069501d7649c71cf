"""Failures, decided by one seed: the world of a simulated pipeline.

Drivers are threads of which one runs at a time. At every point at which a real process could die or be
stopped (before and after each write, before each read of the journal, between tasks) the seed decides
which one continues, and whether something fails. The same seed gives the same run.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from millwheel.errors import MillWheelError
from millwheel.store.base import Guard, Range, Shard, Snapshot, SnapshotLost, Store
from millwheel.worker.commit import AlreadyCommitted


class Lost(BaseException):
    """An attempt at a task died, with or without its write; never caught under test."""


class Killed(BaseException):
    """A driver and all its tasks died; never caught under test."""


@dataclass(frozen=True)
class Faults:
    """The probability of each fault at each point, and ``most`` faults in total."""

    kill: float = 0.01
    """A driver dies, its tasks with it; a new one starts on the same store."""
    pause: float = 0.01
    """A driver is suspended while another one takes over; then it resumes."""
    lose: float = 0.03
    """An attempt at a task dies, before its write or after it."""
    late: float = 0.03
    """An attempt is presumed lost, and its write arrives later."""
    repeat: float = 0.05
    """A task is run again though the first attempt has answered; either may count."""
    fail: float = 0.03
    """An epoch fails for a reason that is fixed before the next driver starts."""
    raises: float = 0.03
    """A hook raises in one task of a level, whatever the others do; fixed before the next start."""
    silent: float = 0.1
    """A resident task has run a compact epoch, and its answer is lost."""
    stale: float = 0.1
    """A resident task is presumed dead, and continues beside its replacement."""
    slow: float = 0.02
    """A hook takes so long that its step leaves the rest of its records."""
    cut: float = 0.02
    """The store is cut off during a step's read, or a write, which it then repeats."""
    jump: float = 0.1
    """The clock jumps, forwards or backwards."""
    reshape: float = 0.2
    """Between two epochs, key intervals are moved, split and merged."""
    change: float = 0.1
    """Between two epochs the pipeline changes to another one of its variants."""
    most: int = 12


NO_FAULTS = Faults(most=0)

_ENDLESS = 10_000  # turns: a schedule has some hundred


class Actor(threading.Thread):
    """A driver's process, which runs only in its turn."""

    def __init__(self, world: World, body: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.turn = threading.Semaphore(0)
        self.over = False
        self.in_task = False
        self.error: BaseException | None = None
        self._world = world
        self._body = body

    def run(self) -> None:
        self.turn.acquire()
        try:
            self._body()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            self._world.back.release()


@dataclass
class _LateWrite:
    shard: Shard
    puts: list[tuple[bytes, bytes]]
    deletes: list[bytes]
    guard: Guard | None
    kept: bool


class World:
    """The store, the clock, and the turns of the actors."""

    def __init__(self, seed: int, faults: Faults, base: Store) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.faults = faults
        self.base = base
        self.back = threading.Semaphore(0)
        self.happened: Counter[str] = Counter()
        """By fault: how often it happened."""
        self._left = faults.most
        self._late: list[_LateWrite] = []
        self._actors: list[Actor] = []
        self._current: Actor | None = None
        self._wanted = 0
        self._time = 0
        self._ticks = 0.0

    def store(self) -> Store:
        """A process's own handle of the store."""
        return _SimulatedStore(self)

    def clock(self) -> int:
        """An unreliable wall clock."""
        self._time += self.random.randrange(1, 1_000)
        if self.happens("jump"):
            self._time += self.random.choice((-1, 1)) * self.random.randrange(1, 100_000_000)
        return self._time

    def ticks(self) -> float:
        """The clock of workers' steps, in seconds."""
        self._ticks += 10.0 if self.happens("slow") else 1e-6
        return self._ticks

    def happens(self, fault: str) -> bool:
        """Whether a fault happens here."""
        chance = getattr(self.faults, fault)
        if self._left <= 0 or not chance or self.random.random() >= chance:
            return False
        self._left -= 1
        self.happened[fault] += 1
        return True

    def run(self, body: Callable[[], bool]) -> None:
        """Runs drivers until one has finished everything, and all others have ended.

        ``body`` is the life of one driver; it returns whether all is done.
        """
        done = False

        def live() -> None:
            nonlocal done
            if body():
                done = True

        for _ in range(_ENDLESS):
            alive = [actor for actor in self._actors if not actor.over]
            for actor in self._actors:
                if actor.error is not None:
                    raise actor.error
            if (not alive and not done) or self._wanted:
                self._wanted = 0
                alive.append(self._start(live))
            if not alive:
                break
            self._current = self.random.choice(alive)
            self._current.turn.release()
            self.back.acquire()
        else:
            raise AssertionError("the schedule does not end: the drivers make no progress")
        while self._late:
            self._write_late()

    def spawn(self, body: Callable[[], None]) -> None:
        """Starts another process that takes turns with the drivers."""
        self._start(body)

    def _start(self, body: Callable[[], None]) -> Actor:
        actor = Actor(self, body)
        self._actors.append(actor)
        actor.start()
        return actor

    def point(self) -> None:
        """A point at which anything may happen to the current process."""
        if self._late and self.random.random() < 0.2:
            self._write_late()
        if self.happens("kill"):
            raise Killed
        if self.happens("pause"):
            self._wanted = 1
            self._yield()
        elif self.random.random() < 0.2 and sum(not actor.over for actor in self._actors) > 1:
            self._yield()

    def _yield(self) -> None:
        me = self.current
        self.back.release()
        me.turn.acquire()

    @property
    def current(self) -> Actor:
        """The current process."""
        assert self._current is not None
        return self._current

    def write(
        self,
        shard: Shard,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes],
        guard: Guard | None,
        *,
        kept: bool,
    ) -> None:
        """A write of the current process, which may be lost, late, or its last action."""
        puts, deletes = list(puts), list(deletes)
        self.point()
        in_task = self.current.in_task
        if in_task and self.happens("late"):
            self._late.append(_LateWrite(shard, puts, deletes, guard, kept))
            raise Lost
        if in_task and self.happens("lose"):
            raise Lost
        shard.write(puts, deletes, guard, kept=kept)
        if self.happens("cut"):
            shard.write(puts, deletes, guard, kept=kept)  # the first one had no answer
        if in_task and self.happens("lose"):
            raise Lost
        self.point()

    def _write_late(self) -> None:
        write = self._late.pop(self.random.randrange(len(self._late)))
        try:
            write.shard.write(write.puts, write.deletes, write.guard, kept=write.kept)
            self.happened["late, taken"] += 1
        except (MillWheelError, AlreadyCommitted):
            self.happened["late, refused"] += 1


class _SimulatedShard:
    """A shard as seen by one process."""

    def __init__(self, world: World, shard: Shard, *, journal: bool) -> None:
        self._world = world
        self._shard = shard
        self._journal = journal

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        if self._journal:
            self._world.point()
        with self._shard.snapshot() as snapshot:
            if self._world.current.in_task and self._world.happens("cut"):
                yield _CutSnapshot(snapshot, self._world.random.randrange(5))
            else:
                yield snapshot

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
        *,
        kept: bool = False,
    ) -> None:
        self._world.write(self._shard, puts, deletes, guard, kept=kept)


class _CutSnapshot:
    """A snapshot that is cut off after some reads."""

    def __init__(self, snapshot: Snapshot, left: int) -> None:
        self._snapshot = snapshot
        self._left = left

    def _read(self) -> Snapshot:
        if not self._left:
            raise SnapshotLost("the store was cut off")
        self._left -= 1
        return self._snapshot

    def get(self, key: bytes) -> bytes | None:
        return self._read().get(key)

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._read().get_each(keys)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._read().scan(start, stop)

    def prefetch(self, ranges: Sequence[Range]) -> None:
        self._read().prefetch(ranges)


class _SimulatedStore(Store):
    """A store that many drivers may open: only sequencers keep them apart.

    A store that differs by host gives a process its own with ``handle``.
    """

    def __init__(self, world: World) -> None:
        base: Store = world.base.handle() if hasattr(world.base, "handle") else world.base
        self.address = base.address
        self.tablets = base.tablets
        self.journal = _SimulatedShard(world, base.journal, journal=True)
        self.shards: Sequence[_SimulatedShard] = [
            _SimulatedShard(world, shard, journal=False) for shard in base.shards
        ]
        self._base = base

    def lock(self, owner: str, *, takeover: bool = False) -> None:
        """Refuses no one."""

    def close(self) -> None:
        """Does nothing: no resource is held."""

    def size(self) -> int:
        return self._base.size()
