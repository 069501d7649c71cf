"""A PostgreSQL cluster of one's own, in a temporary folder: `cluster()`, or the fixture `postgres`.

The binaries are those of the distribution (Debian: ``apt-get install postgresql``). The server does not run
as root, so as root it is started as the user ``postgres`` or ``nobody``.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tests.servers.processes import Unavailable, await_answer, free_port, stop

PASSWORD = "s3cr3t/of:tests@"


@contextmanager
def standby(primary: Cluster) -> Iterator[Cluster]:
    """A hot standby of a cluster, for which every commit waits from now on; see `Cluster.promote`."""
    folder = Path(tempfile.mkdtemp(prefix="millwheel-standby-"))
    try:
        user = _user()
        if user is not None:
            os.chown(folder, user, -1)
        made = subprocess.run(
            [
                *(primary.binaries / "pg_basebackup", "-D", folder / "data", "-R", "-X", "stream"),
                *("-c", "fast", "--no-sync", "-d", primary.url()),
            ],
            capture_output=True,
            text=True,
            user=user,
            cwd=folder,
        )
        if made.returncode:
            raise Unavailable(f"pg_basebackup failed: {made.stderr.strip()[-200:]}")
        port = free_port()
        process = _start(primary.binaries, folder, port, primary.settings)
        found = Cluster(folder, port, primary.binaries, process, primary.settings)
        try:
            primary.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.run("SELECT pg_reload_conf()")
            yield found
        finally:
            found.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Cluster:
    """A running cluster; `url` has the password, as a user's would."""

    folder: Path
    port: int
    binaries: Path
    process: subprocess.Popen[bytes]
    settings: tuple[str, ...]

    def url(self, database: str = "postgres") -> str:
        return _url(self.port, database)

    def run(self, statement: str) -> None:
        """Runs a statement as the administrator."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def promote(self) -> None:
        """Makes a standby the primary; commits wait for nobody then."""
        self.run("SELECT pg_promote()")
        self.run("ALTER SYSTEM RESET synchronous_standby_names")
        self.run("SELECT pg_reload_conf()")

    def make_database(self, name: str) -> str:
        """Makes a database; gives its URL."""
        self.run(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stops the server: SIGINT disconnects its clients, SIGQUIT is a crash."""
        stop(self.process, number)

    def start(self) -> None:
        """Starts the server again, on the same port."""
        self.process = _start(self.binaries, self.folder, self.port, self.settings)


_TESTING = (
    "fsync=off",  # no test cuts the power, and a server that is killed loses nothing
    "autovacuum_naptime=1s",
    "max_connections=200",
)


@contextmanager
def cluster(settings: tuple[str, ...] = _TESTING) -> Iterator[Cluster]:
    """A cluster that is stopped and removed at the end; `Unavailable` says why there is none."""
    binaries = _binaries()
    folder = Path(tempfile.mkdtemp(prefix="millwheel-postgres-"))
    try:
        user = _user()
        if user is not None:
            os.chown(folder, user, -1)
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        made = subprocess.run(
            [
                *(binaries / "initdb", "-D", folder / "data", "-U", "tester", "-A", "scram-sha-256"),
                *("--pwfile", secret, "-E", "UTF8", "--no-locale", "--no-sync"),
            ],
            capture_output=True,
            text=True,
            user=user,
            env={"PATH": os.environ["PATH"], "HOME": os.fspath(folder)},
            cwd=folder,
        )
        if made.returncode:
            raise Unavailable(f"initdb failed: {made.stderr.strip()[-200:]}")
        port = free_port()
        process = _start(binaries, folder, port, settings)
        found = Cluster(folder, port, binaries, process, settings)
        try:
            yield found
        finally:
            found.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(binaries: Path, folder: Path, port: int, settings: tuple[str, ...]) -> subprocess.Popen[bytes]:
    given = [part for setting in settings for part in ("-c", setting)]
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            [
                *(binaries / "postgres", "-D", folder / "data", "-p", str(port), "-h", "127.0.0.1", "-k", ""),
                *given,
            ],
            stdout=log,
            stderr=log,
            user=_user(),
            cwd=folder,
        )
    await_answer(lambda: _answers(port), process, "PostgreSQL")
    return process


def _url(port: int, database: str) -> str:
    return f"postgresql://tester:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/{database}"


def _answers(port: int) -> bool:
    """Whether it takes connections: it listens before it has recovered."""
    import psycopg

    try:
        psycopg.connect(_url(port, "postgres"), connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _binaries() -> Path:
    on_path = shutil.which("initdb")
    found = (
        [Path(on_path).resolve().parent]
        if on_path
        else [Path(p) for p in glob.glob("/usr/lib/postgresql/*/bin")]
    )
    usable = [path for path in found if (path / "initdb").exists() and (path / "postgres").exists()]
    if not usable:
        raise Unavailable("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    return max(usable)


def _user() -> int | None:
    """Who the server runs as: this user, or where that is root another one."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise Unavailable("PostgreSQL does not run as root, and there is no user postgres or nobody")
