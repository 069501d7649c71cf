"""Checks of operators' arguments: a mistake is a `PipelineError` when it is made."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

from millwheel.errors import PipelineError
from millwheel.model.derived import is_public
from millwheel.operators.windows import Session, Sliding, Tumbling

if TYPE_CHECKING:
    from millwheel.model.pipeline import Pipeline

logger = logging.getLogger("millwheel")


def checked_name(where: str, name: object) -> None:
    """Refuses an invalid name of a stream."""
    if not isinstance(name, str) or not name or not is_public(name):
        raise PipelineError(f"{where}: the name of the stream is a text that is not empty, not {name!r}")


def checked_window(where: str, window: object) -> None:
    """Refuses an invalid window."""
    if not isinstance(window, Tumbling | Sliding | Session):
        raise PipelineError(
            f"{where}: a window is one of millwheel.windows, such as tumbling(millwheel.MINUTE), "
            f"not {window!r}"
        )
    if not isinstance(window, Sliding) or window.size % window.every == 0:
        return
    if window.every > window.size:
        gap = window.every - window.size
        said = f"the last {gap} of every {window.every} microseconds are in no window"
    else:
        few = window.size // window.every
        said = (
            f"size is not a multiple of every, so a record is in {few} or {few + 1} windows, by its timestamp"
        )
    logger.warning("%s: %r: %s", where, window, said)


def checked_function(where: str, function: object) -> Any:
    """Refuses what cannot be called with a value."""
    if not callable(function):
        raise PipelineError(f"{where} takes a function of a value, not {function!r}")
    if inspect.iscoroutinefunction(function):
        raise PipelineError(f"{where}: {function!r} is async; operators call plain functions")
    return function


def checked_output(where: str, pipeline: Pipeline, inputs: tuple[str, ...], name: object) -> None:
    """Refuses an output name that is invalid, taken, or one of the inputs."""
    checked_name(where, name)
    if name in pipeline.derived:
        raise PipelineError(f"{where}: there is a stream {name!r} already: give this one another name")
    todo, seen = list(inputs), set(inputs)
    while todo:
        stream = todo.pop()
        if stream == name:
            raise PipelineError(
                f"{where}: it would write {name!r}, which is its own input: give it another name"
            )
        derived = pipeline.derived.get(stream)
        above = [*(derived.parents if derived is not None else ())]
        for node in pipeline.nodes.values():
            if stream in node.streams:
                above += node.inputs
        todo += [stream for stream in above if stream not in seen]
        seen.update(above)


def checked_new(where: str, pipeline: Pipeline, name: object) -> None:
    """Refuses a name for a derived stream that has a writer already."""
    writers = [f"computation {node.name!r}" for node in pipeline.nodes.values() if name in node.streams]
    writers += ["an injector" for source in pipeline.sources if source.stream == name]
    if writers:
        raise PipelineError(
            f"{where}: {writers[0]} writes a stream {name!r} already: give this one another name, "
            "and join them with union()"
        )
