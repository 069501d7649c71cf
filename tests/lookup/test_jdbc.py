"""A table of PostgreSQL, looked up as a DataFrame of Spark's JDBC reader and refreshed while it runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psycopg
import pytest

import millwheel as mw
from tests.crash.victims import Process
from tests.servers.jars import fetched
from tests.servers.postgres import PASSWORD, Cluster
from tests.servers.processes import Unavailable
from tests.spark.waiting import eventually

ROOT = Path(__file__).parents[2]
DRIVER = "42.7.7"
PATIENCE = 180.0  # seconds: on a busy machine Spark takes a minute to start

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def _jars() -> str:
    """PostgreSQL's driver for JDBC."""
    try:
        folder = fetched(f"postgresql-jdbc-{DRIVER}", "org.postgresql", "postgresql", DRIVER)
    except Unavailable as reason:
        pytest.skip(str(reason))
    return ",".join(str(path) for path in sorted(folder.glob("*.jar")))


def test_rows_of_a_database_are_looked_up_by_jdbc_and_read_again(tmp_path: Path, postgres: Cluster) -> None:
    jars = _jars()
    url = postgres.make_database("jdbc")
    (tmp_path / "in").mkdir()
    out = mw.sinks.JsonLines(tmp_path / "out")
    options = {"dbtable": "users", "user": "tester", "password": PASSWORD}
    options["url"] = f"jdbc:postgresql://127.0.0.1:{postgres.port}/jdbc"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
    config = json.dumps({"folder": str(tmp_path), "jdbc": options})

    def seen(number: int) -> list[object]:
        """The names that the click has found after those before it."""
        rows = [{"at": number, "user": user} for user in (1, 2)]
        (tmp_path / "part").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "part").rename(tmp_path / "in" / f"{number}.jsonl")
        eventually(
            lambda: driver.process.poll() is not None or len(list(out.records())) >= 2 * number, PATIENCE
        )
        found = [record.value for record in out.records() if record.value["at"] == number]
        assert len(found) == 2, "".join(driver.errors)
        return [value["name"] for value in sorted(found, key=lambda value: int(value["user"]))]

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE users (id bigint PRIMARY KEY, name text)")
        connection.execute("INSERT INTO users VALUES (1, 'Ann')")
        driver = Process(["-m", "tests.lookup.jdbc_program", config], cwd=ROOT, env=environment)
        try:
            assert seen(1) == ["Ann", None]
            with connection.transaction():
                connection.execute("UPDATE users SET name = 'Anna'")
                connection.execute("INSERT INTO users VALUES (2, 'Ben')")
            eventually(lambda: bool(driver.output) and int(driver.output[-1]) >= 2, PATIENCE)
            assert seen(2) == ["Anna", "Ben"]
            assert driver.process.stdin is not None
            driver.process.stdin.close()
            assert driver.ended(PATIENCE)
            assert driver.process.returncode == 0, "".join(driver.errors)
        finally:
            if driver.process.poll() is None:
                driver.kill()
