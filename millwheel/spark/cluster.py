"""Prepares a cluster: sends the code, and checks that every executor can run it.

Problems that would end the first epoch with a traceback from another machine are found at the start: a
package that an executor lacks, another version of Python, a store that an executor cannot reach.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import logging
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.errors import PySparkException

from millwheel.errors import EngineError, StoreError
from millwheel.spark import probe
from millwheel.spark.module_zip import pack_modules
from millwheel.store.base import Store
from millwheel.store.lmdb.lmdb_store import LmdbStore

logger = logging.getLogger("millwheel")

_KNOCK = "millwheel-knocks"
_PATIENCE = 120.0  # seconds for the first executor: a cluster may have to start a machine for it
_ROUNDS = 5  # of probing until every executor has answered; a busy one gets no task at first
_CLIENTS = {"postgres": "psycopg"} | dict.fromkeys(("s3", "gs", "az", "abfs"), "obstore")
PACKAGES = ("lmdb", "msgpack", "msgspec", "numpy", "orjson", "xxhash")  # imported by a worker

_sent: set[tuple[str, str]] = set()


def is_local(context: SparkContext) -> bool:
    """Whether the executor is the driver's own process, with its disk and modules."""
    master = str(context.master)
    return master == "local" or master.startswith("local[")


def make_ready(context: SparkContext, where: str | os.PathLike[str]) -> None:
    """Sends the code, and probes the executors with a store; not for a local Spark."""
    if is_local(context):
        return
    _await_executors(context)
    _send(context)
    scheme = os.fspath(where).partition("://")[0]
    wanted = [*PACKAGES, *(package for begin, package in _CLIENTS.items() if scheme.startswith(begin))]
    for answer in _ask(context, probe.Question(packages=tuple(wanted))):
        if _minor(answer.pyspark) != _minor(pyspark.__version__):
            raise EngineError(
                f"{answer.who} has PySpark {answer.pyspark}, and the driver {pyspark.__version__}: a cluster "
                f"runs one version (pip install 'pyspark=={answer.pyspark}', if millwheel takes it)"
            )
        if answer.missing:
            raise EngineError(
                f"{answer.who} lacks {', '.join(answer.missing)}: millwheel's own code was sent there, but "
                f"what it needs must be installed for {answer.python} where the executors run (pip install "
                f"{' '.join(_requirement(name) for name in answer.missing)}), or be sent along with the job "
                "as a packed environment (spark.archives; see docs/cluster.md)"
            )


def check_store(context: SparkContext, store: Store) -> None:
    """Refuses a store on the driver's disk if an executor does not have that disk."""
    if is_local(context) or not isinstance(store, LmdbStore):
        return
    token = uuid.uuid4().hex
    sign = store.path / f"probe-{token}"
    sign.write_text(token)
    try:
        answers = _ask(context, probe.Question(path=os.fspath(sign), token=token))
    finally:
        sign.unlink(missing_ok=True)
    here = probe.machine()
    for answer in answers:
        if answer.sees and answer.machine == here:
            continue
        why = (
            f"{answer.who} reaches the folder over a network, and LMDB's locks hold within one machine only"
            if answer.sees
            else f"{answer.who} does not see it"
        )
        raise StoreError(
            f"the store {store.path} is on the driver's disk, and {why}. On a cluster of several machines "
            "the store is one that all of them reach: store='postgresql://user@host/database' "
            "(pip install 'millwheel-spark[postgres]') or 's3://bucket/prefix' (millwheel-spark[object]); "
            "millwheel store copy moves a pipeline there"
        )


def _await_executors(context: SparkContext) -> None:
    """Waits for the first executor: without one, a job would wait forever, silently.

    It submits a job, as with dynamic allocation no executor starts before there is work.
    """
    if _executors(context):
        return
    threading.Thread(target=_knock, args=(context,), name="millwheel-knocks", daemon=True).start()
    end = time.monotonic() + _PATIENCE
    while not _executors(context):
        if time.monotonic() > end:
            context.cancelJobGroup(_KNOCK)
            raise EngineError(
                f"no executor of {context.master} has registered within {_PATIENCE:.0f} seconds: are its "
                "workers running, has it cores and memory left (spark.executor.cores, spark.executor.memory),"
                " and can they reach this machine (SPARK_LOCAL_IP, spark.driver.host)?"
            )
        time.sleep(0.1)


def _knock(context: SparkContext) -> None:
    try:
        context.setJobGroup(_KNOCK, "waits for executors")
        context.parallelize([0], 1).count()
    except Exception:  # the probes that follow report the problem
        logger.debug("the first job on %s failed", context.master, exc_info=True)


def _executors(context: SparkContext) -> int:
    """The number of registered executors, without the driver."""
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


def _send(context: SparkContext) -> None:
    """Sends this package and the user's modules, once for each content."""
    folder = Path(tempfile.mkdtemp(prefix="millwheel-modules-"))
    # Spark serves the file to later executors, so it stays as long as the driver.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    packed = pack_modules(folder)
    place = (context.applicationId, packed.name)
    if place not in _sent:
        context.addPyFile(os.fspath(packed))
        _sent.add(place)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _requirement(name: str) -> str:
    return f"{name}=={importlib.metadata.version(name)}"


def _ask(context: SparkContext, question: probe.Question) -> list[probe.Answer]:
    """Every executor's answer, if each gets a task within some rounds."""
    answers: dict[str, probe.Answer] = {}
    with _by_value():
        for _ in range(_ROUNDS):
            tasks = max(context.defaultParallelism, 2 * _executors(context), 2)
            try:
                found = context.parallelize(range(tasks), tasks).mapPartitions(question).collect()
            except (Py4JError, PySparkException) as error:
                raise EngineError(
                    f"the Python workers of {context.master} do not run ({_last_line(error)}): executors "
                    "need the driver's version of Python and of pyspark; PYSPARK_PYTHON names the Python "
                    "they start"
                ) from error
            answers |= {answer["id"]: probe.Answer(**answer) for answer in found}
            if len(answers) >= _executors(context):
                break
    return list(answers.values())


@contextmanager
def _by_value() -> Iterator[None]:
    """Pickles this package by value: an executor may not be able to import it."""
    register_pickle_by_value(probe)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        unregister_pickle_by_value(probe)  # type: ignore[no-untyped-call]


def _last_line(error: Exception) -> str:
    """The end of a worker's traceback, or the first line of Spark's own message."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith("at ")]  # not Java's own stack
    telling = [line for line in lines if "Error" in line.split(":")[0] or "Cannot run program" in line]
    return (telling or lines or [type(error).__name__])[-1 if telling else 0]
