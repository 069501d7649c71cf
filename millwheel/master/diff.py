"""The difference between a stored pipeline and a new one (3: dynamic topology)."""

from __future__ import annotations

import copy
import logging
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from millwheel.errors import PipelineError, shorten
from millwheel.master.journal import read_partitions
from millwheel.master.registry import check_version
from millwheel.master.topology import design_of
from millwheel.model.codec import unpack
from millwheel.model.computation import Computation
from millwheel.model.derived import public_name
from millwheel.model.folding import folding_of
from millwheel.model.graph import Graph
from millwheel.model.keys import key_text
from millwheel.model.names import SourceName
from millwheel.model.replay import to_replay
from millwheel.model.state_form import state_form
from millwheel.store.base import Store
from millwheel.store.formats import check_format
from millwheel.store.keyspace import JournalKey, after, row_prefix
from millwheel.store.row import decode_row
from millwheel.store.window_row import OTHER_FORM, is_window, other_form

logger = logging.getLogger("millwheel")

OTHER_OPERATOR = (
    "computation {!r}: the store has rows of another operator of that name: they are {}, and now it keeps "
    "{}. Give the operator another name, or first run the old pipeline until it has none"
)
_OWN = "those of a computation of one's own"
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
    """Of kept computations: ``STREAM to COMPUTATION``, ``COMPUTATION to STREAM``."""
    edges_removed: tuple[str, ...] = ()
    keys_changed: tuple[str, ...] = ()
    """Changed key extractors of computations in both: stored rows have the old keys."""
    refusals: tuple[str, ...] = ()
    """Why the change is impossible."""

    @property
    def parts(self) -> list[tuple[str, str, str]]:
        """What is ``added`` or ``removed``: that word, the kind of part, and its name."""
        return [
            (what, part, name)
            for part, added, removed in (
                ("computation", self.added, self.removed),
                ("injector", self.injectors_added, self.injectors_removed),
                ("sink", self.sinks_added, self.sinks_removed),
                ("edge", self.edges_added, self.edges_removed),
            )
            for what, names in (("added", added), ("removed", removed))
            for name in names
        ]

    @property
    def lines(self) -> list[str]:
        """What is added, removed or changed, one line each; empty if nothing is."""
        return [
            *(" ".join(part) for part in self.parts),
            *(f"changed key extractor: {text}" for text in self.keys_changed),
        ]

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
                ("changes the keys of", self.keys_changed),
            )
            if names
        ]
        return "; ".join(parts) or "changes nothing"

    def to_value(self) -> dict[str, Any]:
        """Encodes it for programs."""
        return asdict(self)

    def check(self) -> None:
        """Raises a `PipelineError` with all refusals."""
        if self.refusals:
            raise PipelineError("; ".join(self.refusals))


def change_at_start(new: Graph, store: Store, accept: Collection[str]) -> list[str]:
    """Compares a pipeline with its store's at a start: one line for each difference.

    Raises a `PipelineError` if the change is impossible; a store without a pipeline differs in nothing.
    """
    check_accept(new, accept)
    with store.journal.snapshot() as snapshot:
        check_format(snapshot.get(JournalKey.FORMAT), store.tablets)
        design = snapshot.get(JournalKey.DESIGN)
    if (
        design is None or unpack(design)["name"] != new.name
    ):  # another pipeline's store: refused on acquisition
        return []
    found = change(new, store, accept)
    found.check()
    for line in found.lines:
        logger.warning("pipeline %s differs from the one in its store: %s", new.name, line)
    return found.lines


def check_accept(new: Graph, accept: object) -> None:
    """Refuses anything but a list of the pipeline's computations."""
    names = [] if isinstance(accept, str) or not isinstance(accept, Collection) else list(accept)
    if isinstance(accept, str) or not isinstance(accept, Collection):
        raise PipelineError(f"accept is a list of names of computations, such as ['NAME'], not {accept!r}")
    for name in names:
        if name not in new.nodes:
            known = ", ".join(new.nodes)
            raise PipelineError(
                f"accept names {name!r}, which is not a computation of the pipeline: it has {known}"
            )


def change(new: Graph, store: Store, accept: Collection[str] = ()) -> Change:
    """The change from the pipeline that a store belongs to, running or not.

    ``accept`` names computations whose key extractors may differ from those that made their rows.
    """
    with store.journal.snapshot() as snapshot:
        found = {
            key: snapshot.get(key) for key in (JournalKey.DESIGN, JournalKey.NUMBERS, JournalKey.VERSIONS)
        }
        read = set(read_partitions(snapshot.scan(JournalKey.PARTITIONS, after(JournalKey.PARTITIONS))))
    known = {key: unpack(value) if value is not None else None for key, value in found.items()}
    design = known[JournalKey.DESIGN]
    if design is None:
        raise PipelineError("the store has no pipeline in it yet: there is nothing to change; run it")
    numbers, versions = known[JournalKey.NUMBERS] or {}, known[JournalKey.VERSIONS] or {}
    against = _Refusals(design, new, store, numbers, versions, read, accept)
    refusals = against.all()
    return _difference(design, new, against.keys_changed, refusals)


