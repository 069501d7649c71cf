"""``python -m benchmarks compare REVISION``: this code against another revision, in turns in one run.

Each of the two has a process and a Spark of its own, which stay for the whole run; one works while the other
is idle. The other revision runs in a worktree of its own, with the benchmarks of this one. A turn is a
windowed count with few keys, one with many, and a latency test. In each round both take their turns, in
alternating order, and the ratio of the two is one sample.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import data, results

_ROOT = Path(__file__).resolve().parent.parent
_KEYS = (1_000, 100_000)
_CACHES = shutil.ignore_patterns("__pycache__")
_SURE = 0.9  # how often the true median is in the interval that is shown, at least
_LOWER_IS_BETTER = ("CPU", "p50", "p95")


class Ratio(NamedTuple):
    """This code's figure as a multiple of the other's: the median of rounds, and where it may be."""

    median: float
    low: float
    high: float

    @property
    def changed(self) -> bool:
        """Whether the difference is larger than the noise."""
        return not self.low <= 1 <= self.high


def ratio(samples: Sequence[float]) -> Ratio:
    """The median, between the samples that the true median is between with a probability of 90%.

    With fewer than five samples no two of them are that far apart: then between the extremes.

    >>> ratio([1.1, 1.2, 1.3, 1.15, 1.25])
    Ratio(median=1.2, low=1.1, high=1.3)
    >>> ratio([0.5, 1.1, 1.2, 1.3, 1.15, 1.25, 1.2, 9.0]).low
    1.1
    """
    ordered = sorted(samples)
    count, cut = len(ordered), 0
    while cut + 1 < (count + 1) // 2:
        outside = 2 * sum(math.comb(count, k) for k in range(cut + 2)) / 2**count
        if 1 - outside < _SURE:
            break
        cut += 1
    return Ratio(statistics.median(ordered), ordered[cut], ordered[-1 - cut])


def run(
    revision: str,
    *,
    quick: bool = False,
    rounds: int = 5,
    seconds: float = 10.0,
    records: int = 500_000,
    only: list[str] | None = None,
) -> dict[str, Any]:
    """Takes the turns, prints what changed, and writes the artifacts."""
    wanted = [f"{keys} keys" for keys in _KEYS] + ["latency"]
    wanted = [name for name in wanted if only is None or any(part in name for part in only)]
    if quick:
        records, rounds, seconds = 20_000, 1, 2.0
    found: dict[str, dict[str, list[float]]] = {"this": {}, "other": {}}
    with ExitStack() as stack:
        work = stack.enter_context(results.scratch("compare"))
        inputs = {name: _input(work, keys, records) for keys in _KEYS if (name := f"{keys} keys") in wanted}
        other = stack.enter_context(checkout(revision))
        for package in ("millwheel", "benchmarks"):  # a copy, so that nothing is edited under the run
            shutil.copytree(_ROOT / package, work / "copy" / package, ignore=_CACHES)
        sides = {
            "this": stack.enter_context(Side(work / "copy", work / "this")),
            "other": stack.enter_context(Side(other, work / "other")),
        }
        for number in range(-1, rounds):  # the first one warms up
            for name in wanted:
                order = list(sides) if number % 2 else list(reversed(sides))
                for side in order:
                    source = inputs.get(name)
                    figures = sides[side].turn(os.fspath(source.folder) if source else "", records, seconds)
                    for figure, value in figures.items() if number >= 0 else ():
                        found[side].setdefault(f"{name}: {figure}", []).append(value)
            _say(number, rounds, found)
    figures = {
        name: ratio([a / b for a, b in zip(mine, found["other"][name], strict=True)])
        for name, mine in found["this"].items()
    }
    result = {"quick": quick, "rounds": rounds, "other": revision, "found": found, "ratios": figures}
    results.save(results.name("compare", quick=quick), result)
    _print(found, figures, revision)
    return result


def _input(work: Path, keys: int, records: int) -> data.Input:
    return data.generate(work / f"{keys}-keys", keys=keys, records=records, files=10)


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A worktree of a revision, with the benchmarks of this code."""
    with tempfile.TemporaryDirectory(prefix="millwheel-compare-") as folder:
        place = Path(folder) / "checkout"
        git = ["git", "-C", os.fspath(_ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", os.fspath(place), revision], check=True)
        try:
            shutil.rmtree(place / "benchmarks", ignore_errors=True)
            shutil.copytree(_ROOT / "benchmarks", place / "benchmarks", ignore=_CACHES)
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", os.fspath(place)], check=True)


class Side:
    """A process that runs the turns of one revision."""

    def __init__(self, root: Path, work: Path) -> None:
        work.mkdir()
        self._work = work
        self._log = open(work / "log", "wb")  # noqa: SIM115 - closed with this
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.compare", os.fspath(root), os.fspath(work)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": os.fspath(root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # which ends it
        self._process.wait(60)
        self._log.close()

    def turn(self, folder: str, records: int, seconds: float) -> dict[str, float]:
        """The figures of one turn: a count of a folder's windows, or without one a latency test."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([folder, records, seconds]), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("{"):
                figures: dict[str, float] = json.loads(line)
                return figures
        text = (self._work / "log").read_text(errors="replace")
        raise RuntimeError(f"a side of the comparison ended:\n{text[-3_000:]}")


def _serve(root: Path, work: Path) -> None:
    """In the process of a side: takes turns until the input ends."""
    import millwheel as mw
    from benchmarks import latency
    from benchmarks.pipelines import windows
    from benchmarks.processes import cpu_seconds
    from benchmarks.session import session

    assert Path(str(mw.__file__)).is_relative_to(root), "the wrong millwheel"
    with session(work, memory="1g") as spark:
        for number, line in enumerate(sys.stdin):
            folder, records, seconds = json.loads(line)
            place = work / f"turn-{number}"
            place.mkdir()
            began, used = time.perf_counter(), cpu_seconds()
            if folder:
                pipeline = windows.pipeline(f"{folder}/*.jsonl", place / "out")
                mw.run(pipeline, store=place / "store", spark=spark, progress=False)
                took = time.perf_counter() - began
                figures = {
                    "records/s": records / took,
                    "CPU us a record": (cpu_seconds() - used) / records * 1e6,
                }
            else:
                found = sorted(latency.turn(spark, place, latency.SYSTEMS["millwheel"], seconds))
                figures = {f"p{part} ms": latency.percentile(found, part) for part in (50, 95)}
            shutil.rmtree(place)
            print(json.dumps(figures), flush=True)


def _say(number: int, rounds: int, found: dict[str, dict[str, list[float]]]) -> None:
    if number >= 0:
        last = {name: values[-1] / found["other"][name][-1] for name, values in found["this"].items()}
        text = ", ".join(f"{name} {value:.2f}" for name, value in last.items())
        print(f"round {number + 1} of {rounds}: {text}", flush=True)


def _print(found: dict[str, dict[str, list[float]]], figures: dict[str, Ratio], revision: str) -> None:
    rows = []
    for name, one in figures.items():
        lower = any(word in name for word in _LOWER_IS_BETTER)
        better = "better" if (one.median < 1) == lower else "worse"
        mine, theirs = (statistics.median(found[side][name]) for side in ("this", "other"))
        noise = f"{one.low:.2f} to {one.high:.2f}"
        verdict = better if one.changed else "no change beyond the noise"
        rows.append([name, mine, theirs, f"{one.median:.2f}", noise, verdict])
    print(results.table(["", "this", revision, "ratio", "between", ""], rows))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), Path(sys.argv[2]))
