"""The layout: the intervals of each level and their slots, by epoch (7.1).

A change is journaled, then written to the store, then used by the next plan;
`docs/mechanisms/intervals.md` states what a failure at each point leaves.
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
"""The number of changes kept for display; few enough for one journal entry."""


@dataclass(frozen=True)
class Change:
    """One change of a level's intervals; each side is [first tablet, slot] in order."""

    level: int
    epoch: int
    """The last epoch with the intervals before the change."""
    time: int
    """Its wall time, in microseconds."""
    why: str
    before: Cuts
    after: Cuts
    moved: int
    split: int
    merged: int


def compare(
    level: int, epoch: int, time: int, why: str, before: tuple[Interval, ...], after: tuple[Interval, ...]
) -> Change:
    """Describes the difference between two lists of intervals of a level."""
    old, new = ({i.first for i in part} for part in (before, after))
    moved: set[int] = set()
    at = 0
    for interval in after:  # both are in order: each is walked through once
        while before[at].last < interval.last:
            if before[at].slot != interval.slot:
                moved.add(interval.first)
            at += 1
        if before[at].slot != interval.slot:
            moved.add(interval.first)
        at += before[at].last == interval.last
    return Change(
        level, epoch, time, why, cuts_of(before), cuts_of(after), len(moved), len(new - old), len(old - new)
    )


class Layout:
    """The intervals of every level for the next epoch.

    Invariant: every interval that a plan has named has an entry in the store, under the sequencer of the
    plan or a newer one; so writes to an interval that was removed are refused.
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
        """``marks`` is the layout of the journaled watermarks; None if there are none."""
        self._graph = graph
        self._store = store
        self._journal = journal
        self.slots = slots
        self.sequencer = sequencer
        found = journal.layout()
        self.changes: list[dict[str, Any]] = found.get("changes", [])
        """The last changes, oldest first, as values of `Change`."""
        known = {tuple(names): cuts for names, cuts in found.get("levels", [])}
        same = found.get("slots") == slots
        even = even_intervals(slots, self._shards, sequencer, store.tablets)
        self.intervals: tuple[tuple[Interval, ...], ...] = tuple(
            self._from(known[names], sequencer) if same and names in known else even for names in graph.levels
        )
        self.settled = marks is None or marks == self.marks()
        """Whether the last epoch had these intervals, so that its reports apply to them."""

    @property
    def _shards(self) -> int:
        return len(self._store.shards)

    def _from(self, cuts: Cuts, sequencer: int) -> tuple[Interval, ...]:
        return intervals_from(cuts, self._shards, sequencer, self._store.tablets)

    def fence(self, plan: Plan | None) -> None:
        """Takes over every interval from an earlier driver, also those of an open plan."""
        waiting = plan.intervals if plan is not None else [()] * len(self.intervals)
        every = [(*mine, *its) for mine, its in zip(self.intervals, waiting, strict=True)]
        fence(self._store, every, self.sequencer)

    def marks(self) -> list[Any]:
        """A fingerprint of the layout, to compare with that of reported watermarks."""
        return [
            [list(names), [i.first for i in part]]
            for names, part in zip(self._graph.levels, self.intervals, strict=True)
        ]

    def even(self) -> tuple[Interval, ...]:
        """A level's intervals while its load is unknown."""
        return even_intervals(self.slots, self._shards, self.sequencer, self._store.tablets)

    def rescale(self, slots: int, epoch: int, time: int) -> list[Change]:
        """Distributes all tablets evenly over another number of slots."""
        even = cuts_of(even_intervals(slots, self._shards, self.sequencer, self._store.tablets))
        why = f"rescaled from {self.slots} to {slots} slots"
        self.slots = slots
        return self.change({level: (even, why) for level in range(1, len(self.intervals) + 1)}, epoch, time)

    def change(self, levels: dict[int, tuple[Cuts, str]], epoch: int, time: int) -> list[Change]:
        """Changes the intervals of levels; each changed one gets a new sequencer.

        To be called between two epochs: all writes of the last one must be done.
        """
        after = list(self.intervals)
        changes = []
        sequencer = self.sequencer + 1
        for level, (cuts, why) in levels.items():
            before = self.intervals[level - 1]
            now = self._from(cuts, sequencer)
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
        """Notes that an epoch was committed."""
        self.settled = plan.intervals == self.intervals
