"""Python's garbage collection in the driver."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pauses the collector of cycles, unless it is off already.

    The reports of an epoch are many objects that live equally long: with 4,096 slots the collector takes more
    than half of the driver's time to find that nothing is garbage.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
