"""Checks of a computation's hooks when it is added, so that none is ignored."""

from __future__ import annotations

import difflib
import inspect
import logging
from typing import Final

from millwheel.errors import PipelineError
from millwheel.model.computation import Computation

logger = logging.getLogger("millwheel")

HOOKS: Final = ("process_record", "process_timer")

_OTHER_NAMES: Final = {
    "process_record": ("process", "on_record", "on_event", "on_element", "handle", "handle_record", "record"),
    "process_timer": ("on_timer", "timer", "handle_timer", "fire", "on_fire"),
}
"""Names of the hooks in other systems."""

_CLOSE = 0.8  # similarity: matches process_records and processRecrod, not process_batch


def defines(computation: Computation, hook: str) -> bool:
    """Whether a computation has a hook of its own."""
    found = getattr(computation, hook)
    return getattr(found, "__func__", found) is not getattr(Computation, hook)


def check_hooks(computation: Computation, where: str) -> None:
    """Refuses hooks that would do nothing: missing, generators, or coroutines."""
    defined = [hook for hook in HOOKS if defines(computation, hook)]
    for hook in defined:
        found = getattr(computation, hook)
        if not callable(found):
            raise PipelineError(f"{where}: {hook} is {found!r}, which is not a method")
        if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
            raise PipelineError(
                f"{where}: {hook} is defined with async def, which is never awaited: write def {hook}"
            )
        if inspect.isgeneratorfunction(found):
            raise PipelineError(
                f"{where}: {hook} has a yield, so its body would never run: in place of `yield value` "
                "write self.produce(stream, value)"
            )
    close = {hook: name for hook in HOOKS if hook not in defined and (name := _close(computation, hook))}
    if not defined:
        said = "; ".join(f"it has {name}: did you mean {hook}?" for hook, name in close.items())
        raise PipelineError(
            f"{where}: {type(computation).__name__} defines neither process_record nor process_timer, so it "
            f"would do nothing. {said[:1].upper() + said[1:] or 'Define process_record(self, record)'}"
        )
    for hook, name in close.items():
        if _like(name, hook) >= _CLOSE:
            logger.warning(
                "%s: %s has a method %s and no %s: did you mean %s?",
                where,
                type(computation).__name__,
                name,
                hook,
                hook,
            )


def _close(computation: Computation, hook: str) -> str | None:
    """The user's method that is most likely meant to be a hook."""
    own = [
        name
        for name in dir(type(computation))
        if not hasattr(Computation, name) and callable(getattr(type(computation), name, None))
    ]
    named = [name for name in own if _plain(name) in map(_plain, _OTHER_NAMES[hook])]
    alike = [name for name in own if _like(name, hook) >= _CLOSE]
    other = HOOKS[1 - HOOKS.index(hook)]
    alike = [name for name in alike if _like(name, hook) >= _like(name, other)]
    return max(alike or named, key=lambda name: (_like(name, hook), name), default=None)


def _like(name: str, hook: str) -> float:
    return difflib.SequenceMatcher(None, _plain(name), _plain(hook)).ratio()


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
