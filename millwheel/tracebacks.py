"""Errors for people: what, where and what to do; the full trace goes to a file.

Exceptions are not changed: only the output for an uncaught one is different.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import TracebackType

from millwheel.errors import MillWheelError, UserCodeError

_OURS = Path(__file__).parent
_KEPT = 20  # traces; the oldest are removed first
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line \d+')


def install() -> None:
    """Shows uncaught millwheel errors so in this process; others are unchanged."""
    if getattr(sys.excepthook, "__module__", None) == __name__:
        return
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, MillWheelError):
            print(explain(error), file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = show


def explain(error: MillWheelError) -> str:
    """The message, the user's own lines of the trace, and the file of the full trace."""
    called = [
        f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n    {frame.line}'
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_users(frame.filename)
    ]
    return "\n".join([*called[-3:], f"{type(error).__name__}: {brief(error, always=True)}"])


def brief(error: MillWheelError, *, always: bool = False) -> str:
    """The message; with the file of the full trace if there is a cause, or always."""
    parts = [str(error.args[0]) if error.args else str(error)]
    behind = error.__cause__ is not None
    if isinstance(error, UserCodeError) and error.details:
        parts += users_lines(error.details)
        behind = True
    path = keep(error) if behind or always else None
    if path is not None:
        parts.append(f"The whole trace is in {path}")
    return "\n".join(parts)


def users_lines(details: str) -> list[str]:
    """The user's frames of a trace, and its last lines with the exception."""
    shown, taken = [], False
    for line in details.rstrip("\n").splitlines():
        found = _FRAME.match(line)
        if found:
            taken = _is_users(found["file"])
        elif line.startswith("Traceback ") or not line.strip():
            taken = False
            continue
        elif not line.startswith(" "):
            taken = True
        if taken:
            shown.append(line)
    return shown


def _is_users(file: str) -> bool:
    path = Path(file)
    inside = {"pyspark", "py4j", "site-packages", "dist-packages"} & set(path.parts)
    return path.suffix == ".py" and not inside and not path.is_relative_to(_OURS) and not _is_library(path)


def _is_library(path: Path) -> bool:
    """Whether a file is Python's own, or in an archive, as PySpark's in its workers."""
    zipped = any(part.endswith(".zip") for part in path.parts)
    return zipped or path.is_relative_to(Path(os.__file__).parent)


def keep(error: BaseException) -> Path | None:
    """Writes the full trace to a file; None if that fails."""
    folder = Path(tempfile.gettempdir()) / f"millwheel-traces-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            return None
        for old in sorted(folder.glob("*.txt"))[: -_KEPT + 1]:
            old.unlink(missing_ok=True)
        path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        text = "".join(traceback.format_exception(error))
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
    except OSError:
        return None
    return path
