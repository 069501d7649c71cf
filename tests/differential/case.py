"""A case: a pipeline, how it is run, and what happens to it, as plain values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal

Extractor = Literal["by_key", "suffix", "mod", "field", "skip", "picky", "all"]
Kind = Literal["script", "window", "forward", "windows", "join", "distinct", "top"]
OPERATORS = ("windows", "join", "distinct", "top")
"""The kinds that are operators."""


@dataclass(frozen=True)
class SourceSpec:
    """An injector; several may write one stream."""

    name: str
    stream: str
    partitions: int = 1
    slack: int | None = None
    """How far its watermark is behind the newest timestamp, where what it vouches for is not later."""


@dataclass(frozen=True)
class DerivedSpec:
    """A stream made of others by an operator that runs where records are made."""

    name: str
    parents: tuple[str, ...]
    how: Literal["map", "filter", "flat_map", "lookup"]


@dataclass(frozen=True)
class NodeSpec:
    """A computation, its options, and what decides what it does."""

    name: str
    kind: Kind
    seed: int
    inputs: dict[str, Extractor]
    outputs: tuple[str, ...]
    ordered: bool = False
    """Whether the contract gives an order to the records of a key: then the hooks depend on it."""
    holds: bool = False
    late: Literal["deliver", "drop", "divert"] = "deliver"
    errors: Literal["stop", "divert"] = "stop"
    watermark: float = 1.0
    exactly_once: bool = True
    strong: bool = True
    combine: Literal["", "sum", "in_place"] = ""
    in_order: bool = False
    wall: bool = True
    since: int = 0
    """The step from which on it is in the pipeline."""
    until: int = 1_000_000
    """The step from which on it is not any more."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Every stream that it writes."""
        errors = (self.name + ".errors",) if self.errors == "divert" else ()
        late = (self.name + ".late",) if self.late == "divert" else ()
        return (*self.outputs, *errors, *late)


@dataclass(frozen=True)
class Sent:
    """A record that an injector gives."""

    number: int
    source: str
    partition: int
    key: str
    n: int
    timestamp: int
    id: int | None = None


@dataclass(frozen=True)
class Step:
    """What comes before an epoch, and what happens to it."""

    number: int
    records: tuple[Sent, ...] = ()
    marks: dict[tuple[str, int], int] = field(default_factory=dict)
    """By source and partition: the low watermark from here on."""
    wall: int = 0
    drain: bool = False
    """Whether the injectors are at their end: the run closes."""
    rush: bool = False
    """Whether the next step comes before all that is due is done."""
    reopen: bool = False
    """Whether the run ends before this step, and the next one begins."""
    crash: bool = False
    """Whether everything but the store is lost before the epoch."""
    slots: int = 0
    """Another number of slots; 0: as it was."""
    layout: int = 0
    """A seed for other key intervals; 0: as they were."""
    fault: int = 0
    """A seed for attempts that are lost inside the epoch; 0: none is."""


@dataclass(frozen=True)
class Options:
    """How the engine runs a case: none of it may change the result."""

    slots: int = 1
    shards: int = 1
    tablets: tuple[int, ...] = (64,)
    """Those of the store; with each restart it is copied to one with the next number."""
    lmdb: bool = False
    objects: bool = False
    """Whether the store is in object storage, in a folder."""
    compact: bool = True
    cache: int = 0
    """Bytes of a cache of rows; 0: none."""
    due_limit: int = 100_000
    budget: int = 0
    """Looks at the clock that a step may take; 0: no limit."""
    order: int = 0
    """A seed for every order that the semantics leave open."""


@dataclass(frozen=True)
class Case:
    """A pipeline and its steps. Nodes stand behind their producers."""

    seed: int
    sources: tuple[SourceSpec, ...]
    nodes: tuple[NodeSpec, ...]
    steps: tuple[Step, ...]
    options: Options = Options()
    derived: tuple[DerivedSpec, ...] = ()

    @property
    def cut(self) -> bool:
        """Whether work may be spread over several epochs: it is compared once all of it is done."""
        return self.options.due_limit < 1_000 or self.options.budget > 0

    def at(self, step: int) -> tuple[NodeSpec, ...]:
        """The computations that are in the pipeline at a step."""
        return tuple(node for node in self.nodes if node.since <= step < node.until)

    def without(self, parts: Collection[str]) -> Case:
        """The case without some of its parts: nodes, derived streams, steps, faults, records, options."""
        if not parts:
            return self
        gone = {node.name for node in self.nodes if f"n{node.name}" in parts}
        nodes: list[NodeSpec] = []
        streams = {source.stream for source in self.sources}
        derived: list[DerivedSpec] = []
        for node in (*self.nodes, None):
            for one in self.derived:
                known = streams.issuperset(one.parents) and one.name not in streams
                if known and f"d{one.name}" not in parts:
                    derived.append(one)
                    streams.add(one.name)
            if node is None:
                break
            inputs = {stream: how for stream, how in node.inputs.items() if stream in streams}
            if node.name in gone or not inputs:
                continue
            nodes.append(replace(node, inputs=inputs))
            streams |= set(node.streams)
        plain = {f"o{name}": getattr(Options(), name) for name in Options.__dataclass_fields__}
        options = {name[1:]: value for name, value in plain.items() if name in parts}
        return replace(
            self,
            nodes=tuple(nodes),
            derived=tuple(derived),
            steps=tuple(_step(step, parts) for step in self.steps if f"s{step.number}" not in parts),
            options=replace(self.options, **options),
        )

    def parts(self) -> list[str]:
        """What can be left out, the largest first."""
        steps = [f"s{step.number}" for step in self.steps]
        nodes = [f"n{node.name}" for node in reversed(self.nodes)]
        nodes += [f"d{one.name}" for one in self.derived]
        options = [f"o{name}" for name in Options.__dataclass_fields__]
        faults = [f"f{step.number}" for step in self.steps if step != _step(step, {f"f{step.number}"})]
        records = [f"r{record.number}" for step in self.steps for record in step.records]
        return [*steps, *nodes, *options, *faults, *records]


def _step(step: Step, parts: Collection[str]) -> Step:
    if f"f{step.number}" in parts:
        step = replace(step, crash=False, slots=0, layout=0, fault=0)
    return replace(step, records=tuple(record for record in step.records if f"r{record.number}" not in parts))
