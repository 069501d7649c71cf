"""What the state machine of the engine is made of: input by hand, computations that do as they are told and
log it, workers and drivers that die, and what the model knows of a key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.master.local_executor import LocalExecutor
from millwheel.model.injector import Injector, Offset
from millwheel.worker.commit import Outcome
from millwheel.worker.envelope import Frame
from millwheel.worker.plan import Plan
from millwheel.worker.step import Worker

KEYS = [f"key {n}" for n in range(6)]  # they live in six different tablets
PLACES = [("in", "a"), ("in", "b"), ("in", "c"), ("more", "a"), ("more", "b")]
TAGS = st.sampled_from(["s", "t", "again"])
HOLD_TAGS = st.sampled_from(["", "h"])
STEP = st.integers(0, 15)
COMMANDS = st.one_of(
    st.tuples(st.just("set"), TAGS, STEP, st.sampled_from([mw.WATERMARK, mw.WATERMARK, mw.WALL])),
    st.tuples(st.just("set"), TAGS, STEP, st.just(mw.WATERMARK)),
    st.tuples(st.just("clear"), TAGS),
    st.tuples(st.just("hold"), HOLD_TAGS, STEP),
    st.tuples(st.just("release"), HOLD_TAGS),
)


RECORDS = st.tuples(
    st.sampled_from(KEYS),
    st.integers(0, 5),
    st.integers(-3, 12),
    st.integers(0, 6),
    st.dictionaries(st.integers(0, 3), st.lists(COMMANDS, min_size=1, max_size=3), max_size=3),
)
"""Key, second key, how far it is ahead of its partition's watermark, how far that goes on, commands."""
SETTINGS = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


class Crash(BaseException):
    """The end of a driver."""


class ByHand(Injector):
    """Partitions that grow as they are told; each offset has the watermark that was vouched for there."""

    def __init__(self, partitions: Iterable[str], *, silent: bool) -> None:
        self.records: dict[str, list[mw.Record]] = {name: [] for name in partitions}
        self.marks: dict[str, list[int]] = {name: [mw.MIN_TIME if silent else 0] for name in partitions}

    def append(self, partition: str, record: mw.Record, watermark: int) -> None:
        self.records[partition].append(record)
        self.marks[partition].append(max(self.marks[partition][-1], watermark))

    def advance(self, partition: str, watermark: int) -> None:
        self.marks[partition][-1] = max(self.marks[partition][-1], watermark)

    def poll(self) -> Mapping[str, Offset]:
        return {name: len(records) for name, records in self.records.items()}

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[mw.Record]:
        return self.records[partition][start or 0 : end]

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return self.marks[partition][offset or 0]

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        return min(end, (start or 0) + records)


class ReKeyed:
    """Gives each record another key at each consumer."""

    def __init__(self, node: int) -> None:
        self.node = node

    def __call__(self, record: mw.Record) -> str:
        return KEYS[(record.value["k"] + self.node) % len(KEYS)]


class Obeys(mw.Computation):
    """Forwards each record, does as it is told, and logs what it saw and what it produced."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.stream, self.log = f"s{node}", f"log{node}"

    def process_record(self, record: mw.Record) -> None:
        seen = [record.value["name"], record.timestamp, record.late, self.low_watermark, self.now]
        commands = record.value["do"].get(self.node, [])
        name = [*record.value["name"], self.node]
        sent = [self._send(name, record.value["k"], record.value["do"], record.timestamp)]
        holds = self.state.setdefault("holds", {})
        for verb, tag, *rest in commands:
            if verb == "set":
                self.set_timer(tag, *rest)
            elif verb == "clear":
                self.clear_timer(tag)
            elif verb == "hold":
                self.hold(rest[0], tag)
                holds[tag] = rest[0]
            else:
                self.release(tag)
                if tag in holds:
                    sent.append(self._send(self._name(), 0, {}, holds.pop(tag)))
        self.produce(self.log, ["record", seen, commands, sent])

    def process_timer(self, timer: mw.Timer) -> None:
        name = self._send(self._name(), 1, {}, timer.timestamp)
        if timer.tag == "again":
            self.set_timer("more", timer.timestamp + 4, clock=timer.clock)
        seen = [timer.tag, timer.timestamp, timer.clock, self.low_watermark, self.now]
        self.produce(self.log, ["timer", seen, name])

    def _name(self) -> list[Any]:
        """Names one more production of this key."""
        self.state["n"] = self.state.get("n", 0) + 1
        return [f"{self.node}/{self.key}/{self.state['n']}"]

    def _send(self, name: list[Any], k: int, do: dict[int, Any], timestamp: int) -> list[Any]:
        self.produce(self.stream, {"name": name, "k": k, "do": do}, timestamp=timestamp)
        return name


class Story(mw.Sink):
    """Keeps what was written by epoch and shard."""

    in_driver = True

    def __init__(self) -> None:
        self.shards: dict[tuple[int, int], list[mw.Record]] = {}

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        self.shards[epoch, shard] = list(records)

    def of(self, epoch: int) -> list[mw.Record]:
        return [r for place in sorted(self.shards) if place[0] == epoch for r in self.shards[place]]


class Mortal(Worker):
    """A worker that dies before its so many-th step."""

    steps_to_live = -1

    def step(self, *arguments: Any, **named: Any) -> Outcome:
        if self.steps_to_live == 0:
            raise Crash
        self.steps_to_live -= 1
        return super().step(*arguments, **named)


class DiesAtTheEnd:
    """An executor that does all the work, and is never heard of again."""

    job: int | None = None

    def __init__(self, executor: LocalExecutor) -> None:
        self._executor = executor

    def execute(self, plan: Plan) -> list[Frame]:
        self._executor.execute(plan)
        raise Crash


class Pending(NamedTuple):
    """A timer or a hold; ``kept``: it was not behind the low watermark when it was set."""

    time: int
    clock: str
    kept: bool


@dataclass
class Key:
    """The model of one key of one computation."""

    timers: dict[str, Pending] = field(default_factory=dict)
    holds: dict[str, Pending] = field(default_factory=dict)


class Shape(NamedTuple):
    """A random graph: by computation, its input streams, and whether it keeps their keys."""

    nodes: list[dict[str, bool]]
    two_injectors: bool


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    two = draw(st.booleans())
    streams = ["in", "more"] if two else ["in"]
    nodes: list[dict[str, bool]] = []
    for n in range(draw(st.integers(1, 4))):
        chosen = draw(st.lists(st.sampled_from(streams), min_size=1, max_size=2, unique=True))
        if n and draw(st.booleans()):
            chosen = [f"s{n - 1}"]
        nodes.append({stream: draw(st.sampled_from([True, True, False])) for stream in chosen})
        streams.append(f"s{n}")
    return Shape(nodes, two)
