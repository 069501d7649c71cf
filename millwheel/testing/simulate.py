"""A simulator: a pipeline under every failure that a seed can think of, in this process.

The driver, the worker and the store's protocol are the real ones; the processes, the clock, the network
and the failures are simulated, and one seed decides all of them (see `millwheel.testing.faults`). A run
under faults must end with the records and the states of an undisturbed one.

    python -m millwheel.testing.simulate my_pipelines:make --seeds 1000
"""

from __future__ import annotations

import argparse
import importlib
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from millwheel.errors import EngineError, FencedError, InputError, MillWheelError, PipelineError
from millwheel.master.driver import Driver
from millwheel.master.intervals import Cuts
from millwheel.master.options import Options
from millwheel.model.codec import unpack
from millwheel.model.graph import Graph, build
from millwheel.model.keys import TABLETS
from millwheel.model.pipeline import Pipeline
from millwheel.store.base import Store
from millwheel.store.keyspace import after, row_prefix
from millwheel.store.memory import MemoryShard, MemoryStore
from millwheel.store.row import Row
from millwheel.store.tools.check import check as check_store
from millwheel.store.windows import by_key
from millwheel.testing.faults import NO_FAULTS, Faults, Lost, World
from millwheel.testing.outcome import Simulated, compare
from millwheel.testing.stale import go_on
from millwheel.testing.taps import Taps
from millwheel.worker.cache import Cache
from millwheel.worker.commit import Deferred, committed, settle, weak_levels
from millwheel.worker.envelope import Frame
from millwheel.worker.epoch import inject, run_epoch, run_level
from millwheel.worker.plan import Plan
from millwheel.worker.step import Worker

_SHARDS = 4
_TASK_ATTEMPTS = 4
_JOB_ATTEMPTS = 25
_RESIDENT = 0.5  # of the compact epochs are for a resident task


class SimulationFailure(AssertionError):
    """A schedule did not end as the undisturbed run; the message says how to run it again."""

    def __init__(self, message: str, seed: int) -> None:
        super().__init__(message)
        self.seed = seed


Make = Callable[[], Pipeline]
MakeStore = Callable[[int], Store]
Check = Callable[[Simulated], None]


def simulate(
    make: Make,
    *,
    seeds: Iterable[int] = range(100),
    faults: Faults | None = None,
    check: Check | None = None,
    variants: Sequence[Make] = (),
    first: Make | None = None,
    store: MakeStore = MemoryStore,
) -> Counter[str]:
    """Runs a pipeline once for each seed, and fails where a run ends otherwise than the undisturbed one.

    ``make`` builds the pipeline anew, injectors included, as a restarted process does; its injectors must
    end. ``check`` takes the place of the comparison where a pipeline's results differ by themselves (they
    depend on the clock, say, or on random numbers): it raises AssertionError for a run that is wrong.
    ``variants`` are pipelines that it becomes, and ceases to be, while it runs: what ``make`` has must not
    feel that others come and go. It begins as ``first``, and never becomes that again. ``store`` makes an
    empty store of so many shards for a run; as a rule that is one in memory. Returns how often each fault
    was.

    >>> import millwheel as mw
    >>> class Counts(mw.Computation):
    ...     def process_record(self, record):
    ...         self.state["n"] = self.state.get("n", 0) + 1
    >>> def make():
    ...     p = mw.Pipeline("counting")
    ...     records = [mw.Record(key=f"key {i % 3}", value=i, timestamp=i) for i in range(9)]
    ...     p.inject("numbers", mw.injectors.Records(records, per_epoch=2))
    ...     p.add(Counts(), inputs={"numbers": mw.by_key})
    ...     return p
    >>> sum(simulate(make, seeds=range(5)).values()) > 0
    True
    """
    expected = run_schedule(make, 0, NO_FAULTS, store)
    if check is not None:
        check(expected)
    happened: Counter[str] = Counter()
    for seed in seeds:
        try:
            result = run_schedule(make, seed, faults or Faults(), store, variants, first)
            if check is not None:
                check(result)
            else:
                compare(expected, result)
        except Exception as error:
            raise SimulationFailure(
                f"seed {seed}: {type(error).__name__}: {error}\nrun it again: {_command(make, seed)}", seed
            ) from error
        happened += result.happened
    return happened


def run_schedule(
    make: Make,
    seed: int,
    faults: Faults,
    store: MakeStore = MemoryStore,
    variants: Sequence[Make] = (),
    first: Make | None = None,
) -> Simulated:
    """One run to the end of the input, under the faults that the seed decides."""
    with closing(store(_SHARDS)) as base:
        return _run_schedule(make, World(seed, faults, base), variants, first or make)


