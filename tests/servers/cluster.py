"""A standalone Spark cluster of one's own on loopback: a master and workers, processes of this test."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from millwheel.spark.class_archive import archive
from tests.servers.processes import Unavailable, await_answer, free_port, stop

_PACKAGE = "org.apache.spark.deploy"


def _quick_java() -> str:
    """Options for a JVM that lives for a minute: what optimising it takes is never given back.

    With the user's archive of classes, if there is one, each starts with half the work.
    """
    kept = archive()
    found = None if kept is None else kept.find()
    shared = "" if found is None else f" -XX:SharedArchiveFile={found} -Xlog:cds*=off"
    return f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC{shared}"


@dataclass
class Standalone:
    """A running cluster. Each worker has one core, so an application gets an executor on each."""

    folder: Path
    port: int
    page: int
    master_process: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start_worker(self) -> None:
        """Starts one more, and waits until the master knows it."""
        number = len(self.workers)
        expected = self.alive() + 1
        folder = self.folder / f"worker-{number}"
        host = _host(number)
        arguments = ["--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0", "-d", str(folder)]
        process = _start(self.folder, f"{_PACKAGE}.worker.Worker", *arguments, self.master, host=host)
        self.workers.append(process)
        await_answer(lambda: self.alive() >= expected, process, "a Spark worker")

    def alive(self) -> int:
        """The workers that the master knows; -1 while it does not say, as just after its start."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.page}/json/", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
        except (urllib.error.URLError, OSError, ValueError):
            return -1
        return int(found["aliveworkers"])

    def executors(self) -> list[psutil.Process]:
        """The processes of executors: Java, below the workers.

        A worker may have another child: Spark's script leaves a process behind that nobody waits for.
        """
        return [process for worker in self.workers for process in _children(worker) if _is_executor(process)]

    def kill_worker(self) -> Path:
        """Kills a worker as a machine dies, its executor with it; waits until the master knows.

        Gives the folder of its working copies, as if it were its disk; it is left as it is.
        """
        number, worker = next(
            (number, worker) for number, worker in enumerate(self.workers) if worker.poll() is None
        )
        family = psutil.Process(worker.pid).children(recursive=True)
        stop(worker, signal.SIGKILL)
        for process in family:
            if process.is_running():
                process.kill()
        left = sum(worker.poll() is None for worker in self.workers)
        await_answer(lambda: self.alive() == left, self.master_process, "the Spark master")
        return _copies(self.folder, _host(number))


def _host(number: int) -> str:
    """An address of a worker's own: Spark makes no second attempt at a task on the host of the first."""
    return f"127.0.0.{number + 1}"


def _copies(folder: Path, host: str) -> Path:
    return folder / f"copies-{host}"


def _children(worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(worker.pid).children()
    except psutil.NoSuchProcess:  # it was killed
        return []


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("ExecutorBackend" in word for word in process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


@contextmanager
def standalone(workers: int = 2) -> Iterator[Standalone]:
    """A cluster that is stopped and removed at the end; `Unavailable` says why there is none."""
    if shutil.which("java") is None:
        raise Unavailable("there is no Java")
    folder = Path(tempfile.mkdtemp(prefix="millwheel-cluster-"))
    port, page = free_port(), free_port()
    found: Standalone | None = None
    try:
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
        process = _start(folder, f"{_PACKAGE}.master.Master", *arguments)
        found = Standalone(folder, port, page, process)
        await_answer(lambda: found.alive() == 0, process, "the Spark master")
        for _ in range(workers):
            found.start_worker()
        yield found
    finally:
        if found is not None:
            for running in (*found.workers, found.master_process):
                stop(running)
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, *command: str, host: str = "127.0.0.1") -> subprocess.Popen[bytes]:
    """Spark's scripts become the Java process, so it is ours to stop."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": host,
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "MILLWHEEL_COPIES": str(_copies(folder, host)),  # as if each had a disk of its own
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _quick_java(),
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # its port is the same for everybody
    }
    if "JAVA_HOME" in os.environ:
        environment["JAVA_HOME"] = os.environ["JAVA_HOME"]
    with open(folder / "log", "ab") as log:
        return subprocess.Popen(
            [home / "bin" / "spark-class", *command], stdout=log, stderr=log, env=environment, cwd=folder
        )


def driver_environment(python: Path, settings: dict[str, str] | None = None) -> dict[str, str]:
    """For a driver in a process of its own: small and quick, with executors that start a Python."""
    java = _quick_java()
    wanted = {
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        **(settings or {}),
    }
    arguments = " ".join(f'--conf "{name}={value}"' for name, value in wanted.items())
    return {
        **os.environ,
        "PYSPARK_PYTHON": os.fspath(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": f"{arguments} pyspark-shell",
    }


def python_without(folder: Path, *packages: str, hidden: Path | None = None) -> Path:
    """A Python that has what is installed here, but not this package, nor those that are named.

    A folder can be hidden from it, as if it were on another machine.
    """
    site = Path(next(path for path in sys.path if Path(path).name == "site-packages"))
    mirror = folder / "packages"
    mirror.mkdir()
    for path in site.iterdir():
        if path.suffix != ".pth" and path.name.split("-")[0].split(".")[0] not in packages:
            (mirror / path.name).symlink_to(path)
    script = folder / "python"
    command = f'{sys.executable} -S "$@"'
    if hidden is not None:
        command = f"unshare -m sh -c 'mount -t tmpfs none \"$0\" && exec \"$@\"' '{hidden}' {command}"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{mirror}" exec {command}\n')
    script.chmod(0o755)
    return script
