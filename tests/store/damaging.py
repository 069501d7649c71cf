"""Damages a store in a folder, as a seed says, and runs a pipeline on it in a process of its own."""

from __future__ import annotations

import multiprocessing
import random
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.ending import Ending
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.planner import Mode
from millwheel.store.lmdb.lmdb_snapshot import WRITES
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.open import open_to_read
from millwheel.watch.view import look
from millwheel.worker.envelope import Frame
from millwheel.worker.plan import Plan
from tests.store.driving import contents, take

_RECORDS = 240
_PAGE = 4096
Written = dict[tuple[int, int], list[tuple[str, Any, int]]]


class Chunks(mw.Injector):
    """Gives twenty records more with each poll, up to a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.given = 0

    def poll(self) -> Mapping[str, int]:
        self.given = min(self.given + 20, self.limit)
        return {"only": self.given}

    def read(self, partition: str, start: int | None, end: int) -> Iterable[mw.Record]:
        for number in range(start or 0, end):
            value = {"key": f"key {number * 7 % 23}", "text": "x" * (number * 37 % 300)}
            # Every tenth ID was there before: the record is a duplicate.
            yield mw.Record(value=value, timestamp=number * 10, id=f"id-{number - number % 10 // 9}")

    def low_watermark(self, partition: str, offset: int | None) -> int:
        done = offset or 0
        return mw.MAX_TIME if done >= _RECORDS else max(0, done * 10 - 100)


class Windows(mw.Computation):
    """Counts and texts by window; keys keep a state for good, and one of them a large one."""

    def process_record(self, record: mw.Record) -> None:
        bucket = str(record.timestamp // 200)
        self.state.setdefault(bucket, []).append(len(record.value["text"]))
        self.state["all"] = self.state.get("all", "") + record.value["text"]
        self.set_timer(bucket, (int(bucket) + 1) * 200)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("windows", self.state.pop(timer.tag))


class Keep(mw.Sink):
    """What was written, by epoch and shard."""

    def __init__(self, kept: Written) -> None:
        self.kept = kept

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        self.kept[epoch, shard] = [(record.key, record.value, record.timestamp) for record in records]


def pipeline(limit: int, kept: Written) -> mw.Pipeline:
    built = mw.Pipeline("damaged")
    built.inject("in", Chunks(limit))
    built.add(Windows(), inputs={"in": mw.by("key")}, outputs=["windows"])
    built.sink("windows", Keep(kept))
    return built


class _Killed(BaseException):
    """The driver is gone."""


@dataclass
class _Dying:
    """An executor that does an epoch's work; then the driver dies."""

    executor: LocalExecutor

    def execute(self, plan: Plan) -> list[Frame]:
        self.executor.execute(plan)
        raise _Killed

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Base:
    """A store in the middle of its work, and what it was before."""

    folder: Path
    kept: Written
    older: list[Path] = field(default_factory=list)