def _run_schedule(make: Make, world: World, variants: Sequence[Make], first: Make) -> Simulated:
    faults = world.faults
    taps = Taps(world)
    lows = _Lows()
    epochs = 0
    wanted = planned = first  # what somebody wants it to be, and what it was when it last planned

    def begin(is_now: Make) -> tuple[Driver, _Executor]:
        chaotic = faults.most > 0
        choose = world.random.choice
        driver = Driver(
            taps.tap(build(is_now())),
            world.store(),
            Options(
                slots=choose((1, 2, 3, 4)) if chaotic else 2,
                due_limit=choose((1, 3, 1000)) if chaotic else 1000,
                compact_below=choose((0, 10, 4000)) if chaotic else 4000,
            ),
            clock=world.clock,
            owner="a simulated driver",
        )
        driver.sizer = _Sizes(world, chaotic=chaotic)  # type: ignore[assignment]
        return driver, _Executor(world, driver.graph, driver)

    def drive() -> bool:
        nonlocal epochs, wanted, planned
        driver: Driver | None = None
        if variants and world.happens("change"):  # while nothing ran
            wanted = world.random.choice((make, *variants))
        is_now = wanted
        try:
            driver, executor = begin(is_now)
            while (
                (plan := driver.next_plan_to_the_end()) is not None or not driver.ended or is_now is not make
            ):
                if plan is None and driver.ended:
                    is_now = wanted = make  # in the end it is what it is to be
                    driver, executor = begin(is_now)
                    continue
                if plan is None:
                    raise EngineError("the pipeline waits for input: a simulation takes injectors that end")
                world.point()
                planned = is_now
                driver.run(plan, executor)
                lows.moved(driver)
                epochs += 1
                if world.happens("reshape"):
                    driver.lay_out(_reshaped(world, driver))
                if variants and world.happens("change"):
                    is_now = wanted = world.random.choice((make, *variants))
                    driver, executor = begin(is_now)
                elif driver.sources.level:
                    driver, executor = begin(is_now)
        except FencedError:
            if driver is not None and driver.layout.sequencer == _generation(world):
                raise  # by whom? nobody has taken over
            world.happened["driver refused"] += 1
            return False
        except PipelineError:  # an epoch is not finished, and says to run the former pipeline once more
            if not variants:
                raise
            world.happened["change refused"] += 1
            wanted = planned
            return False
        except _Mishap:
            return False
        return True

    world.run(drive)
    wrong = check_store(world.base).problems
    if wrong:
        raise AssertionError(f"the store is not sound: {'; '.join(wrong[:3])}")
    result = _read(world, build(make()), taps)
    result.epochs = epochs
    return result


def _reshaped(world: World, driver: Driver) -> dict[int, tuple[Cuts, str]]:
    """Any other intervals for some of the levels."""
    found: dict[int, tuple[Cuts, str]] = {}
    for level in range(1, len(driver.layout.intervals) + 1):
        if world.random.random() < 0.7:
            firsts = {0, *(world.random.randrange(TABLETS) for _ in range(world.random.randrange(6)))}
            cuts = [[first, world.random.randrange(driver.layout.slots)] for first in sorted(firsts)]
            found[level] = (cuts, "a whim of the seed")
    return found


def _generation(world: World) -> int:
    """Of the driver that owns the pipeline."""
    with world.base.journal.snapshot() as snapshot:
        data = snapshot.get(b"driver")
    return int(unpack(data)[0]) if data is not None else 0


class _Mishap(InputError):
    """Somebody mends what it was; then a driver is started again."""


class _Lows:
    """The low watermarks that were committed last, by whatever driver: they never go back (invariant 5)."""

    def __init__(self) -> None:
        self._lows: dict[str, int] = {}
        self._epoch = 0

    def moved(self, driver: Driver) -> None:
        """Looks at the watermarks after an epoch that a driver has committed."""
        lows = driver.authority.lows
        if driver.epoch <= self._epoch:
            return  # its commit came first, but this thread is late to tell
        for name, low in lows.items():
            if low < self._lows.get(name, low):
                raise AssertionError(
                    f"computation {name!r}: epoch {driver.epoch} brought the low watermark back from "
                    f"{self._lows[name]} to {low}"
                )
        self._lows, self._epoch = dict(lows), driver.epoch


