"""The simulator can fail: each of these mistakes in the engine is found, by one seed or another."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millwheel.errors import FencedError
from millwheel.master import driver as driver_module
from millwheel.master import registry as roster_module
from millwheel.master.assignment import Layout
from millwheel.master.journal import Journal
from millwheel.model.codec import unpack
from millwheel.model.graph import Graph
from millwheel.store.base import Get, Snapshot
from millwheel.store.keyspace import checkpoint_key, interval_key
from millwheel.testing import Faults, SimulationFailure, simulate
from millwheel.testing.faults import Lost
from millwheel.watermark.authority import WatermarkAuthority
from millwheel.worker import cache as cache_module
from millwheel.worker import epoch
from millwheel.worker import fencing as fencing_module
from millwheel.worker import keyed as keyed_module
from millwheel.worker import step as step_module
from millwheel.worker.commit import IntervalState, Outcome, StepCommit
from millwheel.worker.route import Router
from millwheel.worker.seen_ids import SeenIds
from millwheel.worker.step import Worker
from tests.simulator import pipelines

_SEEDS = 400

Plant = Callable[[pytest.MonkeyPatch], None]


def _no_dedup(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SeenIds, "is_new", lambda self, stream, digest: True)


def _ids_not_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SeenIds, "writes", lambda self, *rest: ())


def _send_before_commit(patch: pytest.MonkeyPatch) -> None:
    """Productions leave although the write that they belong to did not come to pass."""
    original = step_module.Attempt.run

    def run(self: Any, *rest: Any) -> Outcome:
        outcome = original(self, *rest)
        self._worker.sent = outcome
        return outcome

    stepped = Worker.step

    def step(self: Any, *rest: Any, **options: Any) -> Outcome:
        self.sent = None
        try:
            return stepped(self, *rest, **options)
        except Lost:
            if self.sent is None:
                raise
            outcome: Outcome = self.sent
            return outcome

    patch.setattr(step_module.Attempt, "run", run)
    patch.setattr(Worker, "step", step)


def _no_sequencer_check(patch: pytest.MonkeyPatch) -> None:
    def state(self: StepCommit, get: Get) -> IntervalState:
        data = get(interval_key(self.level, self.interval.first))
        found = IntervalState(*unpack(data)) if data is not None else IntervalState(0, 0)
        if found.epoch > self.plan.epoch:
            raise FencedError("an old epoch")
        return found

    patch.setattr(StepCommit, "state", state)


def _no_epoch_check(patch: pytest.MonkeyPatch) -> None:
    """An epoch that an interval has committed is run on top of itself."""
    original = StepCommit.state

    def state(self: StepCommit, get: Get) -> IntervalState:
        found = original(self, get)
        if found.epoch == self.plan.epoch:
            found.epoch -= 1
        return found

    patch.setattr(StepCommit, "state", state)


def _checkpoint_without_productions(patch: pytest.MonkeyPatch) -> None:
    original = StepCommit.checkpoint

    def checkpoint(self: StepCommit, snapshot: Snapshot) -> Outcome:
        outcome = original(self, snapshot)
        return Outcome(outcome.lows, [], outcome.batches, outcome.report)

    patch.setattr(StepCommit, "checkpoint", checkpoint)


def _checkpoint_not_stored(patch: pytest.MonkeyPatch) -> None:
    original = step_module.Attempt.writes

    def writes(self: Any, outcome: Outcome) -> Any:
        puts, deletes = original(self, outcome)
        place = checkpoint_key(self._level, self._interval.first)
        return [put for put in puts if put[0] != place], deletes

    patch.setattr(step_module.Attempt, "writes", writes)


def _plan_not_journaled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "plan", lambda self, plan, graph: None)


def _journal_not_fenced(patch: pytest.MonkeyPatch) -> None:
    def write(self: Any, puts: Any, deletes: Any = (), more: Any = None) -> None:
        self._shard.write(puts, deletes, more)

    patch.setattr(Journal, "_write", write)


def _intervals_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """A new driver goes to work while the old one's tasks may still write."""
    patch.setattr(Layout, "fence", lambda *rest: None)
    _no_sequencer_check(patch)


def _fence_that_looks_once(patch: pytest.MonkeyPatch) -> None:
    """What a task writes between a new driver's look at an interval and its write is written over."""
    patch.setattr(fencing_module, "Moved", type("Ignored", (Exception,), {}))
    original = fencing_module.fence_shard

    def fence(shard: Any, mine: Any, sequencer: int) -> None:
        class Unguarded:
            snapshot = shard.snapshot

            @staticmethod
            def write(puts: Any, deletes: Any, guard: Any) -> None:
                shard.write(puts, deletes, None)

        original(Unguarded, mine, sequencer)  # type: ignore[arg-type]

    patch.setattr(fencing_module, "fence_shard", fence)


