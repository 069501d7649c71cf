"""An S3 server of one's own on loopback, with its objects in a temporary folder: `server()`, or the fixture
`s3`.

The server is versitygw, built once with ``go install`` into the user's cache folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.processes import Unavailable, await_answer, free_port, listens, stop

VERSION = "v1.8.0"
REGION = "us-east-1"
ACCESS_KEY = "tester"
SECRET_KEY = "s3cr3tOfTests"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
"""What a client finds its credentials in."""
_BUILD = 240  # seconds: it takes a minute or two, once; what was built until then is kept by Go


@dataclass
class Server:
    """A running server; a bucket is a folder of it."""

    folder: Path
    port: int
    binary: Path
    process: subprocess.Popen[bytes]
    options: tuple[str, ...] = ()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, bucket: str, prefix: str, *, port: int | None = None) -> str:
        """The URL of a prefix; through a proxy where its port is given."""
        endpoint = self.endpoint if port is None else f"http://127.0.0.1:{port}"
        return f"s3://{bucket}/{prefix}?endpoint={endpoint}&region={REGION}"

    def make_bucket(self, name: str) -> None:
        (self.folder / "data" / name).mkdir(exist_ok=True)

    def stop(self, number: int = signal.SIGKILL) -> None:
        """Stops the server; what it has answered is there when it is started again."""
        stop(self.process, number)

    def start(self) -> None:
        """Starts the server again, on the same port."""
        self.process = _start(self.binary, self.folder, self.port, self.options)


@contextmanager
def server(*options: str) -> Iterator[Server]:
    """A server that is stopped and removed at the end; `Unavailable` says why there is none."""
    binary = _binary()
    folder = Path(tempfile.mkdtemp(prefix="millwheel-s3-"))
    try:
        for name in ("data", "metadata"):
            (folder / name).mkdir()
        port = free_port()
        found = Server(folder, port, binary, _start(binary, folder, port, options), options)
        try:
            yield found
        finally:
            found.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(binary: Path, folder: Path, port: int, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
    command: list[str | Path] = [
        binary,
        "--quiet",
        "--port",
        f"127.0.0.1:{port}",
        "--region",
        REGION,
        *options,
    ]
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            [*command, "posix", *_metadata(folder), folder / "data"],
            stdout=log,
            stderr=log,
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": os.fspath(folder),
                "ROOT_ACCESS_KEY": ACCESS_KEY,
                "ROOT_SECRET_KEY": SECRET_KEY,
            },
        )
    await_answer(lambda: listens(port), process, "the S3 server")
    return process


def _metadata(folder: Path) -> list[str | Path]:
    """Where the server keeps an object's metadata: with the object itself, if the disk can.

    In files beside it, a put is not atomic: a server that is killed in one leaves an object that exists and
    cannot be read.
    """
    try:
        os.setxattr(folder / "data", "user.test", b"")
    except OSError:
        return ["--sidecar", folder / "metadata"]
    return []


def _binary() -> Path:
    """The server, built where it is not there yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millwheel"
    binary = cache / f"versitygw-{VERSION}"
    if binary.exists():
        return binary
    if shutil.which("go") is None:
        raise Unavailable("an S3 server for the tests is built with Go, which is not installed")
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "versitygw.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process builds, and the others wait
        if not binary.exists():
            _build(cache, binary)
    return binary


def _build(cache: Path, binary: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".versitygw-", dir=cache) as work:
        try:
            done = subprocess.run(
                ["go", "install", f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"],
                env={**os.environ, "GOBIN": work},
                capture_output=True,
                text=True,
                timeout=_BUILD,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable("versitygw could not be built in time") from None
        if done.returncode:
            raise Unavailable(f"versitygw could not be built: {done.stderr.strip()[-300:]}")
        os.replace(Path(work) / "versitygw", binary)
