"""The tasks of an epoch: inject, then one per slot and level, then reports.

A task takes frames and returns frames, whatever carries them: a Spark shuffle, one task
that runs the whole graph, or the harness.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from millwheel.errors import EngineError, MillWheelError, UserCodeError
from millwheel.model.names import WatermarkName
from millwheel.model.sink import Sink
from millwheel.watermark.formula import lowest
from millwheel.watermark.merge import PendingPart, merge_injected, merge_percentiles
from millwheel.worker.commit import EpochMoved, commit_compact, settle
from millwheel.worker.envelope import Batch, Frame, Section, unpack_batch, unpack_section
from millwheel.worker.inject import Injection
from millwheel.worker.plan import Plan
from millwheel.worker.step import Worker


class SinkFailure(Exception):
    """A sink raised. The carrier retries the task, as the sink's system may recover."""


Dumps = Callable[[Any], bytes]
"""Pickles an error to be sent; None if it stays in this process."""


def inject(worker: Worker, plan: Plan, task: int, dumps: Dumps | None = None) -> list[Frame]:
    """Reads this task's ranges; returns a frame for each slot."""
    frames = [Frame(plan.tasks, task, {}) for _ in range(plan.slots)]
    injection = Injection(worker.graph, plan, task, worker.unseen, worker.side_tables)
    worker.activity.enter(lambda: _reading(plan, task))
    try:
        injection.run()
    except MillWheelError as error:
        return _failed(frames, error, dumps)
    for level, slot, section in injection.sections:
        frames[slot].sections.setdefault(level, []).append(section)
    held = {name: mark for name, (mark, _) in injection.marks.items()}
    newest = {name: top for name, (_, top) in injection.marks.items()}
    for frame in frames:
        frame.watermarks, frame.newest = held, newest
    writer = frames[_writer_of(plan, task)]
    writer.reports.append(injection.report.to_value())
    writer.batches = injection.batches
    return frames


def _writer_of(plan: Plan, task: int) -> int:
    """The slot that writes a task's injected records: it has committed an interval.

    So an epoch of which nothing is in the store, and which may be forgotten, is in no sink either.
    """
    slots: Iterable[int] = range(plan.slots)
    owners = sorted({interval.slot for interval in plan.intervals[0]} if plan.intervals else slots)
    return owners[task % len(owners)]


def _reading(plan: Plan, task: int) -> str:
    """The input of a task, for a message."""
    parts = [
        f"partition {item.partition!r} of {str(item.source)!r}" for item in plan.ranges if item.task == task
    ]
    return f"the injectors: {', '.join(parts[:3])}{' and others' if len(parts) > 3 else ''}"


@dataclass
class _Held:
    """A level's batches for sinks, kept until a compact epoch is committed."""

    level: int
    report: dict[str, Any]
    batches: list[bytes]


def run_level(
    worker: Worker,
    plan: Plan,
    level: int,
    slot: int,
    received: Iterable[Frame],
    dumps: Dumps | None = None,
    held: list[_Held] | None = None,
) -> list[Frame]:
    """Runs a slot's intervals of a level; returns a frame for each slot.

    Reports stay with the slot, so that the last level's task returns them to the driver. With ``held``
    nothing is written yet, neither to the store nor to the sinks.
    """
    arrived = sorted(received, key=lambda frame: frame.sender)
    frames = [Frame(plan.slots, slot, {}) for _ in range(plan.slots)]
    for frame in arrived:
        if frame.error is not None:
            for mine in frames:
                mine.error = frame.error
            return frames
        frames[slot].reports += frame.reports
        for later, sections in frame.sections.items():
            if later > level:
                frames[slot].sections.setdefault(later, []).extend(sections)
    expected = plan.tasks if level == 1 else plan.slots
    if [frame.sender for frame in arrived] != list(range(expected)):
        raise EngineError(
            f"epoch {plan.epoch}, level {level}, slot {slot}: received frames of tasks "
            f"{[frame.sender for frame in arrived]}, expected {expected}"
        )
    unfinished = {name for frame in arrived for name in frame.unfinished}
    watermarks = merge_watermarks(plan, arrived, level)
    watermarks |= merge_percentiles(_pending(arrived), watermarks, plan.lows, unfinished)
    by_interval: dict[int, list[Section]] = {}
    for frame in arrived:
        for data in frame.sections.get(level, ()):
            section = unpack_section(data)
            by_interval.setdefault(section.interval, []).append(section)
    lows: list[dict[WatermarkName, int]] = []
    left_over = set(unfinished)
    pending: dict[str, list[Any]] = {}
    try:
        for index, interval in enumerate(plan.intervals[level - 1]):
            if interval.slot != slot:
                continue
            own = by_interval.get(index, [])
            outcome = worker.step(
                plan, level, index, watermarks, own, unfinished=unfinished, defer=held is not None
            )
            left_over.update(outcome.unfinished)
            for computation, part in outcome.pending.items():
                pending.setdefault(computation, []).append(part)
            lows.append(outcome.lows)
            for later, target, section_bytes in outcome.sections:
                frames[target].sections.setdefault(later, []).append(section_bytes)
            report = dict(outcome.report)
            frames[slot].reports.append(report)
            if held is not None:
                held.append(_Held(level, report, outcome.batches))
            else:
                report["collected"] = _write_sinks(worker, plan, outcome.batches)
        if held is None:
            _write_injected(worker, plan, arrived)
            if level in worker.weak and level == len(worker.graph.levels):
                settle(worker.take_deferred(plan, level))  # only sinks follow, and they have theirs
    except MillWheelError as error:
        return _failed(frames, error, dumps)
    merged = {**watermarks, **lowest(lows)}
    for frame in frames:
        frame.watermarks = merged
        frame.unfinished = sorted(left_over)
        frame.pending = pending
    return frames


