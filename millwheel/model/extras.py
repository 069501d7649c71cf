"""Packages of optional dependencies, imported when they are first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from millwheel.errors import MillWheelError


def import_extra(who: str, extra: str, *modules: str, error: type[MillWheelError] = MillWheelError) -> Any:
    """Imports modules of an extra, and returns the first; the error has the fix.

    >>> import_extra("Kafka needs", "kafka", "no_such_module")
    Traceback (most recent call last):
        ...
    millwheel.errors.MillWheelError: Kafka needs no-such-module, which cannot be imported (No module named \
'no_such_module'): pip install 'millwheel-spark[kafka]'
    """
    try:
        found, *_ = [import_module(name) for name in modules]
    except ImportError as missing:
        package = modules[0].replace("_", "-")
        raise error(
            f"{who} {package}, which cannot be imported ({missing}): pip install 'millwheel-spark[{extra}]'"
        ) from missing
    return found
