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
    """Up to sixty records more with each poll; two partitions."""

    def __init__(self) -> None:
        self.given = 0

    def poll(self) -> Mapping[str, int]:
        self.given = min(self.given + 30, RECORDS // 2)
        return {"even": self.given, "odd": self.given}

    def read(self, partition: str, start: int | None, end: int) -> Iterable[mw.Record]:
        for number in range(start or 0, end):
            own = 2 * number + (partition == "odd")
            yield mw.Record(
                value={"user": f"user {own % 37}", "n": own}, timestamp=own * 1000, id=own - own % 50 // 49
            )

    def low_watermark(self, partition: str, offset: int | None) -> int:
        done = offset or 0
        self.given = max(self.given, done)  # those of an injector before it
        return mw.MAX_TIME if done >= RECORDS // 2 else 2 * done * 1000


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
    built.inject("in", Steady())
    built.add(Sums(), inputs={"in": mw.by("user")}, outputs=["sums"])
    built.sink("sums", ByEpoch(folder))
    return built


def wall() -> int:
    """The time of day."""
    return time.time_ns() // 1000
