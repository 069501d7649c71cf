"""The physical limit: a plain loop over dicts, as many processes as cores, no durability.

    python -m benchmarks.peers.plain SOURCE OUT PROCESSES {orjson,msgspec}

Every process reads all the files, in the order of time, and keeps the keys that are its own: so all of a
key's records meet in one place, as they must for code with state by key, and the watermark is everybody's.
Reading half of the files each and handing on what belongs to the other costs as much CPU time: parsing a
line with orjson is no dearer than packing and unpacking what was in it. msgspec, which is told the fields
that are wanted, is faster still; it is what millwheel reads lines with.
"""

from __future__ import annotations

import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import Process
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import BinaryIO

import msgspec
import orjson

_SECOND = 1_000_000
_DISORDER = 2 * _SECOND


class _Query(msgspec.Struct, gc=False):
    query: str
    time: int


def _orjson(lines: Iterable[bytes]) -> Iterator[tuple[str, int]]:
    return map(itemgetter("query", "time"), map(orjson.loads, lines))


def _msgspec(lines: Iterable[bytes]) -> Iterator[tuple[str, int]]:
    return map(attrgetter("query", "time"), map(msgspec.json.Decoder(_Query).decode, lines))


PARSERS: dict[str, Callable[[Iterable[bytes]], Iterator[tuple[str, int]]]] = {
    "orjson": _orjson,
    "msgspec": _msgspec,
}


def count(files: list[Path], out: Path, number: int, processes: int, parser: str) -> None:
    """One process: counts by window, then by key, so that closing a window costs what is in it."""
    parse, checksum = PARSERS[parser], zlib.crc32
    counts: defaultdict[int, dict[str, int]] = defaultdict(dict)
    highest = closed = 0
    with open(out / f"part-{number}.jsonl", "wb") as target:
        for path in files:
            with open(path, "rb") as file:
                for key, time in parse(file):
                    if checksum(key.encode()) % processes == number:
                        window = counts[time // _SECOND]
                        window[key] = window.get(key, 0) + 1
                    if time > highest:
                        highest = time
                        passed = (time - _DISORDER) // _SECOND
                        if passed > closed:
                            closed = passed
                            _close(counts, closed, target)
        _close(counts, max(counts, default=0) + 1, target)


def _close(counts: defaultdict[int, dict[str, int]], end: int, target: BinaryIO) -> None:
    """Writes and forgets the windows before ``end``."""
    dumps = orjson.dumps
    for window in sorted(window for window in counts if window < end):
        found = counts.pop(window)
        target.writelines(
            dumps({"key": key, "window": window, "count": count}) + b"\n" for key, count in found.items()
        )


def main(source: Path, out: Path, processes: int, parser: str) -> None:
    """Starts the processes and waits for them."""
    out.mkdir(parents=True)
    files = sorted(source.glob("*.jsonl"))
    started = [
        Process(target=count, args=(files, out, number, processes, parser)) for number in range(processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    if any(process.exitcode for process in started):
        sys.exit("a process of the plain loop failed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