def _watermark_leads(patch: pytest.MonkeyPatch) -> None:
    """A receiver believes the fastest of its senders."""
    original = epoch.merge_watermarks

    def merge(plan: Any, frames: Any, level: int) -> dict[str, int]:
        merged = original(plan, frames, level)
        for frame, name in itertools.product(frames, merged):
            if level > 1 and name in frame.watermarks:
                merged[name] = max(merged[name], frame.watermarks[name])
        return merged

    patch.setattr(epoch, "merge_watermarks", merge)


def _watermarks_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WatermarkAuthority, "restore", lambda self, value: None)


def _sink_not_idempotent(patch: pytest.MonkeyPatch) -> None:
    """Every attempt writes under a name of its own."""
    numbers = itertools.count()
    original = epoch._write

    def write(sink: Any, epoch: int, batch: Any) -> None:
        original(sink, epoch, batch._replace(shard=next(numbers)))

    patch.setattr(epoch, "_write", write)


def _offsets_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The commit says that the epoch is over, and not how far it read."""
    original = Journal.commit

    def commit(self: Any, entry: Any, partitions: Any, *notes: Any) -> None:
        original(self, entry, [], *notes)

    patch.setattr(Journal, "commit", commit)


def _due_timers_hold_nothing(patch: pytest.MonkeyPatch) -> None:
    """Due timers that were left over do not hold the watermark."""
    original = keyed_module.KeyedRun.run

    def run(self: Any, *rest: Any) -> None:
        original(self, *rest)
        self.report.more_due = False

    patch.setattr(keyed_module.KeyedRun, "run", run)


def _cache_without_proof(patch: pytest.MonkeyPatch) -> None:
    """What a worker keeps is used though another one has written the interval since."""
    patch.setattr(cache_module, "proves", lambda kept, state, epoch: bool(kept.nonce))


def _cache_of_the_sequencer(patch: pytest.MonkeyPatch) -> None:
    """A cache is trusted as long as the interval has its owner, whoever worked for it."""
    patch.setattr(
        cache_module, "proves", lambda kept, state, epoch: kept.nonce and kept.sequencer == state.sequencer
    )


def _cache_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """A worker keeps what it was about to write, whether or not that came to pass; no nonce would tell."""
    original = step_module.Attempt.writes

    def writes(self: Any, outcome: Outcome) -> Any:
        found = original(self, outcome)
        if self.reading is not None:
            self.reading.keep(self.token, *found)
        return found

    patch.setattr(step_module.Attempt, "writes", writes)
    patch.setattr(cache_module, "proves", lambda kept, state, epoch: kept.nonce and kept[:2] == state[:2])


def _recovered_on_another_map(patch: pytest.MonkeyPatch) -> None:
    """A plan that waits is run again on the intervals that the new driver happens to have."""
    original = driver_module.Driver.next_plan

    def next_plan(self: Any, *mode: Any) -> Any:
        waiting = self.recovering
        if waiting is not None:
            self.recovering = replace(waiting, intervals=self.layout.intervals, slots=self.layout.slots)
        return original(self, *mode)

    patch.setattr(driver_module.Driver, "next_plan", next_plan)


def _map_of_the_first_epoch(patch: pytest.MonkeyPatch) -> None:
    """A worker keeps the intervals that it saw first, and sends records to whoever had them."""
    original = Router._pack

    def send(self: Any, edge: Any, keys: Any, columns: Any) -> None:
        kept = self._graph.__dict__.setdefault("kept", self._plan)
        if len(kept.intervals[edge.level - 1]) <= len(self._plan.intervals[edge.level - 1]):
            self._plan.__dict__["tables"] = kept.tables
        original(self, edge, keys, columns)

    patch.setattr(Router, "_pack", send)


def _joins_too_early(patch: pytest.MonkeyPatch) -> None:
    """Who catches up is taken for one that has."""
    patch.setattr(roster_module, "_level", lambda *rest: True)


def _passed_by_nobody(patch: pytest.MonkeyPatch) -> None:
    """The others' records reach who catches up as well."""
    original = Graph.readers

    def readers(self: Graph, source: Any, stream: str) -> Any:
        return original(self, source, stream) if source.reader else self.consumers[stream]

    patch.setattr(Graph, "readers", readers)


