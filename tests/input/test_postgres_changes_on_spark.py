"""A view of a table on Spark is killed, and its server restarts; every change is in it once, in order."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import millwheel as mw
from tests.crash.victims import Process
from tests.servers.postgres import Cluster, cluster
from tests.servers.processes import Unavailable
from tests.spark.waiting import eventually

ROOT = Path(__file__).parents[2]
KILLS = 3  # while the copy is read, in a compact epoch, in a wide one
AWAY = "InputError: PostgresChanges.*see that the server is there"
PATIENCE = 180.0  # seconds: on a busy machine Spark takes a minute to start

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    try:
        with cluster(("fsync=off", "wal_level=logical")) as found:
            yield found
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def url(server: Cluster, request: pytest.FixtureRequest) -> str:
    return server.make_database(f"view{len(request.node.name)}")


class Writer:
    """Changes rows, and remembers every change."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.connect()
        self._connection.execute("CREATE TABLE users (id int PRIMARY KEY, n int)")
        self._connection.execute("CREATE PUBLICATION pub FOR TABLE users")
        self._connection.execute("INSERT INTO users SELECT id, 0 FROM generate_series(0, 49) id")
        self._chance = random.Random(3)
        self._n = 0
        self.expected: dict[int, list[int | None]] = {id: [0] for id in range(50)}

    def connect(self) -> None:
        """Connects anew: the server has restarted."""
        self._connection = psycopg.connect(self._url, autocommit=True)

    def write(self) -> None:
        """A transaction of a few changes."""
        with self._connection.transaction():
            for id in self._chance.sample(range(60), 5):
                self._n += 1
                changes = self.expected.setdefault(id, [])
                if changes and changes[-1] is not None and self._chance.random() < 0.3:
                    self._connection.execute("DELETE FROM users WHERE id = %s", (id,))
                    changes.append(None)
                else:
                    self._connection.execute(
                        "INSERT INTO users VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET n = EXCLUDED.n",
                        (id, self._n),
                    )
                    changes.append(self._n)

    @property
    def count(self) -> int:
        return sum(map(len, self.expected.values()))


class View:
    """A driver of the view, and what it has written."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder

    def start(self, *, wide: bool = False) -> Process:
        command = ["-m", "tests.input.changes_victim", self._url, str(self._folder), str(int(wide))]
        return Process(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})

    @staticmethod
    def await_records(driver: Process, count: int) -> None:
        """Waits for so many in the sink; an end of the driver is an error."""

        def came() -> bool:
            assert driver.process.poll() is None, "".join(driver.errors)
            return bool(driver.output) and int(driver.output[-1]) >= count

        eventually(came, PATIENCE)

    def end(self, driver: Process, writer: Writer) -> None:
        """Waits until all is in the view, and has the driver end."""
        self.await_records(driver, writer.count)
        assert driver.process.stdin is not None
        driver.process.stdin.close()
        assert driver.ended(PATIENCE)
        assert driver.process.returncode == 0, "".join(driver.errors)

    def check(self, writer: Writer) -> None:
        """Every change is there once, in order."""
        view: dict[int, list[tuple[int, int | None]]] = {}
        for record in mw.sinks.JsonLines(self._folder / "view").records():
            row = record.value["row"]
            view.setdefault(record.value["id"], []).append((record.value["changes"], row and row["n"]))
        expected = {id: list(enumerate(changes, 1)) for id, changes in writer.expected.items()}
        assert {id: sorted(found) for id, found in view.items()} == expected
        assert len(list(mw.sinks.JsonLines(self._folder / "changes").records())) == writer.count


def test_every_change_is_in_the_view_once_and_in_order(tmp_path: Path, url: str) -> None:
    writer, view = Writer(url), View(url, tmp_path)
    for kills in range(KILLS + 1):
        driver = view.start(wide=kills == 2)
        try:
            for _ in range(kills):
                lines = len(driver.output)
                writer.write()
                eventually(
                    lambda d=driver, n=lines: len(d.output) > n or d.process.poll() is not None,  # type: ignore[misc]
                    PATIENCE,
                )
            assert driver.process.poll() is None, "".join(driver.errors)
            if kills < KILLS:
                eventually(lambda d=driver: bool(d.output), PATIENCE)  # type: ignore[misc]
                writer.write()  # the driver is killed somewhere in its epoch
                continue
            view.end(driver, writer)
        finally:
            if driver.process.poll() is None:
                driver.kill()
    view.check(writer)


def test_a_server_that_crashes_stops_the_view_and_the_next_run_continues(
    tmp_path: Path, server: Cluster, url: str
) -> None:
    """Of a crash, as the server may then have forgotten how far the slot was advanced."""
    writer, view = Writer(url), View(url, tmp_path)
    driver = view.start()
    try:
        view.await_records(driver, writer.count)  # the copy
        for _ in range(3):
            writer.write()
            view.await_records(driver, writer.count)
        writer.write()  # the server is gone somewhere in its epoch
        server.stop(signal.SIGQUIT)
        assert driver.ended(PATIENCE)
        assert driver.process.returncode != 0
        assert re.search(AWAY, "".join(driver.errors), re.DOTALL), "".join(driver.errors)
        server.start()
        writer.connect()
        writer.write()
        driver = view.start()
        view.await_records(driver, writer.count)
        writer.write()
        view.end(driver, writer)
    finally:
        if driver.process.poll() is None:
            driver.kill()
        if server.process.poll() is not None:
            server.start()
    view.check(writer)
