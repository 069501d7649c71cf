"""The computations of windows: records of a key in, one record per window out.

State is by key: each open window with its accumulators. One watermark timer is set for the earliest
time at which something is to be done: a window that has grown is emitted at its end, and removed
``lateness`` after it. With ``early``, one wall timer is set for the next tick of a window that has grown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

from millwheel.model.codec import msgpack, pack, unpack
from millwheel.model.computation import Computation
from millwheel.model.fields_read import FieldsRead
from millwheel.model.folding import Folding
from millwheel.model.record import Record
from millwheel.model.state_form import StateForm
from millwheel.model.time import MAX_TIME, WALL
from millwheel.model.timer import Timer
from millwheel.operators.foldings import folding
from millwheel.operators.folds import Aggregate
from millwheel.operators.windows import Fixed, Session

_END, _TICK = "end", "tick"


@dataclass(frozen=True)
class Shape:
    """What a window emits, and when."""

    stream: str
    aggregates: dict[str, Aggregate]
    lateness: int = 0
    early: int | None = None
    keyed: bool = True
    """Whether the value has the key."""
    by_window: bool = True
    """Whether a late record still counts in a window that is open."""

    @property
    def revised(self) -> bool:
        """Whether a window may be emitted more than once."""
        return self.lateness > 0 or self.early is not None

    @cached_property
    def _changes_values(self) -> bool:
        """Whether code of a user may change the values that it gets."""
        return any(aggregate.changes_value for aggregate in self.aggregates.values())

    @property
    def fields_read(self) -> FieldsRead:
        """The fields that the aggregates name."""
        read = [aggregate.names for aggregate in self.aggregates.values()]
        return FieldsRead(tuple(dict.fromkeys(name for names in read for name in names)), not self.keyed)

    def form(self, window: str) -> StateForm:
        """The form of the state of windows."""
        return StateForm(f"{window}: {', '.join(a.shown for a in self.aggregates.values())}")

    def create(self) -> list[Any]:
        """The aggregates of a window without records."""
        return [aggregate.create() for aggregate in self.aggregates.values()]

    def copies(self, value: Any, windows: int) -> Iterable[Any]:
        """A record's value for each of its windows; they share no mutable object."""
        if windows == 1 or not self._changes_values:
            return repeat(value, windows)
        packed = pack(value)
        return [unpack(packed) for _ in range(windows)]

    def add(self, so_far: list[Any], value: Any, timestamp: int) -> None:
        """Adds a record to a window."""
        packed = pack(value) if self._changes_values and len(self.aggregates) > 1 else b""
        for place, aggregate in enumerate(self.aggregates.values()):
            mine = unpack(packed) if packed and aggregate.changes_value else value
            so_far[place] = aggregate.add(so_far[place], mine, timestamp)

    def merge(self, a: list[Any], b: list[Any]) -> list[Any]:
        """The aggregates of two windows that were merged."""
        return [
            aggregate.merge(mine, other)
            for aggregate, mine, other in zip(self.aggregates.values(), a, b, strict=True)
        ]

    def value(self, key: str, start: int, end: int, so_far: list[Any]) -> dict[str, Any]:
        """The value that a window emits."""
        value: dict[str, Any] = {"key": key} if self.keyed else {}
        value |= {"start": start, "end": end}
        for (name, aggregate), mine in zip(self.aggregates.items(), so_far, strict=True):
            if self.revised and aggregate.changes_result:  # the window may grow after this
                value[name] = aggregate.result(msgpack.decode(msgpack.encode(mine)))
            else:
                value[name] = aggregate.result(mine)
        return value


