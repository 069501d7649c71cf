"""Input files: search queries as JSON lines, out of order by up to two seconds, the same for every run."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SECOND = 1_000_000
DISORDER = 2 * SECOND
RATE = 20_000
"""Records in a second of event time, whatever the number of keys: files differ in length, not in density."""

_BEGIN = 1_300_000_000 * SECOND
_LAST_KEY = "~"  # of the record that lets a watermark pass the end of everything before it

Window = tuple[str, int]
"""A key, and the second that its window begins with."""


@dataclass(frozen=True)
class Input:
    """A folder of files, each covering the time after the one before it, as rotated logs do."""

    folder: Path
    keys: int
    records: int
    files: int

    @property
    def pattern(self) -> str:
        """For injectors that take a pattern."""
        return os.fspath(self.folder / "*.jsonl")

    def truth(self) -> Counter[Window]:
        """The right answer, counted without any engine."""
        counts: Counter[Window] = Counter()
        for path in sorted(self.folder.glob("*.jsonl")):
            with open(path) as file:
                for line in file:
                    record = json.loads(line)
                    counts[record["query"], record["time"] // SECOND] += 1
        return without_last(counts)


def generate(folder: Path, *, keys: int, records: int, files: int, seed: int = 1) -> Input:
    """Writes the files. A last one holds a single record from the future.

    A peer whose watermark only follows the records needs it to close the last windows; all read it.
    """
    folder.mkdir(parents=True)
    source = random.Random(seed)
    step = SECOND / RATE
    number = 0
    for index in range(files):
        share = records // files + (index < records % files)
        lines = []
        for _ in range(share):
            time = _BEGIN + int(number * step) - source.randrange(DISORDER)
            query, user = source.randrange(keys), source.randrange(1_000_000)
            lines.append(f'{{"time": {time}, "query": "query-{query}", "user": "user-{user}"}}\n')
            number += 1
        _write(folder / f"log-{index:04d}.jsonl", "".join(lines), index)
    last = _BEGIN + int(records * step) + 10 * DISORDER
    _write(
        folder / f"log-{files:04d}.jsonl",
        f'{{"time": {last}, "query": "{_LAST_KEY}", "user": ""}}\n',
        files,
    )
    return Input(folder, keys, records, files + 1)


def read_windows(paths: Iterable[Path], key: str = "key") -> Counter[Window]:
    """Windows as the peers write them, lines of JSON; each must be there once."""
    counts: Counter[Window] = Counter()
    for path in paths:
        with open(path) as file:
            for line in file:
                row = json.loads(line)
                add_window(counts, (row[key], row["window"]), row["count"])
    return counts


def add_window(counts: Counter[Window], window: Window, count: int) -> None:
    """A window that comes twice is wrong, whatever its counts are."""
    if window in counts:
        raise AssertionError(f"the window {window} was emitted twice")
    counts[window] = count


def without_last(counts: Counter[Window]) -> Counter[Window]:
    """Counts without the record from the future, whose window some systems close and others do not."""
    return Counter({window: count for window, count in counts.items() if window[0] != _LAST_KEY})


def _write(path: Path, text: str, index: int) -> None:
    path.write_text(text)
    # Structured Streaming takes files by modification time, and writing is faster than its resolution.
    moment = _BEGIN // SECOND + index
    os.utime(path, (moment, moment))
