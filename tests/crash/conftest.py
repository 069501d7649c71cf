"""The input of the pipeline that is killed, and what it must make of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

import millwheel as mw
from tests.crash.victims import expected_of

RECORDS = 120_000
SHORT = 80_000
SECONDS = 60


def _written(folder: Path, records: int) -> Path:
    """Queries out of order by less than two seconds; one in fifty comes twice, with its ID."""
    rng = random.Random(11)
    lines: list[str] = []
    for number in range(records):
        time = 1_700_000_000 * mw.SECOND + number * SECONDS * mw.SECOND // records
        record = {
            "id": number,
            "time": time - rng.randrange(2 * mw.SECOND),
            "query": f"q{int(200 * rng.random() ** 3)}",
            "region": rng.choice(["eu", "us", "asia", "africa"]),
        }
        lines.append(json.dumps(record))
        if rng.random() < 0.02:
            lines.append(lines[-1])
    share = len(lines) // 4 + 1
    for part in range(4):
        text = "\n".join(lines[part * share : (part + 1) * share]) + "\n"
        (folder / f"{part}.jsonl").write_text(text)
    return folder


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough to be killed many times on the way."""
    return _written(tmp_path_factory.mktemp("source"), RECORDS)


@pytest.fixture(scope="session")
def short_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For a cluster, which is slow enough."""
    return _written(tmp_path_factory.mktemp("short-source"), SHORT)


@pytest.fixture(scope="session")
def expected(source: Path) -> dict[str, Counter[str]]:
    """What the pipeline must give, from plain Python over the same files."""
    return expected_of(source)