def run_epoch(worker: Worker, plan: Plan, dumps: Dumps | None = None) -> list[Frame]:
    """Runs the whole epoch in this process; returns the frames of the last level.

    All levels run before any of them commits, so a hook that raises leaves nothing. If another
    attempt commits meanwhile, it starts again from that one's commits.
    """
    while True:
        try:
            return _run_epoch(worker, plan, dumps)
        except EpochMoved:  # each retry finds one more committed interval, so this ends
            continue


def _run_epoch(worker: Worker, plan: Plan, dumps: Dumps | None) -> list[Frame]:
    slots = range(plan.slots)
    sent = [inject(worker, plan, task, dumps) for task in range(plan.tasks)]
    arrived = [[frames[slot] for frames in sent] for slot in slots]
    depth = len(worker.graph.levels)
    if not depth:
        frames = [frame for part in arrived for frame in part]
        if not any(frame.error for frame in frames):
            _write_injected(worker, plan, frames)
        return frames
    injected = [frame for part in arrived for frame in part]
    held: list[_Held] = []
    for level in range(1, depth + 1):
        sent = [run_level(worker, plan, level, slot, arrived[slot], dumps, held) for slot in slots]
        arrived = [[frames[slot] for frames in sent] for slot in slots]
    last = [frames[slot] for slot, frames in enumerate(sent)]
    deferred = worker.take_deferred(plan)

    def deliver() -> None:
        for part in held:
            part.report["collected"] = _write_sinks(worker, plan, part.batches)

    if any(frame.error for frame in last):
        return last
    try:
        commit_compact(plan, deferred, worker.weak, deliver)
        _write_injected(worker, plan, injected)
    except MillWheelError as error:
        return _failed(last, error, dumps)
    return last


def merge_watermarks(plan: Plan, frames: Sequence[Frame], level: int) -> dict[WatermarkName, int]:
    """The watermarks of all senders, from the frames of all tasks."""
    watermarks = [frame.watermarks for frame in frames]
    if level > 1:
        return lowest(watermarks)
    return merge_injected(plan.sources, watermarks, [frame.newest for frame in frames])


def _pending(frames: Sequence[Frame]) -> dict[str, list[PendingPart]]:
    """By computation of the previous level: its intervals' reports for percentiles."""
    parts: dict[str, list[PendingPart]] = {}
    for frame in frames:
        for name, found in frame.pending.items():
            parts.setdefault(name, []).extend(PendingPart(*part) for part in found)
    return parts


def _write_injected(worker: Worker, plan: Plan, frames: Iterable[Frame]) -> None:
    """Writes the injecting tasks' batches to their sinks."""
    for frame in frames:
        if frame.batches:
            frame.reports[-1]["collected"] = _write_sinks(worker, plan, frame.batches)


def _write_sinks(worker: Worker, plan: Plan, batches: list[bytes]) -> list[bytes]:
    """Writes batches to their sinks; returns those for sinks in the driver's memory."""
    collected = []
    for data in batches:
        batch = unpack_batch(data)
        sinks = worker.graph.sinks.get(batch.stream, ())  # none: it was removed since the first attempt
        if any(sink.in_driver for sink in sinks):
            collected.append(data)
        for sink in sinks:
            if not sink.in_driver:
                worker.activity.enter(lambda sink=sink: f"the sink {sink!r}")  # type: ignore[misc]
                try:
                    _write(sink, plan.epoch, batch)
                except Exception as error:
                    ours = isinstance(error, MillWheelError)  # it names the sink itself
                    what = str(error) if ours else f"the sink {sink!r} raised {type(error).__name__}: {error}"
                    raise SinkFailure(f"stream {batch.stream!r}: {what}") from error
    return collected


def _write(sink: Sink, epoch: int, batch: Batch) -> None:
    columns = batch.columns
    if columns.windows is not None and sink._write_windows(epoch, batch.shard, columns.windows):
        return
    values = columns.objects()
    if not sink.write_columns(epoch, batch.shard, columns.key_column(), columns.timestamps, values):
        sink.write(epoch, batch.shard, batch.records())


def _failed(frames: list[Frame], error: MillWheelError, dumps: Dumps | None) -> list[Frame]:
    carried = error if dumps is None else dump_error(error, dumps)
    for frame in frames:
        frame.error = carried
    return frames


def dump_error(error: MillWheelError, dumps: Dumps) -> bytes:
    """Pickles an error; parts that do not pickle are replaced by their text."""
    if _travels(error, dumps):
        return dumps(error)
    if not isinstance(error, UserCodeError):
        return dumps(type(error)(str(error)))
    cause = error.cause if _travels(error.cause, dumps) else RuntimeError(_name(error.cause))
    plain = UserCodeError(
        str(error.args[0]),
        computation=error.computation,
        key=error.key,
        record=error.record if _travels(error.record, dumps) else None,
        cause=cause,
        details=error.details,
    )
    return dumps(plain)


def _travels(value: Any, dumps: Dumps) -> bool:
    try:
        pickle.loads(dumps(value))
        return True
    except Exception:
        return False


def _name(cause: BaseException | None) -> str:
    return f"{type(cause).__name__}: {cause}"


def load_error(error: Any) -> BaseException:
    """Restores a task's error, on the driver."""
    found: BaseException = pickle.loads(error) if isinstance(error, bytes) else error
    return found
