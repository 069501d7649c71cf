"""An archive of the JVM's classes, with which Spark starts in half the time (class-data sharing).

Most of the seconds that Spark takes to start go into loading and verifying 15,000 classes. The JVM can map
them from a file instead. The file is made once, in the background of the first run, by a Spark of its own,
and kept in the user's cache folder for each version of Java, Spark and millwheel. Only a Spark on this
machine uses it.

A JVM that maps a damaged archive crashes, so the name of an archive has the hash of its content, and one
that does not match is removed. Whatever else is wrong with it, or with the folder, only time is lost.
"""

from __future__ import annotations

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

_ROOM = 1 << 30  # bytes free: an archive has 150 million, and nobody's disk is to be filled by one
_MEMORY = 2 << 30  # bytes free: the process that makes it takes 700 million, which a run may need
_UNUSED = 30 * 86_400  # seconds after which an archive of another version is removed
_AGAIN = 86_400  # seconds before another try, after one that failed

_CLASS_PATH = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "SPARK_DIST_CLASSPATH", "JAVA_TOOL_OPTIONS")


def folder() -> Path | None:
    """Where archives are kept: below the user's cache folder, if the user has one."""
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
    """The archive of one version of Java, Spark and millwheel, which may not be there."""

    def __init__(self, place: Path) -> None:
        self.folder = place
        self.key = _key()

    def find(self) -> Path | None:
        """The archive, if it is there and whole; a damaged one is removed."""
        try:
            for path in sorted(self.folder.glob(f"{self.key}-*.jsa")):
                if not _private(path):
                    continue
                if path.stem.rpartition("-")[2] == _hash(path):
                    return path
                path.unlink()
        except (OSError, ValueError):  # a folder that cannot be read, an empty file
            logger.debug("no archive of classes", exc_info=True)
        return None

    def make_later(self) -> subprocess.Popen[bytes] | None:
        """Starts a process that makes the archive, unless one is being made or failed of late."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._missing() or shutil.disk_usage(self.folder).free < _ROOM or _memory() < _MEMORY:
                return None
            with _alone(self.folder / f"{self.key}.lock") as mine:
                if not mine:
                    return None
            package = os.fspath(Path(__file__).parents[2])
            program = (
                f"import sys; sys.path.insert(0, {package!r}); from millwheel.warm_up import make; "
                f"make({os.fspath(self.folder)!r})"
            )
            nothing = subprocess.DEVNULL
            # A process group of its own: Ctrl-C is not meant for it, and it may outlive a short run.
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

    def _missing(self) -> bool:
        failed = self.folder / f"{self.key}.failed"
        if failed.exists() and time.time() - failed.stat().st_mtime < _AGAIN:
            return False
        return not any(self.folder.glob(f"{self.key}-*.jsa"))

    def make(self, run: Callable[[Path], None]) -> Path | None:
        """Makes the archive in this process; None where another one does, or where it failed.

        ``run`` runs a pipeline in a JVM that writes its classes to the file that it is given.
        """
        with _alone(self.folder / f"{self.key}.lock") as mine:
            if not mine or not self._missing():
                return None
            failed = self.folder / f"{self.key}.failed"
            failed.touch()  # also where this process is killed for its memory, say
            for left in self.folder.glob(f"{self.key}.making-*"):  # by one that was killed
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f"{self.key}.making-", dir=self.folder) as place:
                made = Path(place) / "classes.jsa"
                run(made)
                if not made.exists() or not made.stat().st_size:
                    return None
                path = self.folder / f"{self.key}-{_hash(made)}.jsa"
                made.chmod(0o600)
                made.rename(path)
            failed.unlink(missing_ok=True)
            self._remove_unused()
            return path

    def _remove_unused(self) -> None:
        for path in self.folder.glob("*.jsa"):
            if time.time() - max(path.stat().st_atime, path.stat().st_mtime) > _UNUSED:
                path.unlink(missing_ok=True)


def main() -> None:
    """Makes this user's archive, unless there is one: ``python -m millwheel.spark.class_archive``."""
    kept = archive()
    process = None if kept is None else kept.make_later()
    if process is not None:
        process.wait()


def _key() -> str:
    """What an archive depends on, as far as the JVM does not see for itself that another one fits not."""
    java = _java()
    parts = [os.fspath(java), *(os.environ.get(name, "") for name in _CLASS_PATH)]
    spark = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    for path in (java, java.parent.parent / "lib" / "modules", spark / "jars", spark / "conf"):
        try:
            found = path.stat()
            parts.append(f"{path} {found.st_size} {found.st_mtime_ns}")
        except OSError:
            parts.append(f"{path} is not there")
    digest = xxhash.xxh3_64_hexdigest("\0".join(parts).encode())
    return f"millwheel-{VERSION}-spark-{pyspark.__version__}-{digest}"


def _memory() -> float:
    """The bytes of memory that are free, as far as the system tells."""
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
    """Whether nobody else could have written a file: what is in it runs in our name."""
    return all(
        found.st_uid == os.getuid() and not found.st_mode & 0o022
        for found in (path.stat(), path.parent.stat())
    )


def _hash(path: Path) -> str:
    """Of a file's content; 120 megabytes take 15 ms."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return xxhash.xxh3_64_hexdigest(data)


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
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
