"""What it means for a running pipeline to become another one (paper 3: dynamically, without a restart)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from millwheel.errors import PipelineError, shorten
from millwheel.master.design import design_of
from millwheel.master.journal import read_partitions
from millwheel.master.roster import check_version
from millwheel.model.codec import unpack
from millwheel.model.computation import Computation
from millwheel.model.graph import Graph
from millwheel.model.keys import key_text
from millwheel.model.names import SourceName
from millwheel.model.replay import to_replay
from millwheel.store.base import Store
from millwheel.store.layout import after, row_prefix
from millwheel.store.row import decode_row

_SAMPLED = 20  # rows of each shard that a new codec, or a new version, must be able to read


@dataclass(frozen=True)
class Change:
    """The difference between two pipelines, by the names of their parts."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    kept: tuple[str, ...]
    injectors_added: tuple[str, ...]
    injectors_removed: tuple[str, ...]
    sinks_added: tuple[str, ...] = ()
    """As ``STREAM to SINK``."""
    sinks_removed: tuple[str, ...] = ()
    edges_added: tuple[str, ...] = ()
    """Of computations that are kept: ``STREAM to COMPUTATION``, or ``COMPUTATION to STREAM``."""
    edges_removed: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    """Why it cannot be."""

    def __str__(self) -> str:
        parts = [
            f"{what} {', '.join(names)}"
            for what, names in (
                ("adds", self.added),
                ("removes", self.removed),
                ("keeps", self.kept),
                ("injects", self.injectors_added),
                ("no longer injects", self.injectors_removed),
                ("writes", self.sinks_added),
                ("no longer writes", self.sinks_removed),
                ("connects", self.edges_added),
                ("no longer connects", self.edges_removed),
            )
            if names
        ]
        return "; ".join(parts) or "changes nothing"

    def to_value(self) -> dict[str, Any]:
        """For a program."""
        return asdict(self)

    def check(self) -> None:
        """Raises a `PipelineError` with all that stands against the change."""
        if self.refusals:
            raise PipelineError("; ".join(self.refusals))


def change(new: Graph, store: Store) -> Change:
    """What would become of the pipeline that a store belongs to, whether it runs or not."""
    with store.journal.snapshot() as snapshot:
        found = {key: snapshot.get(key) for key in (b"design", b"numbers", b"versions")}
        read = set(read_partitions(snapshot.scan(b"o", after(b"o"))))
    known = {key: unpack(value) if value is not None else None for key, value in found.items()}
    design = known[b"design"]
    if design is None:
        raise PipelineError("the store has no pipeline in it yet: there is nothing to change; run it")
    numbers, versions = known[b"numbers"] or {}, known[b"versions"] or {}
    return _difference(design, new, _Refusals(design, new, store, numbers, versions, read).all())


def _difference(old: dict[str, Any], graph: Graph, refusals: Iterable[str]) -> Change:
    new = design_of(graph)
    before, now = old["nodes"], new["nodes"]
    kept = tuple(name for name in now if name in before)
    return Change(
        tuple(name for name in now if name not in before),
        tuple(name for name in before if name not in now),
        kept,
        *_both_ways(old["injectors"], new["injectors"]),
        *_both_ways(_sinks(old), _sinks(new)),
        *_both_ways(_edges(before, kept), _edges(now, kept)),
        tuple(refusals),
    )


def _both_ways(old: Iterable[str], new: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    before, now = set(old), set(new)
    return tuple(sorted(now - before)), tuple(sorted(before - now))


def _sinks(design: dict[str, Any]) -> list[str]:
    return [f"{stream} to {sink}" for stream, sinks in design["sinks"].items() for sink in sinks]


def _edges(nodes: Mapping[str, Any], kept: Iterable[str]) -> list[str]:
    read = [f"{stream} to {name}" for name in kept for stream in nodes[name]["inputs"]]
    return read + [f"{name} to {stream}" for name in kept for stream in nodes[name]["outputs"]]


@dataclass
class _Refusals:
    """All that stands against a change."""

    old: dict[str, Any]
    new: Graph
    store: Store
    numbers: dict[str, int]
    versions: dict[str, int]
    read: set[SourceName]

    def all(self) -> list[str]:
        """The reasons, in plain words; none: it can be."""
        if self.old["name"] != self.new.name:
            return [
                f"the pipeline {self.old['name']!r} cannot become {self.new.name!r}: its store belongs to "
                "it, by that name"
            ]
        found = []
        fresh = [name for name in self.new.nodes if name not in self.numbers]
        for name, node in self.new.nodes.items():
            try:
                if name in self.numbers:
                    check_version(name, node.computation.version, self.versions)
                    self._check_state(name, node.computation)
                elif node.replay:
                    to_replay(self.new, name, fresh, self.read)
            except PipelineError as error:
                found.append(str(error))
            found += self._keys(name)
        return found

    def _keys(self, name: str) -> Iterable[str]:
        known = {**self.old["away"], **self.old["nodes"]}
        if name not in known or name not in self.numbers:
            return
        before = known[name]["inputs"]
        now = design_of(self.new)
        if self.old["python"] != now["python"]:
            return  # its fingerprints say nothing here
        for stream, (mark, shown) in now["nodes"][name]["inputs"].items():
            if stream in before and before[stream][0] != mark:
                yield (
                    f"computation {name!r}, stream {stream!r}: the key extractor was {before[stream][1]} "
                    f"and is to be {shown}; its state is kept by the old keys. Give it another name, and "
                    "remove this one"
                )

    def _check_state(self, name: str, computation: Computation) -> None:
        """A codec that cannot read the stored state, or a version that cannot take it over."""
        prefix = row_prefix(self.numbers[name])
        for shard in self.store.shards:
            with shard.snapshot() as snapshot:
                for (key, value), _ in zip(
                    snapshot.scan(prefix, after(prefix)), range(_SAMPLED), strict=False
                ):
                    row = decode_row(value)
                    if row.state is not None:
                        probe = copy.copy(computation)
                        probe.key = row.key if row.key is not None else key_text(key[len(prefix) + 8 :])
                        self._check_row(name, probe, row.state, row.version)

    def _check_row(self, name: str, computation: Computation, data: bytes, version: int) -> None:
        try:
            state = computation.codec.decode(data)
        except Exception as error:
            before = {**self.old["away"], **self.old["nodes"]}.get(name, {}).get("codec", "another one")
            raise PipelineError(
                f"computation {name!r}: the codec {computation.codec!r} cannot read the state that {before} "
                f"wrote ({shorten(str(error), 120)})"
            ) from error
        if version == computation.version:
            return
        try:
            computation.migrate(version, state)
        except Exception as error:
            raise PipelineError(
                f"computation {name!r}: migrate() cannot make state of version {version} one of version "
                f"{computation.version} ({type(error).__name__}: {shorten(str(error), 120)})"
            ) from error
