"""Input files: search queries as JSON lines, out of order by up to two seconds, the same for every run."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

SECOND = 1_000_000
DISORDER = 2 * SECOND
RATE = 20_000
"""Records in a second of event time, whatever the number of keys: files differ in length, not in density."""

_BEGIN = 1_300_000_000 * SECOND
KEY = "query-"
"""What a key begins with; a number is behind it."""
LAST_KEY = "~"  # of the record that lets a watermark pass the end of everything before it


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


def generate(folder: Path, *, keys: int, records: int, files: int, seed: int = 1, text: int = 0) -> Input:
    """Writes the files. A last one holds a single record from the future.

    A peer whose watermark only follows the records needs it to close the last windows; all read it.
    With ``text``, each record has a field of so many characters besides, which nobody reads.
    """
    folder.mkdir(parents=True)
    source = random.Random(seed)
    step = SECOND / RATE
    number = 0
    pool = "".join(source.choices("abcdefghijklmnopqrstuvwxyz    ", k=20 * text))
    for index in range(files):
        share = records // files + (index < records % files)
        lines = []
        for _ in range(share):
            time = _BEGIN + int(number * step) - source.randrange(DISORDER)
            query, user = source.randrange(keys), source.randrange(1_000_000)
            more = ""
            if text:
                begin = source.randrange(19 * text)
                more = f', "text": "{pool[begin : begin + text]}"'
            lines.append(f'{{"time": {time}, "query": "{KEY}{query}", "user": "user-{user}"{more}}}\n')
            number += 1
        _write(folder / f"log-{index:04d}.jsonl", "".join(lines), index)
    last = _BEGIN + int(records * step) + 10 * DISORDER
    _write(
        folder / f"log-{files:04d}.jsonl",
        f'{{"time": {last}, "query": "{LAST_KEY}", "user": ""}}\n',
        files,
    )
    return Input(folder, keys, records, files + 1)


def to_parquet(folder: Path, target: Path) -> None:
    """Writes each file of lines in a folder as a Parquet file, with the same times of modification."""
    import pyarrow.json
    import pyarrow.parquet

    for path in sorted(folder.glob("*.jsonl")):
        copy = target / f"{path.stem}.parquet"
        pyarrow.parquet.write_table(pyarrow.json.read_json(path), copy)
        os.utime(copy, (path.stat().st_mtime, path.stat().st_mtime))


def _write(path: Path, text: str, index: int) -> None:
    path.write_text(text)
    # Structured Streaming takes files by modification time, and writing is faster than its resolution.
    moment = _BEGIN // SECOND + index
    os.utime(path, (moment, moment))
