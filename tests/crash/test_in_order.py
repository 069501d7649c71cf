"""Records in order on Spark: workers and the driver are killed while records wait."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from tests.crash.victims import Victim, output

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

OPTIONS: dict[str, Any] = {"in_order": True, "target": 0.3, "progress": False, "compact_below": 0}


def test_a_driver_that_is_killed_while_records_wait_loses_none_and_keeps_their_order(
    source: Path, expected: dict[str, Counter[str]], tmp_path: Path
) -> None:
    for kill in ("worker", "driver", None):
        victim = Victim(source, tmp_path, OPTIONS)
        try:
            while not victim.running.wait(0.2):
                assert victim.process.poll() is None, "".join(victim.errors)
            while kill is not None and not list(tmp_path.glob("out/followed/*")):
                assert not victim.ended(0.1), "it ended before it was killed: " + "".join(victim.errors)
            if kill == "worker":
                for worker in victim.workers():
                    worker.kill()
                victim.ended(0.5)
            if kill is None:
                assert victim.ended(200), "it did not end"
                assert victim.process.returncode == 0, "".join(victim.errors)
        finally:
            if victim.process.poll() is None:
                victim.kill()
    assert output(tmp_path / "out") == expected
    followed = mw.sinks.JsonLines(tmp_path / "out" / "followed").records()
    found = Counter((record.key, record.timestamp, json.dumps(record.value)) for record in followed)
    assert found == _followed(source)


def _followed(source: Path) -> Counter[tuple[str, int, str]]:
    """By region and second: how many records there were before its end."""
    seen: dict[int, tuple[str, int]] = {}
    for path in source.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            seen[record["id"]] = (record["region"], record["time"] // mw.SECOND)
    wanted: Counter[tuple[str, int, str]] = Counter()
    by_second = Counter(seen.values())
    total: Counter[str] = Counter()
    for (region, second), count in sorted(by_second.items(), key=lambda item: item[0][1]):
        total[region] += count
        wanted[region, (second + 1) * mw.SECOND, json.dumps(total[region])] += 1
    return wanted
