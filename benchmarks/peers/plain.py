"""The physical limit: a plain loop over dicts, as many processes as cores, no durability.

    python -m benchmarks.peers.plain SOURCE OUT PROCESSES {by key,by window}

By key, it has what the computation of millwheel has: a dict of each key's state, and timers by which a key's
windows are closed. By window, it is a program for this one job, with no state by key: counts of all keys,
window by window, which is as fast as we could write it.

Every process reads all the files, in the order of time, and keeps the keys that are its own: so all of a
key's records meet in one place, as they must for code with state by key, and the watermark is everybody's.
Reading half of the files each and handing on what belongs to the other costs as much CPU time: parsing a
line with orjson is no dearer than packing and unpacking what was in it.
"""

from __future__ import annotations

import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from multiprocessing import Process
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

import orjson

_SECOND = 1_000_000
_DISORDER = 2 * _SECOND
_END = 2**62


def count_by_key(files: list[Path], target: BinaryIO, number: int, processes: int) -> None:
    """A state for each key, and the keys that have a timer at the end of a window."""
    states: defaultdict[str, dict[int, int]] = defaultdict(dict)
    timers: defaultdict[int, set[str]] = defaultdict(set)

    def close(end: int) -> Iterator[tuple[str, int, int]]:
        for window in sorted(window for window in timers if window < end):
            for key in timers.pop(window):
                yield key, window, states[key].pop(window)

    checksum = zlib.crc32
    highest = closed = 0
    for key, time in _records(files):
        if checksum(key.encode()) % processes == number:
            window = time // _SECOND
            state = states[key]
            state[window] = state.get(window, 0) + 1
            timers[window].add(key)
        if time > highest:
            highest = time
            passed = (time - _DISORDER) // _SECOND
            if passed > closed:
                closed = passed
                target.writelines(_lines(close(closed)))
    target.writelines(_lines(close(_END)))


def count_by_window(files: list[Path], target: BinaryIO, number: int, processes: int) -> None:
    """The counts of a window by key, so that closing it costs what is in it."""
    counts: defaultdict[int, dict[str, int]] = defaultdict(dict)

    def close(end: int) -> Iterator[tuple[str, int, int]]:
        for window in sorted(window for window in counts if window < end):
            for key, count in counts.pop(window).items():
                yield key, window, count

    checksum = zlib.crc32
    highest = closed = 0
    for key, time in _records(files):
        if checksum(key.encode()) % processes == number:
            mine = counts[time // _SECOND]
            mine[key] = mine.get(key, 0) + 1
        if time > highest:
            highest = time
            passed = (time - _DISORDER) // _SECOND
            if passed > closed:
                closed = passed
                target.writelines(_lines(close(closed)))
    target.writelines(_lines(close(_END)))


WAYS: dict[str, Callable[[list[Path], BinaryIO, int, int], None]] = {
    "by key": count_by_key,
    "by window": count_by_window,
}


def count(files: list[Path], out: Path, number: int, processes: int, way: str) -> None:
    """One process."""
    with open(out / f"part-{number}.jsonl", "wb") as target:
        WAYS[way](files, target, number, processes)


def _records(files: list[Path]) -> Iterator[tuple[str, int]]:
    """The keys and times of all lines, without a line of Python for each."""
    lines = chain.from_iterable(open(path, "rb") for path in files)  # noqa: SIM115 - closed when exhausted
    return map(itemgetter("query", "time"), map(orjson.loads, lines))


def _lines(found: Iterable[tuple[str, int, int]]) -> Iterator[bytes]:
    dumps = orjson.dumps
    return (dumps({"key": key, "window": window, "count": count}) + b"\n" for key, window, count in found)


def main(source: Path, out: Path, processes: int, way: str) -> None:
    """Starts the processes and waits for them."""
    out.mkdir(parents=True)
    files = sorted(source.glob("*.jsonl"))
    started = [
        Process(target=count, args=(files, out, number, processes, way)) for number in range(processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    if any(process.exitcode for process in started):
        sys.exit("a process of the plain loop failed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
