"""A resident task that was presumed dead, and continues beside its replacement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millwheel.errors import FencedError
from millwheel.testing.faults import Lost, World
from millwheel.worker.envelope import Frame
from millwheel.worker.epoch import load_error


def go_on(world: World, run: Callable[[], Sequence[Frame]]) -> None:
    """Runs the epoch to its end; its commits may be first, late, or refused."""
    world.current.in_task = True
    try:
        frames = run()
    except Lost:
        return
    errors = [load_error(frame.error) for frame in frames if frame.error is not None]
    if any(not isinstance(error, FencedError) for error in errors):
        raise errors[0]
    world.happened["stale, refused" if errors else "stale, taken"] += 1
