"""The layout: which interval of which level is whose, from epoch to epoch (7.1).

A change is journaled, then the store is told, then the next plan has it; `docs/mechanisms/intervals.md`
says what happens if each of these fails.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from millwheel.master.intervals import Cuts, cuts_of, even_intervals, intervals_from
from millwheel.master.journal import Journal
from millwheel.model.graph import Graph
from millwheel.store.base import Store
from millwheel.worker.fencing import fence, refence
from millwheel.worker.plan import Interval, Plan

KEPT = 20
"""Changes that are kept to be looked at: what a person reads, and what a journal does not feel."""


@dataclass(frozen=True)
class Change:
    """One change of one level's intervals. ``before`` and ``after`` are [first tablet, slot] in order."""

    level: int
    epoch: int
    """The last epoch on the map of before."""
    time: int
    """The wall time of it, in microseconds."""
    why: str
    before: Cuts
    after: Cuts
    moved: int
    split: int
    merged: int


def compare(
    level: int, epoch: int, time: int, why: str, before: tuple[Interval, ...], after: tuple[Interval, ...]
) -> Change:
    """What a change of a level's intervals is made of."""
    was = {tablet: i.slot for i in before for tablet in range(i.first, i.last)}
    old, new = ({i.first for i in part} for part in (before, after))
    moved = sum(any(was[t] != i.slot for t in range(i.first, i.last)) for i in after)
    return Change(
        level, epoch, time, why, cuts_of(before), cuts_of(after), moved, len(new - old), len(old - new)
    )


class Layout:
    """The intervals of every level, as the next epoch has them.

    Invariant: every interval that a plan has named has an entry in the store, under the sequencer of the
    plan or a newer one; so nobody writes to an interval that is no more.
    """

    def __init__(
        self,
        graph: Graph,
        store: Store,
        journal: Journal,
        slots: int,
        sequencer: int,
        marks: list[Any] | None,
    ) -> None:
        """``marks`` is the layout that the journaled watermarks are of; None where there are none."""
        self._graph = graph
        self._store = store
        self._journal = journal
        self.slots = slots
        self.sequencer = sequencer
        found = journal.layout()
        self.changes: list[dict[str, Any]] = found.get("changes", [])
        """The last ones, oldest first, as values of `Change`."""
        known = {tuple(names): cuts for names, cuts in found.get("levels", [])}
        same = found.get("slots") == slots
        even = even_intervals(slots, self._shards, sequencer)
        self.intervals: tuple[tuple[Interval, ...], ...] = tuple(
            intervals_from(known[names], self._shards, sequencer) if same and names in known else even
            for names in graph.levels
        )
        self.settled = marks is None or marks == self.marks()
        """Whether the last epoch had these intervals, so that what they reported is theirs."""

    @property
    def _shards(self) -> int:
        return len(self._store.shards)

    def fence(self, plan: Plan | None) -> None:
        """Takes every interval over from a former driver, those of a plan that waits included."""
        waiting = plan.intervals if plan is not None else [()] * len(self.intervals)
        every = [(*mine, *its) for mine, its in zip(self.intervals, waiting, strict=True)]
        fence(self._store, every, self.sequencer)

    def marks(self) -> list[Any]:
        """What tells whether watermarks that were reported are those of these intervals."""
        return [
            [list(names), [i.first for i in part]]
            for names, part in zip(self._graph.levels, self.intervals, strict=True)
        ]

    def even(self) -> tuple[Interval, ...]:
        """A level's intervals where nothing is known of the load."""
        return even_intervals(self.slots, self._shards, self.sequencer)

    def rescale(self, slots: int, epoch: int, time: int) -> list[Change]:
        """Cuts everything evenly over another number of slots."""
        even = cuts_of(even_intervals(slots, self._shards, self.sequencer))
        why = f"rescaled from {self.slots} to {slots} slots"
        self.slots = slots
        return self.change({level: (even, why) for level in range(1, len(self.intervals) + 1)}, epoch, time)

    def change(self, levels: dict[int, tuple[Cuts, str]], epoch: int, time: int) -> list[Change]:
        """Gives levels other intervals, each for a reason. Every interval that changes gets a new sequencer.

        To be called between two epochs: what the last one wrote must all be there.
        """
        after = list(self.intervals)
        changes = []
        sequencer = self.sequencer + 1
        for level, (cuts, why) in levels.items():
            before = self.intervals[level - 1]
            now = intervals_from(cuts, self._shards, sequencer)
            kept = {(i.first, i.last, i.slot): i for i in before}
            after[level - 1] = tuple(kept.get((i.first, i.last, i.slot), i) for i in now)
            changes.append(compare(level, epoch, time, why, before, now))
        recent = [*self.changes, *map(asdict, changes)][-KEPT:]
        named = zip(self._graph.levels, after, strict=True)
        value = {
            "slots": self.slots,
            "levels": [[list(names), cuts_of(part)] for names, part in named],
            "changes": recent,
        }
        self.sequencer = self._journal.renew(value)
        refence(self._store, self.intervals, after, self.sequencer)
        self.changes = recent
        self.settled = self.settled and after == list(self.intervals)
        self.intervals = tuple(after)
        return changes

    def ran(self, plan: Plan) -> None:
        """An epoch was committed."""
        self.settled = plan.intervals == self.intervals
