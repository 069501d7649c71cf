"""The options of a run: one value for `run`, `start`, the harness and the command line."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict, TypeVar

from millwheel.errors import PipelineError
from millwheel.master.intervals import check_slots
from millwheel.master.standby import TAKEOVER_AFTER, check_takeover_after

DUE_LIMIT = 100_000
"""Keys: a hundred megabytes of rows and productions in a worker's memory."""
COMPACT_BELOW = 4_000
"""Records: below that, the stages of a Spark job cost more than one task that runs the whole graph."""
SLOW_AFTER = 30.0
"""Seconds after which a hook that has not returned is named."""

_F = TypeVar("_F", bound=Callable[..., Any])


class OptionValues(TypedDict, total=False):
    """The options as keyword arguments, for type checkers; `Options` says what they mean."""

    slots: int | None
    target: float | None
    due_limit: int | None
    step_budget: float | None
    compact_below: int | None
    max_skew: int | None
    cache: int | None
    balance: bool
    resident: bool
    slow_after: float
    accept: Collection[str]
    takeover: bool
    standby: bool
    takeover_after: float
    watch: bool
    trace: bool
    ui: int | str | None
    ui_token: str | None
    progress: bool | None


@dataclass(frozen=True)
class Options:
    """What a run can be told.

    Args:
        slots: In how many pieces the key space is worked on at once; by default Spark's parallelism.
        target: Seconds that a full epoch is to take; by default 3, in `start` 1, with a backlog up to 5.
        due_limit: Keys with due timers that an interval takes up in one epoch; by default 100,000.
        step_budget: Seconds after which a step leaves its records to the next epoch; by default 1, or target.
        compact_below: Epochs of at most so many records run in one task; by default 4,000.
        max_skew: Microseconds that records may be read ahead of the slowest low watermark.
        cache: Bytes of the store that an executor keeps; by default 64 MB for PostgreSQL, none for LMDB.
        balance: Whether key intervals follow the load: move, split and merge.
        resident: Whether compact epochs that follow each other share one Spark task, which is faster.
        slow_after: Seconds after which a hook that has not returned is named in log, status and page.
        accept: Computations whose key extractors may be others than their rows in the store were made with.
        takeover: Whether to take the store from a driver that still holds it.
        standby: Whether to wait, ready to run, until no other driver leads the pipeline.
        takeover_after: Seconds without a sign of a leader that hangs, after which a standby takes over.
        watch: Whether the last minutes are noted in the store, for the page and `millwheel top`.
        trace: Whether each epoch becomes an OpenTelemetry span.
        ui: Serves a page: a port, on this machine alone, or an address such as ``"0.0.0.0:8080"``.
        ui_token: What a browser must know to see the page; by default a random one, if it listens wider.
        progress: Whether to show progress; by default in a terminal, in a notebook, and every ten seconds
            elsewhere for a run that ends by itself.
    """

    slots: int | None = None
    target: float | None = None
    due_limit: int = DUE_LIMIT
    step_budget: float | None = None
    compact_below: int = COMPACT_BELOW
    max_skew: int | None = None
    cache: int | None = None
    balance: bool = True
    resident: bool = True
    slow_after: float = SLOW_AFTER
    accept: Collection[str] = ()
    takeover: bool = False
    standby: bool = False
    takeover_after: float = TAKEOVER_AFTER
    watch: bool = True
    trace: bool = False
    ui: int | str | None = None
    ui_token: str | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.slots is not None:
            check_slots(self.slots)
        if not _is_number(self.slow_after) or self.slow_after <= 0:
            raise PipelineError(
                f"the option slow_after is a number of seconds, such as 30, not {self.slow_after!r}"
            )
        check_takeover_after(self.takeover_after)
        if self.cache is not None and (not _is_number(self.cache, int) or self.cache < 0):
            raise PipelineError(
                f"the option cache is a number of bytes, such as 64_000_000, or 0; not {self.cache!r}"
            )

    @staticmethod
    def of(given: Mapping[str, Any]) -> Options:
        """The options of a call; None leaves one at its default.

        >>> try:
        ...     Options.of({"slot": 4})
        ... except PipelineError as error:
        ...     print(str(error)[:60])
        unknown option slot: did you mean slots? There are slots, ta
        """
        unknown = sorted(given.keys() - set(NAMES))
        if unknown:
            close = {near: None for name in unknown for near in difflib.get_close_matches(name, NAMES, 2)}
            meant = f": did you mean {' or '.join(close)}? There" if close else "; there"
            raise PipelineError(
                f"unknown option {', '.join(unknown)}{meant} are {', '.join(NAMES)}: see help(millwheel.run)"
            )
        return Options(**{name: value for name, value in given.items() if value is not None})


NAMES = tuple(field.name for field in fields(Options))


def takes_options(function: _F) -> _F:
    """Shows the options in the signature and the documentation of a function that takes them as keywords."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    shown = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for one in fields(Options)
    ]
    function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
    if function.__doc__ and Options.__doc__ and "Args:" in function.__doc__:
        described = Options.__doc__.split("Args:\n")[1].rstrip()
        function.__doc__ = f"{function.__doc__.rstrip()}\n{described}\n"
    return function


def _is_number(value: object, kind: Any = (int, float)) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
