"""What must be equal after each step: what the outside saw, what the store has, and what is told of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from millwheel.model.codec import pack, unpack
from millwheel.model.folding import folding_of
from millwheel.model.keys import tablet
from millwheel.model.record import Record
from millwheel.model.time import WALL, WATERMARK
from millwheel.store.base import Store
from millwheel.store.keyspace import after, row_prefix
from millwheel.store.tools.check import check
from millwheel.store.window_row import by_key
from millwheel.watermark.percentile import variant
from tests.differential.case import OPERATORS, Case, NodeSpec, Step
from tests.differential.engine import Engine
from tests.differential.keys import Node
from tests.differential.reference import EXACT, Reference

_COUNTS = (
    "records",
    "produced",
    "produced_late",
    "late",
    "dropped",
    "diverted",
    "duplicates",
    "failed",
    "timers",
)


class Difference(AssertionError):
    """The engine and the reference do not agree. ``kind`` says in what, without the values."""

    def __init__(self, step: int, error: Exception) -> None:
        super().__init__(f"step {step}: {type(error).__name__}: {error}")
        self.kind = " ".join(f"{type(error).__name__} {error}".split(":")[0].split()[:4])


def run(case: Case) -> None:
    """Runs a case on both, and compares them after each step."""
    reference = Reference(case.sources, case.at(case.steps[0].number if case.steps else 0), case.derived)
    nodes = case.at(0)
    made: dict[str, list[Record]] = {}
    with Engine(case) as engine:
        for step in case.steps:
            if case.at(step.number) != nodes:
                nodes = case.at(step.number)
                reference.become(nodes)
            try:
                _join(made, _reference_step(reference, step))
                engine.step(step)
                if not step.rush:
                    Comparison(case, reference, engine, made).run()
                    made = {}
            except Exception as error:
                raise Difference(step.number, error) from error


def _reference_step(reference: Reference, step: Step) -> dict[str, list[Record]]:
    if step.reopen:
        reference.reopen()
    reference.epoch(step.records, step.marks, step.wall)
    made = reference.outputs
    if step.drain:
        reference.epoch(drain=True)
        _join(made, reference.outputs)
        reference.end_holds()
    return made


def _join(made: dict[str, list[Record]], more: dict[str, list[Record]]) -> None:
    for stream, records in more.items():
        made.setdefault(stream, []).extend(records)


class Comparison:
    """One moment of both."""

    def __init__(
        self, case: Case, reference: Reference, engine: Engine, made: dict[str, list[Record]]
    ) -> None:
        self._case = case
        self._reference = reference
        self._engine = engine
        self._made = made

    def run(self) -> None:
        self._outputs()
        self._rows()
        self._watermarks()
        self._counts()
        self._store()

    def _outputs(self) -> None:
        found = self._engine.outputs()
        writers = _writers(self._case)
        for stream in sorted(self._made.keys() | found.keys()):
            wanted, got = self._made.get(stream, []), found.get(stream, [])
            expected, seen = Counter(map(_essence, wanted)), Counter(map(_essence, got))
            if expected != seen:
                raise AssertionError(
                    f"stream {stream!r}: missing {_some(expected - seen)}, "
                    f"unexpected {_some(seen - expected)}"
                )
            writer = writers.get(stream)
            if writer is not None and writer.ordered:
                _same("the order of stream", stream, _by_key(wanted), _by_key(got))

    def _rows(self) -> None:
        assert self._engine.driver is not None
        rows = _rows(self._engine.store, self._engine.driver.numbers)
        for name, node in self._reference.nodes.items():
            found = rows[name]
            plain = node.spec.kind not in OPERATORS
            if not plain:  # where the order of arrival is open, so is that of what is kept of equal times
                found = {key: (_sorted(state), *rest) for key, (state, *rest) in found.items()}
            wanted = {
                key: (
                    known.state if plain else _sorted(known.state),
                    {tag: time for tag, (time, clock) in known.timers.items() if clock == WATERMARK},
                    {tag: time for tag, (time, clock) in known.timers.items() if clock == WALL},
                    known.holds,
                )
                for key, known in node.keys.items()
                if known.row
            }
            _same("the rows of", name, wanted, found)

    def _watermarks(self) -> None:
        assert self._engine.driver is not None
        authority = self._engine.driver.authority
        for name, node in self._reference.nodes.items():
            _same("the input watermark of", name, node.input, authority.inputs[name])
            _same("the low watermark of", name, node.lows[EXACT], authority.lows[name])
            for p in self._engine.driver.graph.percentiles:
                _same(f"the {p} watermark of", name, node.lows[p], authority.percentiles[variant(name, p)])

    def _counts(self) -> None:
        report = self._engine.report()
        for name, node in self._reference.nodes.items():
            columns = node.computation is not None and folding_of(node.computation) is not None
            for count in _COUNTS:
                if columns and count == "timers":
                    continue  # one for each window of a key, and not one for those of a key that end at once
                _same(f"the count {count!r} of", name, node.counts[count], getattr(report, count)[name])
            waiting = sum(len(key.waiting) for key in node.keys.values())
            _same("the records that wait for", name, waiting, report.waiting.get(name, 0))
        streams = {stream: count for stream, count in report.streams.items() if count}
        _same("the records of", "streams", dict(self._reference.streams), streams)
        _same("the counts of", "the user", dict(self._reference.user), report.user)
        pending = [key.timers for node in self._reference.nodes.values() for key in node.keys.values()]
        wall = sum(clock == WALL for timers in pending for _, clock in timers.values())
        _same("the pending", "wall timers", wall, report.pending_wall_timers)

    def _store(self) -> None:
        findings = check(self._engine.store)
        if findings.problems:
            raise AssertionError(f"the store is not sound: {'; '.join(findings.problems[:3])}")
        nodes = self._reference.nodes.values()
        keys = [key for node in nodes for key in node.keys.values()]
        wanted = {
            "rows": sum(_rows_of(node, self._engine.store.tablets) for node in nodes),
            "IDs": sum(len(node.seen) for node in nodes),
            "records that wait": sum(len(key.waiting) for key in keys),
        }
        if len(self._reference.nodes) == len(self._case.nodes):  # nobody has left rows behind
            _same("how many there are of", "all", wanted, {what: findings.counts[what] for what in wanted})


def _rows_of(node: Node, tablets: int) -> int:
    """How many rows the store has of a computation: as columns, one for each tablet and window."""
    if node.computation is not None and folding_of(node.computation) is not None:
        return len(
            {(tablet(name, tablets), start) for name, key in node.keys.items() for start in key.state or ()}
        )
    return sum(key.row for key in node.keys.values())


def _rows(store: Store, numbers: dict[str, int]) -> dict[str, dict[str, Any]]:
    """By computation and key: state, timers of both clocks, and holds."""
    found: dict[str, dict[str, Any]] = {}
    for name, number in numbers.items():
        mine = found[name] = {}
        prefix = row_prefix(number)
        for shard in store.shards:
            with shard.snapshot() as snapshot:
                for key, row in by_key(snapshot.scan(prefix, after(prefix)), prefix):
                    state = None if row.state is None else unpack(row.state)
                    mine[key] = (state, row.timers, row.wall, row.holds)
    return found


def _writers(case: Case) -> dict[str, NodeSpec | None]:
    """By stream: the computation that writes it; None where several do, or an injector."""
    found: dict[str, NodeSpec | None] = {source.stream: None for source in case.sources}
    for node in case.nodes:
        for stream in node.streams:
            found[stream] = None if stream in found else node
    return found


def _sorted(state: Any) -> Any:
    """A state with the entries of its lists in order, as the store would give it."""
    if isinstance(state, list | tuple):
        return sorted(map(_sorted, state), key=repr)
    if isinstance(state, bytes):  # a sketch: hashes of eight bytes
        return sorted(state[start : start + 8] for start in range(0, len(state), 8))
    if isinstance(state, dict):
        return {key: _sorted(value) for key, value in state.items()}
    return state


def _essence(record: Record) -> tuple[str, int, bytes]:
    """A record but for what no two runs have alike: a traceback."""
    return record.key, record.timestamp, pack(_without_traceback(record.value))


def _without_traceback(value: Any) -> Any:
    if not isinstance(value, dict) or "traceback" not in value:
        return value
    return [value["stream"], _without_traceback(value["value"])]


def _by_key(records: list[Record]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for record in records:
        found.setdefault(record.key, []).append(_essence(record))
    return found


def _same(what: str, whose: str, wanted: Any, got: Any) -> None:
    if wanted == got:
        return
    if isinstance(wanted, dict) and isinstance(got, dict):
        keys = [key for key in {**wanted, **got} if wanted.get(key) != got.get(key)]
        wanted, got = ({key: part[key] for key in keys if key in part} for part in (wanted, got))
    raise AssertionError(f"{what} {whose}: expected {wanted}, found {got}")


def _some(records: Counter[Any]) -> str:
    shown = [f"{count} x {record}" for record, count in list(records.items())[:4]]
    return f"{sum(records.values())} ({', '.join(shown)})" if shown else "none"
