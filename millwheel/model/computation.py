"""Computations: where application logic lives (4.1, 5.1, Fig. 7)."""

from __future__ import annotations

from typing import Any, Protocol

from millwheel.model import codec as codecs
from millwheel.model.record import Record
from millwheel.model.time import WATERMARK, Clock
from millwheel.model.timer import Timer

BOUND = ("set_timer", "clear_timer", "produce", "hold", "release", "count")
"""The accessors that a worker binds to the instance, for direct calls."""


class Context(Protocol):
    """What a computation can access while a hook runs."""

    def load_state(self) -> Any: ...
    def delete_state(self) -> None: ...
    def set_timer(self, tag: str, time: int, clock: Clock = WATERMARK) -> None: ...
    def clear_timer(self, tag: str) -> None: ...
    def produce(self, stream: str, value: Any, timestamp: int | None = None) -> None: ...
    def hold(self, timestamp: int, tag: str = "") -> None: ...
    def release(self, tag: str = "") -> None: ...
    def count(self, name: str, n: int = 1) -> None: ...


class Computation:
    """A node of the graph: user code that runs in the context of one key at a time.

    Override `process_record`, `process_timer` or both. Everything that the accessors change is
    committed in one atomic write, or not at all. A hook returns nothing: it produces its output.

    Attributes that a hook sets on ``self`` are soft state: all keys of a worker share them, other workers
    have their own, and a restart loses them. They are for what can be made again, such as a model that is
    loaded once:

    >>> class Scorer(Computation):
    ...     model = None
    ...     def process_record(self, record):
    ...         if self.model is None:
    ...             self.model = {"cat": 0.9}  # load_model(), once in each worker
    ...         self.produce("scores", self.model.get(record.value, 0.0))

    What must persist, by key, is ``self.state``:

    >>> class Counter(Computation):
    ...     def process_record(self, record):
    ...         self.state["n"] = self.state.get("n", 0) + 1
    ...         self.produce("counts", self.state["n"])
    """

    codec: Any = codecs.msgpack
    """The codec of the state."""
    exactly_once: bool = True
    """Drop records whose ID was seen (6.1.1)."""
    strong_productions: bool = True
    """Checkpoint productions before they are delivered (6.1.2)."""
    version: int = 1
    """The version of the state's form; older stored state is passed to `migrate`."""

    key: str
    """The key of the hook."""
    state: Any
    """The key's persistent state: mutate it, assign to it, or ``del self.state``."""
    low_watermark: int
    """The input watermark: records with older timestamps are no longer expected."""
    now: int
    """This epoch's wall time; the same for every attempt at the epoch."""

    def process_record(self, record: Record) -> None:
        """Called for each record of the key, in arrival order."""

    def process_timer(self, timer: Timer) -> None:
        """Called for each due timer of the key, in order of time."""

    def initial_state(self) -> Any:
        """The state of a key never seen."""
        return {}

    def migrate(self, old_version: int, state: Any) -> Any:
        """Converts the state of an earlier version of this computation.

        Called once for a key, when its state is first used; the result is stored with that key's
        next write. It may change ``state`` and return it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has version {self.version}, and no migrate() for state of version "
            f"{old_version}"
        )

    def set_timer(self, tag: str, time: int, clock: Clock = WATERMARK) -> None:
        """Sets the key's timer ``tag``, or moves it."""
        self._inside().set_timer(tag, time, clock)

    def clear_timer(self, tag: str) -> None:
        """Removes the key's timer ``tag``, if it is set."""
        self._inside().clear_timer(tag)

    def produce(self, stream: str, value: Any, timestamp: int | None = None) -> None:
        """Produces a record; the default timestamp is the current record's or timer's."""
        self._inside().produce(stream, value, timestamp)

    def hold(self, timestamp: int, tag: str = "") -> None:
        """Gives the key's state a timestamp, which holds the low watermark (5.2)."""
        self._inside().hold(timestamp, tag)

    def release(self, tag: str = "") -> None:
        """Releases a hold, if it is set."""
        self._inside().release(tag)

    def count(self, name: str, n: int = 1) -> None:
        """Adds to a user metric."""
        self._inside().count(name, n)

    def _inside(self) -> Context:
        context: Context | None = self.__dict__.get("_context")
        if context is None:
            raise RuntimeError(
                f"{type(self).__name__}: state, timers and productions are available only inside "
                "process_record and process_timer"
            )
        return context

    # The state is an ordinary attribute once it is loaded, so that hooks use it at the speed of
    # an attribute; these two handle only its first use by a key and its deletion.
    def __getattr__(self, name: str) -> Any:
        if name == "state":
            return self._inside().load_state()
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        if name == "state":
            self._inside().delete_state()
        else:
            object.__delattr__(self, name)
