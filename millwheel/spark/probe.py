"""The probe of an executor before the first epoch; pickled by value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Answer:
    """The answer of one executor."""

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
    """An identity of the machine, shared by its containers: the boot of its kernel."""
    import socket

    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


@dataclass
class Question:
    """A task: which packages are missing, and whether a file with a token exists."""

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
        time.sleep(0.05)  # so that one quick executor does not run all tasks
        yield {
            # The folders of its block manager, which Spark passes to its Python workers: unique.
            "id": os.environ.get("SPARK_LOCAL_DIRS", str(os.getppid())),
            "host": socket.gethostname(),
            "machine": machine(),
            "python": sys.executable,
            "pyspark": pyspark.__version__,
            "missing": missing,
            "sees": sees,
        }