def make_base(folder: Path, *, closed: bool) -> Base:
    """A store after six epochs; where it was not closed, its driver died before it committed the sixth."""
    kept: Written = {}
    store = LmdbStore(folder / "made", shards=2)
    driver, executor = take(pipeline(_RECORDS // 2, kept), store, ending=Ending.NEVER, slots=2)
    base = Base(folder / "base", kept)
    while (plan := driver.next_plan()) is not None:
        if plan.epoch == 6 and not closed:
            with pytest.raises(_Killed):
                driver.run(plan, _Dying(executor))
            break
        driver.run(plan, executor)
        older = folder / f"older-{plan.epoch}"
        shutil.copytree(folder / "made", older)
        base.older.append(older)
    if closed:
        base.older.pop()
        driver.close()
        shutil.copytree(folder / "made", base.folder)
    else:
        shutil.copytree(folder / "made", base.folder)
        driver.close()
    return base


def finish(folder: Path, kept: Written, looks: bool) -> tuple[Any, Any]:
    """Runs the pipeline to its end; what was written, and the rows that there are then."""
    if looks:
        with_look = open_to_read(folder)
        look(with_look, 0)
        with_look.close()
    store = LmdbStore(folder, sync=False)
    driver, executor = take(pipeline(_RECORDS, kept), store, slots=2)
    try:
        while not driver.sources.exhausted or driver.held:
            plan = driver.next_plan(Mode.DRAIN if driver.sources.exhausted else Mode.NORMAL)
            if plan is not None:
                driver.run(plan, executor)
        rows = [
            {key: value for key, value in contents(shard).items() if key[:1] in b"RTIG" and key != WRITES}
            for shard in store.shards
        ]
    finally:
        driver.close()
    return sorted(record for records in kept.values() for record in records), rows


def _in_child(sender: Any, folder: Path, kept: Written, looks: bool) -> None:
    try:
        sender.send(("ran", finish(folder, dict(kept), looks)))
    except mw.MillWheelError as error:
        sender.send(("refused", f"{type(error).__name__}: {error}"))
    except BaseException as error:
        sender.send(("raw", repr(error)))


def outcome(folder: Path, kept: Written, looks: bool) -> tuple[str, Any]:
    """What becomes of a run on a store, seen from outside: a process may die of it."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_in_child, args=(sender, folder, kept, looks))
    child.start()
    sender.close()
    try:
        found: tuple[str, Any] = receiver.recv() if receiver.poll(60) else ("hangs", None)
    except EOFError:
        child.join(10)
        found = ("died", child.exitcode)
    child.kill()
    child.join()
    return found


Damage = Callable[[random.Random, Path, Base], str]


def _data_file(draw: random.Random, folder: Path) -> Path:
    return folder / draw.choice(["journal", "shard-00", "shard-01"]) / "data.mdb"


def _bytes(draw: random.Random, folder: Path, base: Base) -> str:
    files = [path for path in sorted(folder.rglob("*.json")) if path.is_file()]
    path = draw.choice(files) if draw.random() < 0.1 else _data_file(draw, folder)
    data = bytearray(path.read_bytes())
    if draw.random() < 0.5 or len(data) < _PAGE:
        places = [draw.randrange(len(data)) for _ in range(draw.choice([1, 1, 2, 16]))]
    else:  # where pages have their headers and the places of their entries
        start = draw.randrange(len(data) // _PAGE) * _PAGE
        places = [start + draw.randrange(150) for _ in range(draw.choice([1, 2]))]
    for place in places:
        data[place] ^= 1 << draw.randrange(8) if draw.random() < 0.5 else draw.randrange(1, 256)
    path.write_bytes(data)
    return f"{path.relative_to(folder)}: bytes at {places}"


def _truncated(draw: random.Random, folder: Path, base: Base) -> str:
    path = _data_file(draw, folder)
    size = path.stat().st_size
    rest = draw.choice([draw.randrange(size), draw.randrange(size // _PAGE) * _PAGE, size - _PAGE])
    with open(path, "r+b") as file:
        file.truncate(rest)
    return f"{path.relative_to(folder)}: cut off at {rest} of {size}"


def _lost_page(draw: random.Random, folder: Path, base: Base) -> str:
    path = _data_file(draw, folder)
    data = bytearray(path.read_bytes())
    number, other = (draw.randrange(len(data) // _PAGE) for _ in range(2))
    kind = draw.choice(["zeros", "another page", "an older page"])
    page = b"\x00" * _PAGE
    if kind == "another page":
        page = bytes(data[other * _PAGE : (other + 1) * _PAGE])
    elif kind == "an older page":
        older = (draw.choice(base.older) / path.relative_to(folder)).read_bytes()
        page = older[number * _PAGE : (number + 1) * _PAGE] or page
    data[number * _PAGE : (number + 1) * _PAGE] = page
    path.write_bytes(data)
    return f"{path.relative_to(folder)}: page {number} is {kind} ({other})"


def _older_copy(draw: random.Random, folder: Path, base: Base) -> str:
    path = _data_file(draw, folder)
    older = draw.choice(base.older)
    shutil.copy(older / path.relative_to(folder), path)
    return f"{path.relative_to(folder)}: as in {older.name}"


def _lost_file(draw: random.Random, folder: Path, base: Base) -> str:
    path = draw.choice(sorted(path for path in folder.rglob("*") if path.name != "store.json"))
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    return f"{path.relative_to(folder)}: gone"


DAMAGES: list[tuple[Damage, int]] = [
    (_bytes, 50),
    (_truncated, 15),
    (_lost_page, 20),
    (_older_copy, 10),
    (_lost_file, 5),
]


def damaged(base: Base, folder: Path, seed: int) -> str:
    """A copy of a store with one damage; returns what it is."""
    draw = random.Random(seed)
    shutil.copytree(base.folder, folder)
    (damage,) = draw.choices([damage for damage, _ in DAMAGES], [weight for _, weight in DAMAGES])
    return damage(draw, folder, base)