def _difference(
    old: dict[str, Any], graph: Graph, keys_changed: Iterable[str], refusals: Iterable[str]
) -> Change:
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
        tuple(keys_changed),
        tuple(refusals),
    )


def _both_ways(old: Iterable[str], new: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    before, now = set(old), set(new)
    return tuple(sorted(now - before)), tuple(sorted(before - now))


def _sinks(design: dict[str, Any]) -> list[str]:
    return [f"{stream} to {sink}" for stream, sinks in design["sinks"].items() for sink in sinks]


def _edges(nodes: Mapping[str, Any], kept: Iterable[str]) -> list[str]:
    read = [f"{public_name(stream)} to {name}" for name in kept for stream in nodes[name]["inputs"]]
    return read + [f"{name} to {stream}" for name in kept for stream in nodes[name]["outputs"]]


@dataclass
class _Refusals:
    """The reasons against a change."""

    old: dict[str, Any]
    new: Graph
    store: Store
    numbers: dict[str, int]
    versions: dict[str, int]
    read: set[SourceName]
    accept: Collection[str] = ()
    keys_changed: list[str] = field(default_factory=list)

    def all(self) -> list[str]:
        """The reasons as text; empty: the change is possible."""
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
                    self._check_form(name, node.computation)
                elif node.replay:
                    to_replay(self.new, name, fresh, self.read)
            except PipelineError as error:
                found.append(str(error))
            for text in self._keys(name):
                if name in self.accept:
                    self.keys_changed.append(f"{text} (accepted)")
                elif self._has_rows(name):
                    found.append(
                        f"{text}; its state is kept by the old keys. Give it another name and remove this "
                        f"one, or accept the new keys for records from now on: accept=[{name!r}], or "
                        f"--accept {shlex.quote(name)}"
                    )
                else:
                    self.keys_changed.append(text)
        return found

    def _keys(self, name: str) -> Iterable[str]:
        known = {**self.old["away"], **self.old["nodes"]}
        if name not in known or name not in self.numbers:
            return
        before = known[name]["inputs"]
        now = design_of(self.new)
        same_python = self.old["python"] == now["python"]
        for stream, (mark, shown, by_value) in now["nodes"][name]["inputs"].items():
            if stream not in before or before[stream][0] == mark:
                continue
            _, shown_before, by_value_before = before[stream]
            if not same_python and not by_value and not by_value_before:
                logger.warning(
                    "computation %r, stream %r: the key extractor %s is assumed to be unchanged, as "
                    "functions of Python %s and %s cannot be compared",
                    name,
                    stream,
                    shown,
                    ".".join(map(str, self.old["python"])),
                    ".".join(map(str, now["python"])),
                )
                continue
            yield (
                f"computation {name!r}, stream {public_name(stream)!r}: the key extractor was {shown_before} "
                f"and now is {shown}"
            )

    def _has_rows(self, name: str) -> bool:
        prefix = row_prefix(self.numbers[name])
        for shard in self.store.shards:
            with shard.snapshot() as snapshot:
                if next(iter(snapshot.scan(prefix, after(prefix))), None) is not None:
                    return True
        return False

    def _check_form(self, name: str, computation: Computation) -> None:
        """Checks that the stored rows are those of the same operator."""
        known = {**self.old["away"], **self.old["nodes"]}.get(name, {})
        before, now = known.get("form"), state_form(computation)  # None: an earlier version wrote it
        if before is not None and before != now and self._has_rows(name):
            raise PipelineError(OTHER_OPERATOR.format(name, before or _OWN, now or _OWN))

    def _check_state(self, name: str, computation: Computation) -> None:
        """Checks that the codec reads the stored state, and the version can migrate it."""
        prefix = row_prefix(self.numbers[name])
        folding = folding_of(computation)
        for shard in self.store.shards:
            with shard.snapshot() as snapshot:
                if other_form(snapshot, self.numbers[name], folding):
                    raise PipelineError(OTHER_FORM.format(name))
                for (key, value), _ in zip(
                    snapshot.scan(prefix, after(prefix)), range(_SAMPLED), strict=False
                ):
                    row = decode_row(value)
                    if row.state is not None and not is_window(key[len(prefix) :]):
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
                f"computation {name!r}: migrate() cannot convert state of version {version} to version "
                f"{computation.version} ({type(error).__name__}: {shorten(str(error), 120)})"
            ) from error
