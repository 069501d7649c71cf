"""Pipelines: named streams between computations (4.3, Fig. 3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from millwheel.errors import PipelineError
from millwheel.model.combiners import Combine
from millwheel.model.computation import Computation
from millwheel.model.derived import Derived, Step
from millwheel.model.hooks import check_hooks
from millwheel.model.injector import Errors, Injector
from millwheel.model.keys import KeyExtractor
from millwheel.model.names import SourceName, Unnamed, check_name
from millwheel.model.side_table import HeldTable, SideTable
from millwheel.model.sink import Sink

Late = Literal["deliver", "drop", "divert"]
Replay = Literal["earliest"]

ERRORS_SUFFIX = ".errors"
LATE_SUFFIX = ".late"


@dataclass(frozen=True)
class Node:
    """A computation in a pipeline."""

    name: str
    computation: Computation
    inputs: Mapping[str, KeyExtractor]
    outputs: tuple[str, ...]
    late: Late
    errors: Errors
    exactly_once: bool
    strong_productions: bool
    watermark: float = 1.0
    """The percentile of the pending timestamps that fires its timers; 1.0: all."""
    replay: bool = False
    """Whether it reads its injectors from their beginning, if it is new."""
    in_order: bool = False
    """Whether a key's records are in order of timestamp, behind the watermark."""
    combine: Combine | None = None
    """Merges a key's records before the hook gets them."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Every stream it may write, including diverted ones."""
        return tuple(dict.fromkeys((*self.outputs, *self.diverted)))

    @property
    def diverted(self) -> tuple[str, ...]:
        """The streams that it diverts to."""
        errors = (self.name + ERRORS_SUFFIX,) if self.errors == "divert" else ()
        late = (self.name + LATE_SUFFIX,) if self.late == "divert" else ()
        return (*errors, *late)


@dataclass(frozen=True)
class Source:
    """An injector in a pipeline."""

    name: SourceName
    injector: Injector

    @property
    def stream(self) -> str:
        """The stream that it writes."""
        return self.name.stream

    @property
    def reader(self) -> str:
        """The only computation that it is read for: see `millwheel.model.replay`."""
        return self.name.reader

    @property
    def streams(self) -> tuple[str, ...]:
        """Every stream it may write, including the diverted one."""
        return (self.stream, *self.diverted)

    @property
    def diverted(self) -> tuple[str, ...]:
        """The stream that it diverts to."""
        return (self.stream + ERRORS_SUFFIX,) if self.injector.errors == "divert" else ()