class PlainWindows(Computation):
    """Tumbling or sliding windows, each emitted once: state is {start: aggregates}."""

    def __init__(self, window: Fixed, shape: Shape, folding: Folding | None = None) -> None:
        """With a ``folding`` the engine keeps them as columns, and calls no hook."""
        self._window = window
        self._shape = shape
        self._folding = folding
        self._fields_read = shape.fields_read
        self._state_form = shape.form(f"{window!r}")

    def process_record(self, record: Record) -> None:
        """Adds a record to its windows."""
        timestamp, value = record.timestamp, record.value
        shape, size = self._shape, self._window.size
        starts = self._window.starts(timestamp)
        if record.late:
            starts = [start for start in starts if start + size > self.low_watermark]
        if not starts:
            return  # between two windows
        state = self.state
        for start, mine in zip(starts, shape.copies(value, len(starts)), strict=True):
            so_far = state.get(start)
            if so_far is None:
                so_far = state[start] = shape.create()
                if start == min(state):
                    self.set_timer(_END, min(start + size, MAX_TIME))
            shape.add(so_far, mine, timestamp)

    def process_timer(self, timer: Timer) -> None:
        """Emits the windows that have ended."""
        shape, state, size = self._shape, self.state, self._window.size
        for start in sorted(state):
            end = start + size
            if min(end, MAX_TIME) > self.low_watermark:
                self.set_timer(_END, min(end, MAX_TIME))
                return
            value = shape.value(self.key, start, end, state.pop(start))
            self.produce(shape.stream, value, timestamp=min(end - 1, MAX_TIME))
        del self.state

    def _accepts_late(self, record: Record) -> bool:
        """Whether a late record has an open window; one between windows has none."""
        starts = self._window.starts(record.timestamp)
        open_still = not starts or starts[-1] + self._window.size > self.low_watermark
        return self._shape.by_window and open_still


@dataclass
class Open:
    """The stored form of a window that may be emitted several times."""

    start: int
    last: int
    """The end of a window of fixed size; the newest timestamp of a session."""
    so_far: list[Any]
    revision: int
    """The next revision."""
    closed: bool
    """Whether it was emitted at its end, and has not grown since."""
    born: int
    """The wall time of its first record, from which ``early`` counts."""
    tick: int | None = None
    """The wall time of its early emission, if it has grown."""


