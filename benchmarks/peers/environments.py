"""Environments for the peers that need one of their own: ``python -m benchmarks.peers.environments``.

PyFlink asks for versions of NumPy and PyArrow that are not ours, Bytewax has wheels for some Pythons only,
and Pathway brings 130 packages; each gets a virtual environment, made once, below `artifacts/peers` (or where
MILLWHEEL_PEERS says).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[2] / "artifacts" / "peers"
_PATIENCE = 1_200  # seconds for an installation: PyFlink is half a gigabyte, Pathway 1.6


@dataclass(frozen=True)
class Environment:
    """What is installed, and the Pythons that it is made for."""

    name: str
    requirements: tuple[str, ...]
    pythons: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return Path(os.environ.get("MILLWHEEL_PEERS") or _FOLDER) / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


FLINK = Environment("flink", ("apache-flink==2.3.0", "orjson==3.13.0"), ("3.11", "3.12", "3.10"))
BYTEWAX = Environment("bytewax", ("bytewax==0.21.1", "orjson==3.13.0"), ("3.11", "3.12", "3.10"))
PATHWAY = Environment("pathway", ("pathway==0.33.0",), ("3.11", "3.12", "3.10"))


class Unavailable(Exception):
    """A peer that cannot be installed here, with the reason."""


def ensure(environment: Environment) -> Path:
    """The environment's Python, made where it is not there yet."""
    if is_there(environment):
        return environment.python
    base = _interpreter(environment)
    shutil.rmtree(environment.folder, ignore_errors=True)
    call([base, "-m", "venv", os.fspath(environment.folder)])
    print(f"installing {', '.join(environment.requirements)} into an environment of its own", flush=True)
    install = ["-m", "pip", "install", "-q", "--disable-pip-version-check", *environment.requirements]
    call([os.fspath(environment.python), *install])
    _mark(environment).write_text("\n".join(environment.requirements))
    return environment.python


def is_there(environment: Environment) -> bool:
    """Whether it is made, with the versions that are asked for."""
    mark = _mark(environment)
    return mark.is_file() and mark.read_text() == "\n".join(environment.requirements)


def _mark(environment: Environment) -> Path:
    return environment.folder / ".installed"


def _interpreter(environment: Environment) -> str:
    """This Python, if it will do, or another one of the machine."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" in environment.pythons:
        return sys.executable
    for version in environment.pythons:
        found = shutil.which(f"python{version}")
        if found is not None:
            return found
    raise Unavailable(f"{environment.name} needs one of Python {', '.join(environment.pythons)}")


def call(command: list[str]) -> None:
    """Runs a step of the installation; `Unavailable` with its last word where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"the installation took more than {_PATIENCE} seconds") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Unavailable(without_addresses(lines[-1]) if lines else "pip failed")


def without_addresses(reason: str) -> str:
    """A reason without the index that pip or mvn asked, which is the machine's business."""
    return re.sub(r"\w+://\S+", "…", reason)


def main() -> int:
    """Makes them all; says which could not be made."""
    failed = 0
    for environment in (FLINK, BYTEWAX, PATHWAY):
        try:
            print(f"{environment.name}: {ensure(environment)}")
        except Unavailable as error:
            print(f"{environment.name}: not available: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