class Pipeline:
    """A graph of computations, injectors and sinks, joined by the names of streams.

    >>> from millwheel.injectors import Records
    >>> from millwheel.model.keys import by
    >>> class Counter(Computation):
    ...     def process_record(self, record):
    ...         self.produce("counts", 1)
    >>> p = Pipeline("counting")
    >>> _ = p.inject("queries", Records([]))
    >>> p.add(Counter(), inputs={"queries": by("query")}, outputs=["counts"])
    >>> p
    Pipeline('counting': 1 injector, 1 computation, 0 sinks)
    """

    def __init__(self, name: str) -> None:
        check_name("a pipeline", name)
        self.name = name
        self.sources: list[Source] = []
        self.nodes: dict[str, Node] = {}
        self.derived: dict[str, Derived] = {}
        self.sinks: list[tuple[str, Sink]] = []
        self._tables: list[tuple[Any, HeldTable]] = []

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{n} {noun}" if n == 1 else f"{n} {noun}s"
            for n, noun in (
                (len(self.sources), "injector"),
                (len(self.nodes), "computation"),
                (len(self.sinks), "sink"),
            )
        )
        return f"Pipeline({self.name!r}: {parts})"

    def to_mermaid(self) -> str:
        """The graph as a Mermaid diagram, for a README or a wiki."""
        from millwheel.model.picture import mermaid

        return mermaid(self)

    def _repr_svg_(self) -> str:
        """The picture that a notebook shows."""
        from millwheel.model.picture import svg

        return svg(self)

    def inject(self, stream: str, injector: Injector) -> Any:
        """Adds an injector for a stream."""
        check_name("a stream", stream, f"pipeline {self.name!r}")
        if not isinstance(injector, Injector):
            raise PipelineError(
                f"pipeline {self.name!r}: stream {stream!r} is to be injected by {injector!r}, "
                "which is not a millwheel.Injector"
            )
        if injector.errors not in ("stop", "divert"):
            raise PipelineError(f'stream {stream!r}: errors is "stop" or "divert", not {injector.errors!r}')
        earlier = sum(source.stream == stream for source in self.sources)
        self.sources.append(Source(SourceName(stream, earlier + 1), injector))
        return None

    def add(
        self,
        computation: Computation,
        *,
        inputs: Mapping[str, KeyExtractor],
        outputs: Iterable[str] = (),
        name: str | None = None,
        late: Late = "deliver",
        errors: Errors = "stop",
        watermark: float = 1.0,
        in_order: bool = False,
        exactly_once: bool | None = None,
        strong_productions: bool | None = None,
        replay: Replay | None = None,
        combine: Combine | None = None,
    ) -> None:
        """Adds a computation that reads ``inputs`` and writes ``outputs``.

        ``inputs`` maps streams to key extractors.
        One that is new to a store begins with new records, at the current low watermark; with
        ``replay="earliest"`` with the first record that its injectors can read again.
        With ``in_order`` a key's records are in order of timestamp, each once the input watermark has passed
        it, and its watermark timers between them.
        ``combine`` merges the records of a key before the hook gets them: see `millwheel.combiners`.
        """
        if not isinstance(computation, Computation):
            hint = " (an instance, not the class)" if isinstance(computation, type) else ""
            raise PipelineError(
                f"pipeline {self.name!r}: add() takes a millwheel.Computation{hint}, not {computation!r}"
            )
        name = type(computation).__name__ if name is None else name
        check_name("a computation", name, f"pipeline {self.name!r}")
        where = f"pipeline {self.name!r}, computation {name!r}"
        if name in self.nodes:
            raise PipelineError(
                f"pipeline {self.name!r} has two computations of the name {name!r}: pass name= to add()"
            )
        outputs = self._checked_streams(inputs, outputs, where)
        _check_choices(where, late, errors, watermark, in_order, combine, replay)
        _check_computation(computation, where)
        self.nodes[name] = Node(
            name,
            computation,
            dict(inputs),
            outputs,
            late,
            errors,
            computation.exactly_once if exactly_once is None else bool(exactly_once),
            computation.strong_productions if strong_productions is None else bool(strong_productions),
            float(watermark),
            replay is not None,
            in_order,
            combine,
        )

    def _checked_streams(
        self, inputs: Mapping[str, KeyExtractor], outputs: Iterable[str], where: str
    ) -> tuple[str, ...]:
        """Checks inputs and outputs; returns the outputs."""
        if not isinstance(inputs, Mapping):
            raise PipelineError(f"{where}: inputs maps each stream to its key extractor, it is {inputs!r}")
        if isinstance(outputs, str):
            raise PipelineError(f"{where}: outputs is a list of streams, it is the text {outputs!r}")
        outputs = tuple(outputs)
        for stream in (*inputs, *outputs):
            if stream not in self.derived:
                check_name("a stream", stream, where)
        for stream, extractor in inputs.items():
            if not callable(extractor):
                raise PipelineError(
                    f"{where}, stream {stream!r}: a key extractor is a function of a record, "
                    f"it is {extractor!r}; for a field write millwheel.by({extractor!r})"
                )
        return outputs

    def derive(self, parents: tuple[str, ...], steps: tuple[Step, ...], name: str | Unnamed) -> str:
        """Adds a stream computed from others; returns the text that it is stored under.

        ``name`` is a user's; an unnamed one gets a number, so that it is unique.
        """
        if isinstance(name, Unnamed):
            while name.key in self.derived:
                name = name._replace(number=name.number + 1)
            name = name.key
        else:
            check_name("a stream", name, f"pipeline {self.name!r}")
            if name in self.derived:
                raise PipelineError(f"pipeline {self.name!r} has two streams of the name {name!r}")
        self.derived[name] = Derived(name, parents, steps)
        return name

    def hold_table(
        self, name: str, given: Any, table: SideTable, on: Sequence[str], refresh: int | None
    ) -> HeldTable:
        """Return a side table under its own name; an equal earlier one is shared."""
        for known, held in self._tables:
            if known is given and (held.on, held.refresh) == (tuple(on), refresh):
                return held
        taken = {held.name for _, held in self._tables}
        numbers = (f"{name} {number}" for number in itertools.count(2))
        held = HeldTable(name if name not in taken else next(n for n in numbers if n not in taken),
                         table, on, refresh)  # fmt: skip
        self._tables.append((given, held))
        return held

    def sink(self, stream: str, sink: Sink) -> None:
        """Adds a sink for a stream."""
        if stream not in self.derived:
            check_name("a stream", stream, f"pipeline {self.name!r}")
        if not isinstance(sink, Sink):
            raise PipelineError(
                f"pipeline {self.name!r}: stream {stream!r} is to go to {sink!r}, "
                "which is not a millwheel.Sink"
            )
        self.sinks.append((stream, sink))

    def remove(self, name: str) -> None:
        """Removes a computation."""
        if name not in self.nodes:
            raise PipelineError(
                f"pipeline {self.name!r} has no computation {name!r}: "
                f"it has {', '.join(self.nodes) or 'none'}"
            )
        del self.nodes[name]


def _check_choices(
    where: str, late: Any, errors: Any, watermark: Any, in_order: Any, combine: Any, replay: Any
) -> None:
    if late not in ("deliver", "drop", "divert"):
        raise PipelineError(f'{where}: late is "deliver", "drop" or "divert", not {late!r}')
    if errors not in ("stop", "divert"):
        raise PipelineError(f'{where}: errors is "stop" or "divert", not {errors!r}')
    if isinstance(watermark, bool) or not isinstance(watermark, int | float) or not 0 < watermark <= 1:
        raise PipelineError(
            f"{where}: watermark is a percentile such as 0.99, at most 1.0, not {watermark!r}"
        )
    if not isinstance(in_order, bool):
        raise PipelineError(f"{where}: in_order is True or False, not {in_order!r}")
    if combine is not None and (not callable(combine) or isinstance(combine, type)):
        raise PipelineError(
            f"{where}: combine is a function of a key and its records, or one of millwheel.combiners "
            f"such as Count(millwheel.SECOND), not {combine!r}"
        )
    if replay not in (None, "earliest"):
        raise PipelineError(f'{where}: replay is "earliest", or left out, not {replay!r}')


def _check_computation(computation: Computation, where: str) -> None:
    version = computation.version
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < 1 << 16:
        raise PipelineError(f"{where}: its version is a number from 1 to 65535, not {version!r}")
    for method in ("encode", "decode"):
        if not callable(getattr(computation.codec, method, None)):
            raise PipelineError(f"{where}: its codec {computation.codec!r} has no {method}()")
    check_hooks(computation, where)
