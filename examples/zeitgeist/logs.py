"""``python -m examples.zeitgeist.logs FOLDER``: two minutes of queries to try the pipeline on."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import millwheel as mw

SECONDS = 120
_USUAL = {"cat videos": 20, "television listings": 12, "weather": 8}


def queries(seed: int = 1) -> Iterator[dict[str, Any]]:
    """Three steady queries; at second 60 one spikes for five seconds, and at 90 one is gone for ten."""
    rng = random.Random(seed)
    number = 0
    for second in range(SECONDS):
        for query, usual in _USUAL.items():
            count = usual + rng.randrange(-2, 3)
            if query == "weather" and 60 <= second < 65:
                count = 60
            if query == "cat videos" and 90 <= second < 100:
                count = 0
            for _ in range(count):
                number += 1
                time = second * mw.SECOND + rng.randrange(mw.SECOND)
                yield {"time": time, "id": number, "query": query}


def main(folder: Path) -> None:
    """Writes them, out of order, into two files."""
    rows = list(queries())
    random.Random(2).shuffle(rows)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        lines = [json.dumps(row) + "\n" for row in rows[number::2]]
        (folder / f"queries-{number}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
