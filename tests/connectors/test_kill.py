"""A driver process is killed (SIGKILL) again and again; the outside sees each record once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import millwheel as mw
from tests.servers.topics import receive, send
from tests.sinks import lakes

ROOT = Path(__file__).parents[2]
RECORDS = 1_200
KILLS = 4


def _values() -> list[dict[str, Any]]:
    return [{"n": n, "k": f"k{n % 5}", "t": n + 1} for n in range(RECORDS)]


def _files(folder: Path) -> dict[str, Any]:
    (folder / "in").mkdir()
    for part in range(3):
        lines = [json.dumps(value) for value in _values()[part::3]]
        (folder / "in" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    return {"kind": "files", "pattern": str(folder / "in" / "*.jsonl")}


def _case(
    kind: str, folder: Path, request: pytest.FixtureRequest
) -> tuple[Any, Any, Callable[[], list[int]]]:
    """A source, a sink, and what is found in the sink."""
    if kind == "jsonlines":
        sink = mw.sinks.JsonLines(folder / "out")
        return _files(folder), {"folder": str(folder / "out")}, lambda: [r.value["n"] for r in sink.records()]
    if kind == "parquet":

        def rows() -> list[int]:
            table = ds.dataset(folder / "out", partitioning="hive").to_table()
            return [json.loads(value)["n"] for value in table["value"].to_pylist()]

        return _files(folder), {"folder": str(folder / "out")}, rows
    if kind == "tables":
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/lake"
        catalog = {"type": "sql", "uri": uri, "warehouse": warehouse}

        def in_both() -> list[int]:
            first, second = lakes.delta_rows(folder / "out"), lakes.iceberg_rows(folder / "lake/ns/table")
            found = [sorted(json.loads(row["value"])["n"] for row in rows) for rows in (first, second)]
            assert found[0] == found[1]
            return found[0]

        for part in range(3):
            deltalake.write_deltalake(folder / "in", pa.Table.from_pylist(_values()[part::3]), mode="append")
        source = {"kind": "delta", "table": str(folder / "in")}
        return source, {"delta": str(folder / "out"), "catalog": catalog}, in_both
    if kind == "postgres":
        url = request.getfixturevalue("postgres").make_database(f"kill{uuid.uuid4().hex}")

        def query() -> list[int]:
            with psycopg.connect(url) as connection:
                return [row[0]["n"] for row in connection.execute("SELECT value FROM rows").fetchall()]

        return _files(folder), {"url": url}, query
    broker = request.getfixturevalue("kafka")
    source, target = (broker.make_topic(f"kill-{uuid.uuid4().hex}") for _ in range(2))
    send(broker.servers, source, _values())
    servers = {"servers": broker.servers}
    return (
        {"kind": "kafka", "topic": source, **servers},
        {"topic": target, **servers},
        lambda: [json.loads(message.value())["n"] for message in receive(broker.servers, target)],
    )


@pytest.mark.parametrize("kind", ["jsonlines", "parquet", "tables", "postgres", "kafka"])
def test_each_record_is_there_once_whenever_the_driver_is_killed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source, sink, found = _case(kind, tmp_path, request)
    config = json.dumps({"store": str(tmp_path / "store"), "source": source, "sink": {"kind": kind, **sink}})
    rng = random.Random(kind)
    wanted = 2 if kind == "tables" else KILLS  # a start imports much
    kills, ended = 0, False
    while not ended:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.connectors.victim", config],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        epochs = rng.randrange(1, 6)
        for line in process.stdout:
            ended = line.strip() == "done"
            epochs -= line.strip().isdecimal()
            if not epochs and kills < wanted:
                time.sleep(rng.random() * 0.03)  # somewhere in the next epoch
                os.kill(process.pid, 9)
                kills += 1
                ended = False
                break
        process.stdout.close()
        code = process.wait(60)
        assert code == (0 if ended else -9)
    assert kills == wanted
    assert sorted(found()) == list(range(RECORDS))
