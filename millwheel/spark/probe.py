"""What an executor is asked before the first epoch. It travels by value: nothing of ours need be there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Answer:
    """One executor's."""

    id: str
    host: str
    machine: str
    python: str
    pyspark: str
    missing: list[str]
    sees: bool

    @property
    def who(self) -> str:
        """The executor, for a message."""
        return f"an executor on the host {self.host}"


def machine() -> str:
    """What tells machines apart, and not the containers of one: the boot of its kernel."""
    import socket

    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


@dataclass
class Question:
    """A task: which packages are missing, and whether a file is there with a token in it."""

    packages: tuple[str, ...] = ()
    path: str = ""
    token: str = ""

    def __call__(self, items: Iterable[Any]) -> Iterator[dict[str, Any]]:
        import importlib
        import os
        import socket
        import sys
        import time

        import pyspark

        for _ in items:
            pass
        missing = []
        for name in self.packages:
            try:
                importlib.import_module(name)
            except ImportError:
                missing.append(name)
        try:
            with open(self.path) as file:
                sees = file.read() == self.token
        except OSError:
            sees = False
        time.sleep(0.05)  # so that one quick executor does not answer in the place of all
        yield {
            # The folders of its block manager, of which Spark tells its Python workers: no two share one.
            "id": os.environ.get("SPARK_LOCAL_DIRS", str(os.getppid())),
            "host": socket.gethostname(),
            "machine": machine(),
            "python": sys.executable,
            "pyspark": pyspark.__version__,
            "missing": missing,
            "sees": sees,
        }
