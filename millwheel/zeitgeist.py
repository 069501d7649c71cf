"""The former place of `millwheel.apps.zeitgeist`: imports from here still work."""

import sys
from importlib import import_module

__path__: list[str] = []  # a package, for imports of the modules below

_MODULES = {
    "counts": "counts",
    "episodes": "episodes",
    "leaning": "leaning",
    "packed": "packed",
    "pipeline": "pipeline",
    "replay": "offline",
    "settings": "settings",
    "sources": "inputs",
    "stream": "synthetic",
    "surprise": "surprise",
    "values": "value_model",
    "windows": "window_counter",
}
for _old, _new in _MODULES.items():
    sys.modules[f"{__name__}.{_old}"] = import_module(f"millwheel.apps.zeitgeist.{_new}")
