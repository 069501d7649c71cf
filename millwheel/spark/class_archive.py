"""An archive of the JVM's classes: Spark starts in half the time with it (CDS).

Most of Spark's start is loading and verifying 15,000 classes. The JVM can map
them from a file instead (class-data sharing). The file is made once, in the background of the first run, by
a Spark of its own, and kept in the user's cache folder for each version of Java, Spark and millwheel. Only a
Spark on this machine uses it.

A JVM that maps a damaged archive crashes, so the name of an archive has the hash of its content, and one
that does not match is removed. Any other problem with it, or with the folder, only costs time.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import xxhash

from millwheel.version import VERSION

logger = logging.getLogger("millwheel")

SWITCH = "MILLWHEEL_CLASS_ARCHIVE"
"""The environment variable that turns the archive off: ``off``."""

_ROOM = 1 << 30  # bytes free on disk: an archive has 150 million
_MEMORY = 2 << 30  # bytes of free memory: the process that makes it takes 700 million
_UNUSED = 30 * 86_400  # seconds after which an archive of another version is removed
_MOST = 8  # archives are kept, by last use: each environment has its own
_AGAIN = 86_400  # seconds before a retry after a failure

_CLASS_PATH = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "SPARK_DIST_CLASSPATH", "JAVA_TOOL_OPTIONS")


def folder() -> Path | None:
    """The folder of archives: below the user's cache folder, if there is one."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "millwheel"
    except RuntimeError:  # no home
        return None


def archive() -> Archive | None:
    """This user's archive, unless it is turned off."""
    place = folder()
    if place is None or os.environ.get(SWITCH, "").lower() in ("off", "0", "no"):
        return None
    return Archive(place)


class Archive:
    """The archive of one version of Java, Spark and millwheel; it may not exist."""

    def __init__(self, place: Path) -> None:
        self.folder = place
        self.key = _key()

    def find(self) -> Path | None:
        """The archive, if it exists and is intact; a damaged one is removed."""
        try:
            for path in sorted(self.folder.glob(f"{self.key}-*.jsa")):
                if not _private(path):
                    continue
                if path.stem.rpartition("-")[2] == file_hash(path):
                    with contextlib.suppress(OSError):  # a read-only folder
                        os.utime(path)  # its last use
                    return path
                path.unlink()
        except (OSError, ValueError):  # a folder that cannot be read, an empty file
            logger.debug("no archive of classes", exc_info=True)
        return None

    def make_later(self) -> subprocess.Popen[bytes] | None:
        """Starts a process that makes the archive, unless one runs or failed recently."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.is_missing() or shutil.disk_usage(self.folder).free < _ROOM or _memory() < _MEMORY:
                return None
            with alone(self.folder / f"{self.key}.lock") as mine:
                if not mine:
                    return None
            package = os.fspath(Path(__file__).parents[2])
            program = (
                f"import sys; sys.path.insert(0, {package!r}); from millwheel.warm_up import make; "
                f"make({os.fspath(self.folder)!r})"
            )
            nothing = subprocess.DEVNULL
            # A process group of its own: it ignores Ctrl-C, and may outlive a short run.
            return subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                start_new_session=True,
                cwd=self.folder,
            )
        except OSError:
            logger.debug("the archive of classes cannot be made in %s", self.folder, exc_info=True)
            return None

    def is_missing(self) -> bool:
        """Whether an archive is to be made: there is none, and no recent failure."""
        failed = self.folder / f"{self.key}.failed"
        if failed.exists() and time.time() - failed.stat().st_mtime < _AGAIN:
            return False
        return not any(self.folder.glob(f"{self.key}-*.jsa"))

    def make(self, run: Callable[[Path], None]) -> Path | None:
        """Makes the archive in this process; None if another one does, or if it failed.

        ``run`` runs a pipeline in a JVM that writes its classes to the given file.
        """
        with alone(self.folder / f"{self.key}.lock") as mine:
            if not mine or not self.is_missing():
                return None
            failed = self.folder / f"{self.key}.failed"
            failed.touch()  # also if this process is killed, for example for its memory
            for left in self.folder.glob(f"{self.key}.making-*"):  # left by a killed process
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f"{self.key}.making-", dir=self.folder) as place:
                made = Path(place) / "classes.jsa"
                run(made)
                if not made.exists() or not made.stat().st_size:
                    return None
                path = self.folder / f"{self.key}-{file_hash(made)}.jsa"
                made.chmod(0o600)
                made.rename(path)
            failed.unlink(missing_ok=True)
            self._remove_unused()
            return path

    def _remove_unused(self) -> None:
        """Removes unused and surplus archives, and files that killed processes left."""
        ages = sorted((time.time() - path.stat().st_mtime, path) for path in self.folder.glob("*.jsa"))
        for rank, (age, path) in enumerate(ages):
            if age > _UNUSED or rank >= _MOST:
                path.unlink(missing_ok=True)
        for left in self.folder.glob("*.making-*"):
            if time.time() - left.stat().st_mtime > _AGAIN:
                shutil.rmtree(left, ignore_errors=True)


def main() -> None:
    """Makes this user's archive if it is missing; a command (``python -m``)."""
    kept = archive()
    process = None if kept is None else kept.make_later()
    if process is not None:
        process.wait()


def _key() -> str:
    """What an archive depends on and the JVM does not check itself."""
    java = _java()
    parts = [os.fspath(java), *(os.environ.get(name, "") for name in _CLASS_PATH)]
    spark = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    for path in (java, java.parent.parent / "lib" / "modules", spark / "jars", spark / "conf"):
        try:
            found = path.stat()
            parts.append(f"{path} {found.st_size} {found.st_mtime_ns}")
        except OSError:
            parts.append(f"{path} is missing")
    digest = xxhash.xxh3_64_hexdigest("\0".join(parts).encode())
    return f"millwheel-{VERSION}-spark-{pyspark.__version__}-{digest}"


def _memory() -> float:
    """The bytes of free memory, if the system reports them."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return float("inf")


def _java() -> Path:
    home = os.environ.get("JAVA_HOME")
    found = os.path.join(home, "bin", "java") if home else shutil.which("java") or "java"
    return Path(found).resolve()


def _private(path: Path) -> bool:
    """Whether no other user can have written a file, whose code runs as this user."""
    return all(
        found.st_uid == os.getuid() and not found.st_mode & 0o022
        for found in (path.stat(), path.parent.stat())
    )


def file_hash(path: Path) -> str:
    """The hash of a file's content; 120 MB take 15 ms."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return xxhash.xxh3_64_hexdigest(data)


@contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Whether this process has the lock, which ends with it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        except BlockingIOError:
            mine = False
        yield mine
    finally:
        os.close(handle)


if __name__ == "__main__":
    main()
