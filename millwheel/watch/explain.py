"""Why a low watermark has its value: the partition, timer or hold behind it.

Everything is read from the store, for a running pipeline and a stopped one alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millwheel.errors import PipelineError, StoreError
from millwheel.master.commit_entry import Commit
from millwheel.master.journal import Shape, read_shape
from millwheel.model.codec import unpack
from millwheel.model.keys import key_text
from millwheel.model.names import Sender, SourceName
from millwheel.model.time import MAX_TIME, MIN_TIME, format_time
from millwheel.store.base import Store
from millwheel.store.keyspace import (
    KIND_HOLD,
    KIND_WATERMARK,
    TIMER_SUFFIX,
    TIMER_TIME,
    JournalKey,
    after,
    row_prefix,
    time_of,
    timer_prefix,
)
from millwheel.store.row import decode_row
from millwheel.store.window_row import WindowRow, is_window
from millwheel.watermark.marks import ComputationMarks


@dataclass(frozen=True)
class Step:
    """One link of the chain: a computation or injector, its value, and the reason."""

    who: str
    """The name of a computation, or of an injector."""
    low_watermark: int
    because: str
    """``end``, ``records``, ``timer``, ``hold``, ``input``, ``partition``, ``idle``."""
    text: str
    interval: int | None = None
    """The first tablet of the key's interval."""
    key: str | None = None
    tag: str | None = None
    time: int | None = None
    partition: str | None = None
    kind: str = "computation"
    """``computation`` or ``injector``."""


@dataclass(frozen=True)
class Explanation:
    """The chain from a computation to what holds its low watermark."""

    computation: str
    low_watermark: int
    steps: list[Step] = field(default_factory=list)
    form: str = ""
    """For windows: whether they and their records are columns or objects."""

    @property
    def cause(self) -> Step:
        """The end of the chain: what holds it."""
        return self.steps[-1]

    def __str__(self) -> str:
        lines = []
        for depth, step in enumerate(self.steps):
            name = f"injector {step.who}" if step.kind == "injector" else step.who
            lines.append(f"{'  ' * depth}{name} stands at {format_time(step.low_watermark)}: {step.text}")
        if self.form:
            lines.append(f"{self.computation}: {self.form}")
        return "\n".join(lines)


def explain(store: Store, name: str) -> Explanation:
    """Follows a computation's low watermark back to what holds it."""
    with store.journal.snapshot() as snapshot:
        commit, numbers = snapshot.get(JournalKey.COMMIT), snapshot.get(JournalKey.NUMBERS)
        shape = read_shape(snapshot)
    if shape is None or numbers is None:
        raise StoreError("the store has no pipeline in it yet")
    if name not in shape.inputs:
        raise PipelineError(f"there is no computation {name!r}: there are {', '.join(shape.inputs)}")
    if commit is None:
        step = Step(name, MIN_TIME, "input", "no epoch has been committed yet")
        return Explanation(name, MIN_TIME, [step], shape.forms.get(name, ""))
    walk = _Walk(store, shape, unpack(numbers), Commit.from_bytes(commit))
    steps = walk.from_computation(name)
    return Explanation(name, steps[0].low_watermark, steps, shape.forms.get(name, ""))