class _Revised(Computation):
    """Windows stored as a list of `Open`, in order of their starts."""

    _folding: Folding | None = None  # they are kept by key

    _shape: Shape

    def initial_state(self) -> Any:
        """No window."""
        return []

    def process_record(self, record: Record) -> None:
        """Adds a record to its windows."""
        windows = [Open(*fields) for fields in self.state]
        self.take(windows, record)
        self._keep(windows)

    def process_timer(self, timer: Timer) -> None:
        """Emits the windows that have grown, and removes those past their lateness."""
        windows = [Open(*fields) for fields in self.state]
        shape, kept = self._shape, []
        for window in sorted(windows, key=self.end):
            end = self.end(window)
            over = end <= self.low_watermark
            if over:
                window.tick = None  # at its end it no longer needs an early emission
                if timer.clock != WALL and not window.closed:
                    self._emit(window)
                    window.closed = True
            elif timer.clock == WALL and window.tick is not None and window.tick <= self.now:
                self._emit(window)
            if min(end + shape.lateness, MAX_TIME) > self.low_watermark or not window.closed:
                kept.append(window)
        self._keep(kept)

    def _emit(self, window: Open) -> None:
        shape, end = self._shape, self.last(window)
        value = shape.value(self.key, window.start, end, window.so_far)
        if shape.revised:
            value["revision"] = window.revision
        self.produce(shape.stream, value, timestamp=min(end - 1, MAX_TIME))
        window.revision += 1
        window.tick = None

    def _grow(self, window: Open) -> None:
        """Schedules a window's emission: at its end, with ``early`` at its next tick."""
        window.closed = False
        early = self._shape.early
        if early is not None and window.tick is None:
            window.tick = min(window.born + ((self.now - window.born) // early + 1) * early, MAX_TIME)

    def _keep(self, windows: list[Open]) -> None:
        """Stores the windows, and sets the timers for the next actions."""
        if not windows:
            self.clear_timer(_END)
            self.clear_timer(_TICK)
            del self.state
            return
        windows.sort(key=lambda window: window.start)
        self.state = [list(window.__dict__.values()) for window in windows]
        lateness = self._shape.lateness
        due = min(self.end(w) + (lateness if w.closed else 0) for w in windows)
        self.set_timer(_END, min(due, MAX_TIME))
        if self._shape.early is None:
            return
        ticks = [window.tick for window in windows if window.tick is not None]
        if ticks:
            self.set_timer(_TICK, min(ticks), clock=WALL)
        else:
            self.clear_timer(_TICK)

    def last(self, window: Open) -> int:
        """The end of a window, as it is emitted."""
        raise NotImplementedError

    def end(self, window: Open) -> int:
        """The end of a window as a time that a watermark can reach."""
        return min(self.last(window), MAX_TIME)

    def take(self, windows: list[Open], record: Record) -> None:
        """Adds a record to its windows among these."""
        raise NotImplementedError


class RevisedWindows(_Revised):
    """Tumbling or sliding windows with ``lateness`` or ``early``."""

    def __init__(self, window: Fixed, shape: Shape) -> None:
        self._window = window
        self._shape = shape
        self._fields_read = shape.fields_read
        self._state_form = shape.form(f"{window!r} with revisions")

    def last(self, window: Open) -> int:
        """The end of a window."""
        return window.last

    def take(self, windows: list[Open], record: Record) -> None:
        """Adds a record to each of its windows that is not past its lateness."""
        known = {window.start: window for window in windows}
        starts = self._starts(record)
        for start, value in zip(starts, self._shape.copies(record.value, len(starts)), strict=True):
            window = known.get(start)
            if window is None:
                window = Open(start, start + self._window.size, self._shape.create(), 0, False, self.now)
                windows.append(window)
            self._shape.add(window.so_far, value, record.timestamp)
            self._grow(window)

    def _starts(self, record: Record) -> list[int]:
        starts = self._window.starts(record.timestamp)
        if not record.late:
            return starts
        oldest = self.low_watermark - self._window.size - self._shape.lateness
        return [start for start in starts if start > oldest]

    def _accepts_late(self, record: Record) -> bool:
        """Whether a late record has a window that is kept; one between windows has none."""
        return bool(self._starts(record)) or not self._window.starts(record.timestamp)


class Sessions(_Revised):
    """Session windows: records of a key less than a gap apart."""

    def __init__(self, window: Session, shape: Shape) -> None:
        self._gap = window.gap
        self._shape = shape
        self._fields_read = shape.fields_read
        self._state_form = shape.form("sessions")  # of any gap

    def last(self, window: Open) -> int:
        """The end of a session."""
        return window.last + self._gap

    def take(self, windows: list[Open], record: Record) -> None:
        """Adds a record to its session, which may merge two."""
        time, shape = record.timestamp, self._shape
        touching = self._touching(windows, time)
        merged = Open(time, time, shape.create(), 0, False, self.now)
        for number, window in enumerate(touching):
            windows.remove(window)
            merged.start, merged.last = min(merged.start, window.start), max(merged.last, window.last)
            merged.so_far = shape.merge(merged.so_far, window.so_far) if number else window.so_far
            merged.revision = max(merged.revision, window.revision)
            merged.born = min(merged.born, window.born)
            if window.tick is not None and window.tick <= self.now:  # due in this epoch, also if it is moved
                merged.tick = window.tick
        self._grow(merged)
        shape.add(merged.so_far, record.value, time)
        windows.append(merged)

    def _touching(self, windows: list[Open], time: int) -> list[Open]:
        gap = self._gap
        return [window for window in windows if window.start - gap < time < window.last + gap]

    def _accepts_late(self, record: Record) -> bool:
        """Whether the session of a late record is still kept."""
        known = self.state
        if not known:
            del self.state  # reading the state must not create a row
        windows = self._touching([Open(*fields) for fields in known], record.timestamp)
        last = max([record.timestamp, *(window.last for window in windows)])
        return self._shape.by_window and last + self._gap + self._shape.lateness > self.low_watermark


def windows(window: Fixed | Session, shape: Shape, late: str = "drop") -> Computation:
    """The computation of a kind of window."""
    if isinstance(window, Session):
        return Sessions(window, shape)
    if shape.revised:
        return RevisedWindows(window, shape)
    columns = shape.keyed and shape.by_window and late == "drop"
    return PlainWindows(window, shape, folding(window, shape.stream, shape.aggregates) if columns else None)
