"""The tutorials, to the letter: each page's files are written and its commands run, in an empty folder.

A block of Python that begins with ``# NAME.py`` is a file, a block of ``sh`` is commands. Sessions (``>>>``)
are run by pytest itself.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")


def _lines(pattern: str, folder: Path) -> list[Any]:
    paths = sorted(folder.glob(pattern))
    return [json.loads(line)["value"] for path in paths for line in path.read_text().splitlines()]


def _tutorial(folder: Path, output: str) -> None:
    windows = _lines("out/windows/*.jsonl", folder)
    rows = [
        json.loads(line) for path in folder.glob("logs/*.jsonl") for line in path.read_text().splitlines()
    ]
    assert sum(windows) == len(rows) > 4_000
    assert "records" in output


def _operators(folder: Path, output: str) -> None:
    clicks = sum(len(path.read_text().splitlines()) for path in folder.glob("data/clicks/*"))
    assert sum(value["clicks"] for value in _lines("out/sessions/*.jsonl", folder)) == clicks
    orders = [json.loads(line) for path in folder.glob("data/orders/orders*") for line in path.open()]
    payments = [json.loads(line) for path in folder.glob("data/orders/payments*") for line in path.open()]
    paid = {payment["order"]: payment["at"] for payment in payments}
    late = [o for o in orders if paid.get(o["order"], 1 << 62) > o["at"] + 600_000_000]
    unpaid = _lines("out/unpaid/*.jsonl", folder)
    assert sorted(value["order"] for value in unpaid) == sorted(order["order"] for order in late)
    busiest = _lines("out/busiest/*.jsonl", folder)
    assert busiest
    assert all(len(value["top"]) == 2 for value in busiest)


def _timeout_join(folder: Path, output: str) -> None:
    orders = [json.loads(line) for path in folder.glob("data/orders/orders*") for line in path.open()]
    payments = [json.loads(line) for path in folder.glob("data/orders/payments*") for line in path.open()]
    paid = {payment["order"]: payment["at"] for payment in payments}
    in_time = {o["order"] for o in orders if o["at"] <= paid.get(o["order"], -1) < o["at"] + 600_000_000}
    assert sorted(value["order"] for value in _lines("out/paid/*.jsonl", folder)) == sorted(in_time)
    unpaid = [value["order"] for value in _lines("out/unpaid/*.jsonl", folder)]
    assert sorted([*unpaid, *in_time]) == sorted(order["order"] for order in orders)
    assert 0 < len(unpaid) < len(orders)


def _zeitgeist(folder: Path, output: str) -> None:
    for place in ("anomalies/*.jsonl", "found/anomalies/*.jsonl"):
        kinds = {(value["key"], value["kind"]) for value in _lines(place, folder)}
        assert kinds >= {("weather", "spike"), ("cat videos", "dip")}, place


PAGES: dict[str, Callable[[Path, str], None]] = {
    "tutorial.md": _tutorial,
    "tutorial/operators.md": _operators,
    "tutorial/timeout-join.md": _timeout_join,
    "tutorial/zeitgeist.md": _zeitgeist,
}


def test_every_page_is_followed() -> None:
    assert {"tutorial.md", *(f"tutorial/{path.name}" for path in DOCS.glob("tutorial/*.md"))} == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_followed_outside_of_a_checkout(page: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    output = ""
    for language, text in BLOCK.findall((DOCS / page).read_text()):
        if language == "python" and ">>>" not in text:
            found = FILE.match(text)
            assert found, f"{page}: a block of Python that is no whole file:\n{text}"
            (tmp_path / found[1]).write_text(text)
        elif language == "sh":
            commands = [line for line in text.splitlines() if not line.startswith("pip ")]
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            assert done.returncode == 0, f"{page}:\n{text}\n{done.stdout}\n{done.stderr}"
            output += done.stdout
    PAGES[page](tmp_path, output)