class _Walk:
    """One reading of a journal."""

    def __init__(self, store: Store, shape: Shape, numbers: dict[str, int], commit: Commit) -> None:
        self._store = store
        self._shape = shape
        self._numbers = numbers
        self._commit = commit

    def _low(self, who: Sender) -> int:
        if isinstance(who, SourceName):
            return self._commit.sources.get(who, MIN_TIME)
        return self._marks(who).low

    def _marks(self, name: str) -> ComputationMarks:
        return self._commit.watermarks.get(name, ComputationMarks())

    def from_computation(self, name: str) -> list[Step]:
        low = self._low(name)
        if low == MAX_TIME:
            return [Step(name, low, "end", "it has come to its end, nothing holds it")]
        marks = self._marks(name)
        left = sum(mark.left for mark in marks.intervals.values())
        if left:
            text = f"a slow step has left {left:,} records to the next epoch"
            return [Step(name, low, "records", text)]
        if any(mark.more_due for mark in marks.intervals.values()):
            return [self._own_work(name, low, KIND_WATERMARK, marks)]
        timer, _, hold = marks.work
        if min(timer, hold) < marks.input or min(timer, hold) <= low:
            return [self._own_work(name, low, KIND_HOLD if hold <= timer else KIND_WATERMARK, marks)]
        senders = self._shape.senders(name)
        if not senders:
            return [Step(name, low, "input", "it reads no stream")]
        slowest = min(senders, key=self._low)
        streams = ", ".join(
            stream for stream in self._shape.inputs[name] if slowest in self._shape.producers[stream]
        )
        who = f"the injector {slowest}" if isinstance(slowest, SourceName) else slowest
        step = Step(name, low, "input", f"it waits for {who}, which writes {streams}")
        if isinstance(slowest, SourceName):
            return [step, self._injector(slowest)]
        return [step, *self.from_computation(slowest)]

    def _own_work(self, name: str, low: int, kind: int, marks: ComputationMarks) -> Step:
        what = "hold" if kind == KIND_HOLD else "timer"
        found = self._oldest(name, kind)
        if found is None:
            return Step(name, low, what, f"a {what} that was there when the last epoch was committed")
        time, key, tag, tablet = found
        first = max((start for start in marks.intervals if start <= tablet), default=0)
        text = f"key {key!r} has the {what} {tag!r} at {format_time(time)} (interval of tablet {first})"
        return Step(name, low, what, text, interval=first, key=key, tag=tag, time=time)

    def _oldest(self, name: str, kind: int) -> tuple[int, str, str, int] | None:
        """A computation's oldest timer or hold: the first index entry of each tablet."""
        number = self._numbers[name]
        best: tuple[int, bytes, int] | None = None
        tablets = self._store.tablets // len(self._store.shards)
        for index, shard in enumerate(self._store.shards):
            mine = range(index * tablets, (index + 1) * tablets)
            prefixes = [timer_prefix(number, tablet, kind) for tablet in mine]
            with shard.snapshot() as snapshot:
                snapshot.prefetch([(prefix, after(prefix), 1) for prefix in prefixes])
                for tablet, prefix in zip(mine, prefixes, strict=True):
                    entry = next(snapshot.scan(prefix, after(prefix)), None)
                    if entry is None:
                        continue
                    time = time_of(entry[0][TIMER_TIME])
                    if best is None or time < best[0]:
                        best = (time, entry[0][TIMER_SUFFIX:], tablet)
        if best is None:
            return None
        time, suffix, tablet = best
        with self._shard(tablet).snapshot() as snapshot:
            data = snapshot.get(row_prefix(number) + suffix)
        if data is None:
            return None
        row = decode_row(data)
        if is_window(suffix) and row.state is not None:
            key = WindowRow.from_bytes(row.state).keys[0]
        else:
            key = row.key if row.key is not None else key_text(suffix[8:])
        times = row.holds if kind == KIND_HOLD else row.timers
        tag = min(times, key=lambda tag: (times[tag], tag))
        return times[tag], key, tag, tablet

    def _shard(self, tablet: int) -> Any:
        shards = self._store.shards
        return shards[tablet * len(shards) // self._store.tablets]

    def _injector(self, source: SourceName) -> Step:
        low, who, kind = self._low(source), str(source), "injector"
        if low == MAX_TIME:
            return Step(who, low, "end", "it is exhausted", kind=kind)
        holder = self._commit.holders.get(source)
        if holder is None:
            text = "no partition holds it: it moves on with the next record"
            return Step(who, low, "idle", text, kind=kind)
        partition, mark, why = holder
        if mark is None:
            return Step(who, low, "idle", why)
        if partition is None:
            return Step(who, low, "end", f"it {why}, and continues from here")
        text = f"partition {partition!r} {why}" + ("" if mark == MIN_TIME else f", at {format_time(mark)}")
        return Step(who, low, "partition", text, time=mark, partition=partition, kind=kind)
