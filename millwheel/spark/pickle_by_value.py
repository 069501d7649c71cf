"""Pickling a function for a process with an older form of its module.

A name would be resolved there to the old code. So the user's own modules are pickled by
value: the module of the function with its package, and every module that is not an installed package.
Installed packages, and millwheel, are pickled by name.
"""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from pyspark import cloudpickle

from millwheel.errors import PipelineError
from millwheel.spark.tasks import dumps

_register: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value


def by_value(function: Callable[[], Any]) -> bytes:
    """Pickles a function without arguments; `pickle.loads` restores it anywhere."""
    for module in _own_modules(function.__module__):
        _register(module)
    try:
        return dumps(function)
    except Exception as error:
        raise PipelineError(
            f"{function.__module__}:{getattr(function, '__qualname__', function)} cannot be sent to the "
            f"process that runs the pipeline ({type(error).__name__}: {error}): it, or a module that it "
            "uses, has a value that does not pickle; create it inside the function"
        ) from error


def _own_modules(name: str) -> Iterator[ModuleType]:
    """The user's modules that are imported."""
    package = name.partition(".")[0]
    paths = sysconfig.get_paths()
    installed = [paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed += [*site.getsitepackages(), site.getusersitepackages()]
    for other, module in list(sys.modules.items()):
        top = other.partition(".")[0]
        if top in ("millwheel", "__main__", "__mp_main__"):
            continue
        file = getattr(module, "__file__", None)
        own = file is not None and not file.startswith(tuple(installed))
        if top == package or own:
            yield module