def _forgets_what_is_there(patch: pytest.MonkeyPatch) -> None:
    """An epoch that another graph has begun to commit is planned anew."""
    patch.setattr(roster_module, "touched", lambda *rest: False)


_MISHAPS = Faults(fail=0.3, pause=0.05, late=0.2, kill=0.02, reshape=0.0, most=20)
"""What it takes until an old plan and another one for the same epoch meet."""

_RESHAPED = Faults(reshape=0.4, most=24)

_CHANGES = Faults(change=0.3, most=24)

_FAULTS = {
    "who catches up joins too early": _CHANGES,
    "who catches up is not left out": _CHANGES,
    "an epoch of another graph is forgotten": _CHANGES,
    "the sequencer is not looked at": replace(_MISHAPS, reshape=0.2, most=30),
    "a new driver fences nothing": _MISHAPS,
    "a plan is run again on another map": _RESHAPED,
    "records are sent by an old map": _RESHAPED,
}


def _tables_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """An epoch that is run again sees the tables that it looks up as they are by then."""
    original = driver_module.Driver.next_plan

    def next_plan(self: Any, *rest: Any) -> Any:
        if self.recovering is not None:
            self.lookups.refresh(self.now())
            self.recovering = replace(self.recovering, lookups=self.lookups.versions())
        return original(self, *rest)

    patch.setattr(driver_module.Driver, "next_plan", next_plan)


_BUGS: dict[str, tuple[Plant, list[Any]]] = {
    "who catches up joins too early": (_joins_too_early, [pipelines.replayed]),
    "who catches up is not left out": (_passed_by_nobody, [pipelines.replayed]),
    "an epoch of another graph is forgotten": (_forgets_what_is_there, [pipelines.changing]),
    "duplicates are not looked for": (_no_dedup, [pipelines.resent]),
    "IDs are not stored": (_ids_not_stored, [pipelines.resent]),
    "productions leave before the commit": (_send_before_commit, [pipelines.draws]),
    "the sequencer is not looked at": (_no_sequencer_check, [pipelines.windows, pipelines.draws]),
    "a committed epoch is run again": (_no_epoch_check, [pipelines.windows]),
    "a checkpoint without productions": (_checkpoint_without_productions, [pipelines.windows]),
    "no checkpoint": (_checkpoint_not_stored, [pipelines.windows]),
    "the plan is not journaled": (_plan_not_journaled, [pipelines.windows]),
    "the journal takes any driver's writes": (_journal_not_fenced, [pipelines.windows]),
    "a new driver fences nothing": (_intervals_not_fenced, [pipelines.windows, pipelines.draws]),
    "a fence that looks only once": (_fence_that_looks_once, [pipelines.windows, pipelines.draws]),
    "the watermark follows the fastest sender": (_watermark_leads, [pipelines.held_apart]),
    "watermarks are forgotten by a restart": (_watermarks_forgotten, [pipelines.windows]),
    "a retry writes to the sink again": (_sink_not_idempotent, [pipelines.windows]),
    "offsets are not journaled": (_offsets_forgotten, [pipelines.windows]),
    "a plan is run again on another map": (_recovered_on_another_map, [pipelines.windows, pipelines.draws]),
    "records are sent by an old map": (_map_of_the_first_epoch, [pipelines.windows]),
    "due timers left over hold nothing": (_due_timers_hold_nothing, [pipelines.windows]),
    "a retry looks up another version": (_tables_as_they_are, [pipelines.looked_up]),
    "a cache that is trusted without proof": (_cache_without_proof, [pipelines.windows]),
    "a cache that looks at the owner alone": (_cache_of_the_sequencer, [pipelines.windows]),
    "a cache that does not look at the nonce": (_cache_before_the_commit, [pipelines.draws]),
}


@pytest.mark.parametrize("name", _BUGS)
def test_the_simulator_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, makes = _BUGS[name]
    plant(monkeypatch)
    found = []
    for make in makes:
        try:
            faults = _FAULTS.get(name)
            given = {
                part: getattr(make, part) for part in ("check", "variants", "first") if hasattr(make, part)
            }
            simulate(make, seeds=range(_SEEDS), faults=faults, **given)
        except (SimulationFailure, AssertionError) as error:
            found.append(str(error) or "without any fault")
            break
    assert found, f"{_SEEDS} schedules of {[make.__name__ for make in makes]} did not find it"
    print(found[0].splitlines()[0])
