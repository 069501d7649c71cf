"""The options of a run: for `run`, `start`, the harness and the command line."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict, TypeVar

from millwheel.errors import PipelineError
from millwheel.master.intervals import check_slots
from millwheel.master.standby import TAKEOVER_AFTER, check_takeover_after
from millwheel.model.keys import MOST_TABLETS, TABLETS, is_tablets

DUE_LIMIT = 100_000
"""Keys: a hundred megabytes of rows and productions in a worker's memory."""
COMPACT_BELOW = 4_000
"""Records: with fewer, Spark's stages cost more than one task for the graph."""
SLOW_AFTER = 30.0
"""Seconds after which a hook that has not returned is reported."""

_F = TypeVar("_F", bound=Callable[..., Any])


class OptionValues(TypedDict, total=False):
    """The options as keyword arguments, for type checkers; see `Options`."""

    slots: int | None
    tablets: int | None
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
    """The options of a run.

    Args:
        slots: The number of pieces of the key space processed at once; by default Spark's parallelism.
        tablets: Of a new store: the most slots that it can have, a power of two from 64 to 4096; by default
            64, with more slots four for each.
        target: Seconds for a full epoch; by default 3, in `start` 1, with a backlog up to 5.
        due_limit: Keys with due timers that an interval processes in one epoch; by default 100,000.
        step_budget: Seconds after which a step leaves its records to the next epoch; by default 1, or target.
        compact_below: Epochs of at most this many records run in one task; by default 4,000.
        max_skew: Microseconds that records may be read ahead of the slowest low watermark.
        cache: Bytes of the store that an executor caches; by default 64 MB for PostgreSQL, none for LMDB.
        balance: Whether key intervals follow the load: move, split and merge.
        resident: Whether consecutive compact epochs share one Spark task, which is faster.
        slow_after: Seconds after which a hook that has not returned is reported in log, status and page.
        accept: Computations whose key extractors may differ from those that made their rows in the store.
        takeover: Whether to take the store from a driver that still holds it.
        standby: Whether to wait, ready to run, until no other driver leads the pipeline.
        takeover_after: Seconds without a heartbeat of a leader, after which a standby takes over.
        watch: Whether the last minutes are recorded in the store, for the page and `millwheel top`.
        trace: Whether each epoch becomes an OpenTelemetry span.
        ui: Serves a page: a port, on this machine alone, or an address such as ``"0.0.0.0:8080"``.
        ui_token: The token that a browser must send; by default a random one, if other machines can connect.
        progress: Whether to show progress; by default in a terminal, in a notebook, and every ten seconds
            elsewhere for a run that ends by itself.
    """

    slots: int | None = None
    tablets: int | None = None
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
        if self.tablets is not None and not is_tablets(self.tablets):
            raise PipelineError(
                f"the option tablets is a power of two from {TABLETS} to {MOST_TABLETS}, not {self.tablets!r}"
            )
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
    """Adds the options to the signature and the docstring of a function."""
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
