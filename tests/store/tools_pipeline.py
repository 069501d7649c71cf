"""The pipeline that runs while every tool is used on its store; in a module, so that `apply` can name it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import millwheel as mw

RECORDS = 6_000


class Steady(mw.Injector):
    """Up to sixty records more with each poll, as far as the test allows; two partitions.

    How far it is is in a file, so that neither a restart nor a change of the pipeline begins anew.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def poll(self) -> Mapping[str, int]:
        given = min(_number(self.folder / "given", 0) + 30, _number(self.folder / "allowed", RECORDS // 2))
        (self.folder / "given.part").write_text(str(given))
        os.replace(self.folder / "given.part", self.folder / "given")
        return {"even": given, "odd": given}

    def read(self, partition: str, start: int | None, end: int) -> Iterable[mw.Record]:
        for number in range(start or 0, end):
            own = 2 * number + (partition == "odd")
            yield mw.Record(
                value={"user": f"user {own % 37}", "n": own}, timestamp=own * 1000, id=own - own % 50 // 49
            )

    def low_watermark(self, partition: str, offset: int | None) -> int:
        done = offset or 0
        return mw.MAX_TIME if done >= RECORDS // 2 else 2 * done * 1000


def allow(folder: Path, part: float) -> None:
    """Lets the injector give a part of its records."""
    (folder / "allowed").write_text(str(int(RECORDS // 2 * part)))


def _number(path: Path, otherwise: int) -> int:
    return int(path.read_text()) if path.exists() else otherwise


class Sums(mw.Computation):
    """The sum of each window of a user, and how many windows there were."""

    def process_record(self, record: mw.Record) -> None:
        window = str(record.timestamp // 200_000)
        self.state[window] = self.state.get(window, 0) + record.value["n"]
        self.set_timer(window, (int(window) + 1) * 200_000)

    def process_timer(self, timer: mw.Timer) -> None:
        self.state["windows"] = self.state.get("windows", 0) + 1
        self.produce("sums", [timer.tag, self.state.pop(timer.tag), self.state["windows"]])


class ByEpoch(mw.Sink):
    """A file for each epoch and shard: written again, it is the same."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        name = os.path.join(self.folder, f"{epoch}-{shard}")
        with open(f"{name}.part", "w") as file:
            json.dump([[record.key, record.value] for record in records], file)
        os.replace(f"{name}.part", f"{name}.json")


def written(folder: Path) -> list[list[object]]:
    """Everything that is in the files, in order."""
    found = [record for path in folder.glob("*.json") for record in json.loads(path.read_text())]
    return sorted(found)


class Seen(mw.Computation):
    """Counts a user's windows; it comes and goes."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1


OUTPUT = "TOOLS_OUTPUT"
"""The variable of the environment with the folder of the output."""


def larger() -> mw.Pipeline:
    """The pipeline with one computation more."""
    built = pipeline()
    built.add(Seen(), inputs={"sums": mw.by_key})
    return built


def pipeline(folder: str = "") -> mw.Pipeline:
    """The pipeline, with its output in a folder."""
    folder = folder or os.environ[OUTPUT]
    built = mw.Pipeline("under tools")
    built.inject("in", Steady(folder))
    built.add(Sums(), inputs={"in": mw.by("user")}, outputs=["sums"])
    built.sink("sums", ByEpoch(folder))
    return built


def wall() -> int:
    """The time of day."""
    return time.time_ns() // 1000
