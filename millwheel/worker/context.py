"""The context of a hook: what the accessors of a computation use (Fig. 8).

One context serves one computation in one worker; `HookContext.begin` switches it to a key. It holds
pending changes only: nothing is written until the step commits.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from typing import Any

from millwheel.errors import CodecError, MillWheelError, PipelineError, UserCodeError, shorten
from millwheel.model import codec as codecs
from millwheel.model.batch import RecordBatch
from millwheel.model.codec import packer, state_packer
from millwheel.model.computation import BOUND, Computation
from millwheel.model.hooks import defines
from millwheel.model.pipeline import Node
from millwheel.model.record import Record
from millwheel.model.time import MAX_TIME, MIN_TIME, WALL, WATERMARK, Clock
from millwheel.model.timer import Timer
from millwheel.store.row import Times


class HookContext:
    """Pending changes of the current key, and the productions of the interval."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.computation = _private_copy(node.computation)
        self.attributes = self.computation.__dict__
        self.codec = self.computation.codec
        self.outputs: dict[str, RecordBatch] = {}
        self.counts: dict[str, int] = {}
        self.key = ""
        self.hand: Record | Timer | None = None
        """The argument of the current hook."""
        self.raw: bytes | None = None
        self.stored_version = 1
        """Of the current row; only valid for computations that have a version."""
        self.deleted = False
        self._deleted_by: Record | Timer | None = None
        """The argument of the hook that deleted the state."""
        self.timers: Times = {}
        self.wall: Times = {}
        self.holds: Times = {}
        self.changed = False
        self._pack = packer()
        # The default codec without an object in between: a state is read and written for each key.
        plain = self.codec is codecs.msgpack
        self._encode: Callable[[Any], bytes] = state_packer() if plain else self.codec.encode
        self._decode: Callable[[bytes], Any] = codecs.unpack if plain else self.codec.decode
        if self.computation.version != 1:
            self._read, self._decode = self._decode, self._migrated
        self.attributes["_context"] = self
        if not defines(self.computation, "process_timer"):
            setattr(self, "set_timer", self._no_timer)  # noqa: B010 - in place of a check in each call
        for name in BOUND:
            if getattr(type(self.computation), name) is getattr(Computation, name):
                self.attributes[name] = getattr(self, name)

    def reset(self) -> None:
        """Starts an interval."""
        self.outputs = {stream: RecordBatch([], [], keys=[], packed=True) for stream in self.node.outputs}
        self.counts = {}

    def begin(self, key: str, raw: bytes | None, timers: Times, wall: Times, holds: Times) -> None:
        """Switches to a key and its row in the store."""
        self.key = key
        self.raw = raw
        self.deleted = False
        self.timers = timers
        self.wall = wall
        self.holds = holds
        attributes = self.attributes
        attributes["key"] = key
        used = attributes.pop("state", self) is not self
        if used and raw is not None:
            # A computation that used the last key's state will use this one's: this skips __getattr__. If it
            # is read and not changed, it encodes to the same bytes, and nothing is written. A state that
            # cannot be read is an error of the hook that reads it, and is diverted with its record.
            try:  # noqa: SIM105  once for each key of each epoch: a context manager costs more than the read
                self.load_state()
            except CodecError:
                pass

    def _migrated(self, raw: bytes) -> Any:
        """Decodes a state that may need migration; stored again when the key is written."""
        state = self._read(raw)
        if self.stored_version == self.computation.version:
            return state
        return self.computation.migrate(self.stored_version, state)

    def load_state(self) -> Any:
        """Loads the state, at its first use."""
        if self.deleted and self._deleted_by is not self.hand:
            # By an earlier hook: for this one the key is as new as in a later epoch, so that the stored state
            # does not depend on how records are divided into epochs.
            self.deleted, self.raw = False, None
        if self.raw is None or self.deleted:
            state = self.computation.initial_state()
        else:
            try:
                state = self._decode(self.raw)
            except Exception as error:
                if self.stored_version != self.computation.version:
                    raise CodecError(
                        f"computation {self.node.name!r}, key {self.key!r}: its state of version "
                        f"{self.stored_version} cannot be migrated to version {self.computation.version} "
                        f"({type(error).__name__}: {error}): fix migrate()"
                    ) from error
                raise CodecError(
                    f"computation {self.node.name!r}, key {self.key!r}: the codec {self.codec!r} cannot read "
                    f"the stored state ({type(error).__name__}: {error})"
                ) from error
        self.attributes["state"] = state
        return state

    def delete_state(self) -> None:
        """Deletes the state and its holds; the next use gets the initial state."""
        self.attributes.pop("state", None)
        self.deleted = True
        self._deleted_by = self.hand
        self.holds.clear()

    def encoded(self) -> bytes | None:
        """The state's bytes to store; None: there is none."""
        attributes = self.attributes
        if "state" not in attributes:
            return None if self.deleted else self.raw
        try:
            data = self._encode(attributes["state"])
            if self.deleted and data == self._encode(self.computation.initial_state()):
                return None
        except Exception as error:
            raise CodecError(
                f"computation {self.node.name!r}, key {self.key!r}: the codec {self.codec!r} cannot encode "
                f"the state ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(data, bytes):
            raise CodecError(
                f"computation {self.node.name!r}: the codec {self.codec!r} returned "
                f"{type(data).__name__} for a state, not bytes"
            )
        return data

    def set_timer(self, tag: str, time: int, clock: Clock = WATERMARK) -> None:
        if clock is WATERMARK and type(time) is int and type(tag) is str and self.timers.get(tag) == time:
            return  # already set, as by every record of a window except the first
        if type(time) is not int:
            time = _integer(time, "a timer's time")
        if type(tag) is not str:
            raise TypeError(f"a timer's tag is a str, not {tag!r}")
        if not MIN_TIME <= time <= MAX_TIME:
            raise ValueError(f"a timer's time is a 64-bit integer, not {time}")
        if clock == WATERMARK:
            self.timers[tag] = time
            if self.wall:
                self.wall.pop(tag, None)
        elif clock == WALL:
            self.wall[tag] = time
            self.timers.pop(tag, None)
        else:
            raise ValueError(f"a timer's clock is millwheel.WATERMARK or millwheel.WALL, not {clock!r}")
        self.changed = True

    def _no_timer(self, tag: str, time: int, clock: Clock = WATERMARK) -> None:
        raise TypeError(
            f"it sets the timer {tag!r}, but {type(self.computation).__name__} has no process_timer for it: "
            "define process_timer(self, timer)"
        )

    def clear_timer(self, tag: str) -> None:
        if self.timers.pop(tag, None) is not None or self.wall.pop(tag, None) is not None:
            self.changed = True

    def produce(self, stream: str, value: Any, timestamp: int | None = None) -> None:
        output = self.outputs.get(stream)
        if output is None:
            raise PipelineError(
                f"computation {self.node.name!r} produces to {stream!r}, which is not among its outputs "
                f"({', '.join(self.node.outputs) or 'none'}): add it to outputs="
            )
        if timestamp is None:
            assert self.hand is not None
            timestamp = self.hand.timestamp
        elif type(timestamp) is not int:
            timestamp = _integer(timestamp, "a production's timestamp")
        if not MIN_TIME <= timestamp <= MAX_TIME:
            raise ValueError(f"a production's timestamp is a 64-bit integer, not {timestamp}")
        try:
            packed = self._pack(value)
        except Exception as error:
            raise CodecError(
                f"computation {self.node.name!r}, stream {stream!r}: the value cannot be encoded: {error}"
            ) from error
        output.values.append(packed)
        output.timestamps.append(timestamp)
        output.keys.append(self.key)  # type: ignore[union-attr]  # see `reset`

    def hold(self, timestamp: int, tag: str = "") -> None:
        if type(timestamp) is not int:
            timestamp = _integer(timestamp, "a hold's timestamp")
        if type(tag) is not str:
            raise TypeError(f"a hold's tag is a str, not {tag!r}")
        if not MIN_TIME <= timestamp <= MAX_TIME:
            raise ValueError(f"a hold's timestamp is a 64-bit integer, not {timestamp}")
        self.holds[tag] = timestamp

    def release(self, tag: str = "") -> None:
        self.holds.pop(tag, None)

    def count(self, name: str, n: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + n

    def save(self) -> tuple[Any, ...]:
        """All pending changes, to be restored if the next hook fails and is diverted."""
        loaded = "state" in self.attributes
        return (
            loaded,
            self.codec.encode(self.attributes["state"]) if loaded else None,
            self.raw,
            self.deleted,
            dict(self.timers),
            dict(self.wall),
            dict(self.holds),
            {stream: len(output) for stream, output in self.outputs.items()},
            dict(self.counts),
        )

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Undoes what a hook did since `save`."""
        loaded, state, self.raw, self.deleted, timers, wall, holds, lengths, self.counts = saved
        self.attributes.pop("state", None)
        if loaded:
            self.attributes["state"] = self.codec.decode(state)
        for mine, before in ((self.timers, timers), (self.wall, wall), (self.holds, holds)):
            mine.clear()  # in place: the step refers to them
            mine.update(before)
        self.changed = True
        for stream, length in lengths.items():
            self.outputs[stream].truncate(length)


class ReturnedValue(TypeError):
    """A hook returned a value, which would be lost."""

    def __init__(self, value: Any) -> None:
        super().__init__(
            f"returned {shorten(value, 80)}, but the value of a hook is not used: send it with "
            "self.produce(stream, value), or return nothing"
        )


def _integer(value: Any, what: str) -> int:
    """An integer of another type (NumPy's, an IntEnum) as a plain one."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} is an int, in microseconds, not {value!r}")
    return int(value.__index__())


def _private_copy(computation: Computation) -> Computation:
    """A worker's own instance: attributes that hooks set are soft state."""
    try:
        return copy.deepcopy(computation)
    except Exception:  # it pickles, as it must, but has something that deepcopy cannot copy
        return copy.copy(computation)


def user_error(context: HookContext, error: Exception) -> UserCodeError:
    """A hook's exception, with the computation, the key and the record or timer."""
    if isinstance(error, MemoryError):
        # What the hook allocated is kept by its frames and by the state; without it nothing can be reported.
        traceback.clear_frames(error.__traceback__)
        context.attributes.pop("state", None)
    name, key, hand = context.node.name, context.key, context.hand
    if isinstance(error, MillWheelError):
        message = str(error)  # the engine's: it has the location
    else:
        where = "process_timer" if isinstance(hand, Timer) else "process_record"
        text = str(error)
        if not isinstance(error, ReturnedValue):
            text = f"raised {type(error).__name__}" + (f": {text}" if text else "")
        message = f"computation {name!r}, key {shorten(key, 80)}: {where} {text}" + (
            f"; it had {shorten(hand)}" if hand is not None else ""
        )
    return UserCodeError(
        message,
        computation=name,
        key=key,
        record=hand,
        cause=error,
        details="".join(traceback.format_exception(error)),
    )