class _Sizes:
    """Epochs of any size: the bound is another one each time that it is looked at."""

    aim = 1.0

    def __init__(self, world: World, *, chaotic: bool) -> None:
        self._world = world
        self._chaotic = chaotic

    @property
    def bound(self) -> int:
        return self._world.random.randrange(1, 40) if self._chaotic else 50

    def learn(self, records: int, seconds: float, waiting: int) -> None:
        """Time means nothing here."""


_ROOM = (1_000, 10_000_000)  # bytes of a cache: most must go after each step, and nothing ever


def _caches(seed: int) -> list[Cache | None]:
    """Of two workers: none, one for each, or one for both; by the seed, which then decides nothing else."""
    kind, room = seed % 3, _ROOM[seed // 3 % 2]
    if not kind:
        return [None, None]
    shelves = [[MemoryShard([]) for _ in range(_SHARDS)] for _ in range(2)]
    return [Cache((shelves[0] if kind == 1 else mine).__getitem__, room) for mine in shelves]


class _Executor:
    """Runs the tasks of an epoch in any order, some of them more than once, on one of several workers."""

    job: int | None = None

    def __init__(self, world: World, graph: Graph, driver: Driver) -> None:
        self._world = world
        self._graph = graph
        self._driver = driver
        self._caches = _caches(world.seed)
        self._workers = [self._new_worker(number) for number in range(2)]

    def _new_worker(self, number: int) -> Worker:
        """A process on the same executor: the cache is still there."""
        world = self._world
        cache = self._caches[number]
        return Worker(self._graph, self._driver.numbers, world.store(), world.random, world.ticks, cache)

    def execute(self, plan: Plan) -> list[Frame]:
        for _ in range(_JOB_ATTEMPTS):
            try:
                return self._job(plan.to_bytes(), plan)
            except Lost:
                self._world.happened["job given up"] += 1
        raise EngineError("every attempt at a job was lost")

    def close(self) -> None:
        """Nothing is held."""

    def _job(self, data: bytes, plan: Plan) -> list[Frame]:
        depth = len(self._graph.levels)
        if plan.compact or not depth:
            if self._world.happens("fail"):
                return [self._mishap()]
            frames = self._ask_resident(data) if self._world.random.random() < _RESIDENT else None
            return self._task(partial(_run_whole, data)) if frames is None else frames
        slots = range(plan.slots)
        sent = {task: self._task(partial(_inject, data, task)) for task in self._shuffled(range(plan.tasks))}
        for level in range(1, depth + 1):
            if self._world.happens("fail"):
                return [self._mishap()]
            arrived = {slot: [sent[sender][slot] for sender in self._shuffled(sent)] for slot in slots}
            sent = {
                slot: self._task(partial(_run_level, data, level, slot, arrived[slot]))
                for slot in self._shuffled(slots)
            }
        last = [sent[slot][slot] for slot in slots]
        if not any(frame.error for frame in last):
            self._settle(plan)
        return last

    def _ask_resident(self, data: bytes) -> list[Frame] | None:
        """What a resident task answers to a compact epoch; None where it is gone, or taken for dead."""
        world = self._world
        if world.happens("stale"):
            worker = self._new_worker(world.random.randrange(len(self._workers)))
            world.spawn(partial(go_on, world, partial(_run_whole, data, worker)))
            return None
        try:
            frames = self._attempt(partial(_run_whole, data))
        except Lost:
            return None
        return None if world.happens("silent") else frames

    def _settle(self, plan: Plan) -> None:
        """What weak levels have not written yet; where a worker has died with it, the epoch is run again.

        As on Spark, a level's writes wait until every later level has committed, whoever ran that.
        """
        deferred = [one for worker in self._workers for one in worker.take_deferred(plan)]
        depth = len(self._graph.levels)
        for level in sorted({one.level for one in deferred}, reverse=True):
            if not committed(self._driver.store, plan, range(level + 1, depth + 1)):
                raise Lost
            for one in deferred:
                if one.level == level:
                    self._settle_one(one)
        if not committed(self._driver.store, plan, weak_levels(self._graph)):
            raise Lost

    def _settle_one(self, deferred: Deferred) -> None:
        """One such write, in the task that has it: it may be lost with it."""
        self._world.point()
        self._world.current.in_task = True
        try:
            settle([deferred])
        except Lost:
            pass  # found missing below
        finally:
            self._world.current.in_task = False

    def _mishap(self) -> Frame:
        return Frame(1, 0, {}, error=pickle.dumps(_Mishap("this input, or this hook, is to be mended")))

    def _task(self, run: Callable[[Worker], list[Frame]]) -> list[Frame]:
        """One task: tried again where an attempt is lost, given up after four."""
        world = self._world
        for _ in range(_TASK_ATTEMPTS):
            try:
                answer = self._attempt(run)
            except Lost:
                continue
            if world.happens("repeat"):
                try:
                    second = self._attempt(run)
                except Lost:
                    return answer
                answer = world.random.choice((answer, second))
            return answer
        raise Lost

    def _attempt(self, run: Callable[[Worker], list[Frame]]) -> list[Frame]:
        world = self._world
        number = world.random.randrange(len(self._workers))
        world.point()
        world.current.in_task = True
        try:
            return _carried(run(self._workers[number]))
        except Lost:
            self._workers[number] = self._new_worker(number)
            raise
        finally:
            world.current.in_task = False

    def _shuffled(self, items: Iterable[int]) -> list[int]:
        order = list(items)
        self._world.random.shuffle(order)
        return order


def _run_whole(plan: bytes, worker: Worker) -> list[Frame]:
    return run_epoch(worker, Plan.from_bytes(plan), pickle.dumps)


def _inject(plan: bytes, task: int, worker: Worker) -> list[Frame]:
    return inject(worker, Plan.from_bytes(plan), task, pickle.dumps)


def _run_level(plan: bytes, level: int, slot: int, arrived: list[Frame], worker: Worker) -> list[Frame]:
    return run_level(worker, Plan.from_bytes(plan), level, slot, _carried(arrived), pickle.dumps)


def _carried(frames: Sequence[Frame]) -> list[Frame]:
    """Frames as they come out of the wire."""
    return [Frame.from_bytes(frame.to_bytes()) for frame in frames]


def _read(world: World, graph: Graph, taps: Taps) -> Simulated:
    """What is in the store and behind the sinks."""
    rows: dict[str, dict[str, Row]] = {name: {} for name in graph.nodes}
    states: dict[str, dict[str, Any]] = {name: {} for name in graph.nodes}
    with world.base.journal.snapshot() as journal:
        data = journal.get(b"numbers")
    numbers: dict[str, int] = unpack(data) if data is not None else {}
    for name, node in graph.nodes.items():
        prefix = row_prefix(numbers[name])
        for shard in world.base.shards:
            with shard.snapshot() as snapshot:
                entries = list(snapshot.scan(prefix, after(prefix)))
            for key, row in by_key(entries, prefix):
                rows[name][key] = row
                if row.state is not None:
                    states[name][key] = node.computation.codec.decode(row.state)
    outputs = {stream: taps.records(stream) for stream in graph.streams}
    return Simulated(outputs, states, rows, world.happened)


def _command(make: Make, seed: int) -> str:
    """What replays a schedule."""
    module = make.__module__
    if module == "__main__":
        module = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    return f"python -m millwheel.testing.simulate {module}:{make.__qualname__} --seed {seed}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0 if every schedule ended as the undisturbed run."""
    parser = argparse.ArgumentParser(
        prog="python -m millwheel.testing.simulate",
        description="Runs a pipeline under simulated failures, one schedule for each seed.",
        epilog="Example: python -m millwheel.testing.simulate my_pipelines:make --seeds 1000",
    )
    parser.add_argument("pipeline", metavar="MODULE:FACTORY", help="a function that returns the pipeline")
    parser.add_argument("--seeds", type=int, default=100, help="how many schedules (default: 100)")
    parser.add_argument("--seed", type=int, help="this schedule only")
    options = parser.parse_args(arguments)
    sys.path.insert(0, os.getcwd())
    module, _, name = options.pipeline.partition(":")
    try:
        make: Any = importlib.import_module(module)
        for part in name.split("."):
            make = getattr(make, part)
    except (ImportError, AttributeError, ValueError) as error:
        print(f"{options.pipeline} is not MODULE:FACTORY ({error})", file=sys.stderr)
        return 2
    seeds = range(options.seeds) if options.seed is None else [options.seed]
    try:
        given = {name: getattr(make, name) for name in ("check", "variants", "first") if hasattr(make, name)}
        happened = simulate(make, seeds=seeds, **given)
    except (SimulationFailure, PipelineError, MillWheelError) as error:
        print(error, file=sys.stderr)
        return 1
    print(
        f"{len(seeds)} schedules, all as undisturbed: "
        + ", ".join(f"{n} {w}" for w, n in sorted(happened.items()))
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
