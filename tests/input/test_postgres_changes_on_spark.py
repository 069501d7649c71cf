"""A view of a table is killed again and again on Spark; every change is in it once, in order."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import millwheel as mw
from tests.crash.victims import Process
from tests.servers.postgres import cluster
from tests.servers.processes import Unavailable
from tests.spark.waiting import eventually

ROOT = Path(__file__).parents[2]
KILLS = 3  # while the copy is read, in a compact epoch, in a wide one
PATIENCE = 180.0  # seconds: on a busy machine Spark takes a minute to start

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def url() -> Iterator[str]:
    try:
        with cluster(("fsync=off", "wal_level=logical")) as found:
            yield found.make_database("view")
    except Unavailable as reason:
        pytest.skip(str(reason))


class Writer:
    """Changes rows, and remembers every change."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("CREATE TABLE users (id int PRIMARY KEY, n int)")
        self._connection.execute("CREATE PUBLICATION pub FOR TABLE users")
        self._connection.execute("INSERT INTO users SELECT id, 0 FROM generate_series(0, 49) id")
        self._chance = random.Random(3)
        self._n = 0
        self.expected: dict[int, list[int | None]] = {id: [0] for id in range(50)}

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


def test_every_change_is_in_the_view_once_and_in_order(tmp_path: Path, url: str) -> None:
    writer = Writer(url)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for kills in range(KILLS + 1):
        wide = "1" if kills == 2 else "0"
        driver = Process(
            ["-m", "tests.input.changes_victim", url, str(tmp_path), wide], cwd=ROOT, env=environment
        )
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
            eventually(lambda d=driver: int(d.output[-1]) >= writer.count, PATIENCE)  # type: ignore[misc]
            assert driver.process.stdin is not None
            driver.process.stdin.close()
            assert driver.ended(PATIENCE)
            assert driver.process.returncode == 0, "".join(driver.errors)
        finally:
            if driver.process.poll() is None:
                driver.kill()
    view: dict[int, list[tuple[int, int | None]]] = {}
    for record in mw.sinks.JsonLines(tmp_path / "view").records():
        row = record.value["row"]
        view.setdefault(record.value["id"], []).append((record.value["changes"], row and row["n"]))
    expected = {id: list(enumerate(changes, 1)) for id, changes in writer.expected.items()}
    assert {id: sorted(found) for id, found in view.items()} == expected
    assert len(list(mw.sinks.JsonLines(tmp_path / "changes").records())) == writer.count
