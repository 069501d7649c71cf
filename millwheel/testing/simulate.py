"""A simulator: a pipeline under random failures from a seed, in this process.

The driver, the worker and the store's protocol are the real ones; the processes, the clock, the network
and the failures are simulated, and one seed decides all of them (see `millwheel.testing.faults`). A run
under faults must end with the records and the states of an undisturbed one.

    python -m millwheel.testing.simulate my_pipelines:make --seeds 1000
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

from millwheel.errors import EngineError, FencedError, MillWheelError, PipelineError
from millwheel.master.driver import Driver
from millwheel.master.intervals import Cuts
from millwheel.master.options import Options
from millwheel.model.codec import unpack
from millwheel.model.graph import Graph, build
from millwheel.model.pipeline import Pipeline
from millwheel.store.base import Store
from millwheel.store.keyspace import JournalKey, after, row_prefix
from millwheel.store.memory import MemoryStore
from millwheel.store.row import Row
from millwheel.store.tools.check import check as check_store
from millwheel.store.window_row import by_key
from millwheel.testing.faults import NO_FAULTS, Faults, World
from millwheel.testing.outcome import Simulated, compare
from millwheel.testing.simulated_executor import SHARDS, Mishap, SimulatedExecutor
from millwheel.testing.taps import Taps


class SimulationFailure(AssertionError):
    """A schedule did not end like the undisturbed run; the message has the command."""

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
    store: MakeStore | None = None,
) -> Counter[str]:
    """Runs a pipeline once a seed; fails if one differs from the undisturbed run.

    ``make`` builds the pipeline again, injectors included, as a restarted process does; its injectors must
    end. ``check`` replaces the comparison if a pipeline's results differ by themselves (for example, they
    depend on the clock, or on random numbers): it raises AssertionError for a wrong run.
    ``variants`` are pipelines that it changes to and from while it runs: the parts of ``make`` must not be
    affected by others that come and go. It begins as ``first``, and never becomes that again. ``store`` makes
    an empty store with a number of shards for a run; by default it is in memory, and the seed chooses its
    number of tablets. Returns how often each fault happened.

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
    store: MakeStore | None = None,
    variants: Sequence[Make] = (),
    first: Make | None = None,
) -> Simulated:
    """One run to the end of the input, under the faults of the seed.

    The seed also decides what user code gets from the module `random`.
    """
    before = random.getstate()
    random.seed(seed)
    try:
        with closing(store(SHARDS) if store is not None else _store(seed)) as base:
            return _run_schedule(make, World(seed, faults, base), variants, first or make)
    finally:
        random.setstate(before)


_TABLETS = (64, 64, 1_024, 256)  # of stores, by seed
_MOST_EPOCHS = 5_000  # of a run, which has some hundred: an error may repeat an epoch for ever


def _store(seed: int) -> Store:
    return MemoryStore(SHARDS, _TABLETS[seed // 2 % len(_TABLETS)])


def _run_schedule(make: Make, world: World, variants: Sequence[Make], first: Make) -> Simulated:
    faults = world.faults
    taps = Taps(world)
    lows = _Lows()
    epochs = 0
    wanted = planned = first  # the requested pipeline, and that of the last plan

    def begin(is_now: Make) -> tuple[Driver, SimulatedExecutor]:
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
        return driver, SimulatedExecutor(world, driver.graph, driver)

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
                    is_now = wanted = make  # at the end it is the requested one
                    driver, executor = begin(is_now)
                    continue
                if plan is None:
                    raise EngineError("the pipeline waits for input: a simulation takes injectors that end")
                world.point()
                planned = is_now
                driver.run(plan, executor)
                lows.moved(driver)
                epochs += 1
                if epochs > _MOST_EPOCHS:
                    raise AssertionError(f"the run has not ended after {_MOST_EPOCHS:,} epochs")
                if world.happens("reshape"):
                    driver.lay_out(_reshaped(world, driver))
                if variants and world.happens("change"):
                    is_now = wanted = world.random.choice((make, *variants))
                    driver, executor = begin(is_now)
                elif driver.sources.level:
                    driver, executor = begin(is_now)
        except FencedError:
            if driver is not None and driver.layout.sequencer == _generation(world):
                raise  # no other driver has taken over
            world.happened["driver refused"] += 1
            return False
        except PipelineError:  # an epoch is not finished: the former pipeline must run once more
            if not variants:
                raise
            world.happened["change refused"] += 1
            wanted = planned
            return False
        except Mishap:
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
    """Random other intervals for some of the levels."""
    found: dict[int, tuple[Cuts, str]] = {}
    for level in range(1, len(driver.layout.intervals) + 1):
        if world.random.random() < 0.7:
            tablets = driver.store.tablets
            firsts = {0, *(world.random.randrange(tablets) for _ in range(world.random.randrange(6)))}
            cuts = [[first, world.random.randrange(driver.layout.slots)] for first in sorted(firsts)]
            found[level] = (cuts, "a whim of the seed")
    return found


def _generation(world: World) -> int:
    """The generation of the driver that owns the pipeline."""
    with world.base.journal.snapshot() as snapshot:
        data = snapshot.get(JournalKey.DRIVER)
    return int(unpack(data)[0]) if data is not None else 0


class _Lows:
    """The last committed low watermarks, of any driver: they never go back."""

    def __init__(self) -> None:
        self._lows: dict[str, int] = {}
        self._epoch = 0

    def moved(self, driver: Driver) -> None:
        """Checks the watermarks after a driver's commit."""
        lows = driver.authority.lows
        if driver.epoch <= self._epoch:
            return  # its commit came first, but this thread reports it late
        for name, low in lows.items():
            if low < self._lows.get(name, low):
                raise AssertionError(
                    f"computation {name!r}: epoch {driver.epoch} brought the low watermark back from "
                    f"{self._lows[name]} to {low}"
                )
        self._lows, self._epoch = dict(lows), driver.epoch


class _Sizes:
    """Epochs of random sizes: the bound changes each time it is read."""

    aim = 1.0

    def __init__(self, world: World, *, chaotic: bool) -> None:
        self._world = world
        self._chaotic = chaotic

    @property
    def bound(self) -> int:
        return self._world.random.randrange(1, 40) if self._chaotic else 50

    def learn(self, records: int, seconds: float, waiting: int) -> None:
        """Does nothing: time has no meaning here."""


def _read(world: World, graph: Graph, taps: Taps) -> Simulated:
    """Reads the store and the sinks."""
    rows: dict[str, dict[str, Row]] = {name: {} for name in graph.nodes}
    states: dict[str, dict[str, Any]] = {name: {} for name in graph.nodes}
    with world.base.journal.snapshot() as journal:
        data = journal.get(JournalKey.NUMBERS)
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
    """The command that replays a schedule."""
    module = make.__module__
    if module == "__main__":
        module = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    return f"python -m millwheel.testing.simulate {module}:{make.__qualname__} --seed {seed}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; 0 if every schedule ended like the undisturbed run."""
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
