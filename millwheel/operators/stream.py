"""Streams as values: the results of `Pipeline.inject` and `Pipeline.stream`.

Each operator is a computation of the pipeline under its own name, or steps that run at the producer of a
record (`map`, `filter`, `flat_map`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from millwheel.errors import PipelineError
from millwheel.model.computation import Computation
from millwheel.model.derived import KeptKey, OfValue, Step, StepKind, public_name
from millwheel.model.keys import By, ByKey, KeyExtractor, by
from millwheel.model.names import Unnamed
from millwheel.model.record import Record
from millwheel.model.side_table import Missing
from millwheel.model.sink import Sink
from millwheel.operators.arguments import check_arguments, operator
from millwheel.operators.checks import checked_function, checked_new, checked_output, checked_window
from millwheel.operators.deduplication import First, Spaced
from millwheel.operators.fields import Field, reader
from millwheel.operators.folds import Aggregate, Collect, Count, Reduce, as_aggregate, positive
from millwheel.operators.joining import Join
from millwheel.operators.looking_up import Terms, make_lookup
from millwheel.operators.ranking import Ranking
from millwheel.operators.windowing import Shape, windows
from millwheel.operators.windows import Window, duration

if TYPE_CHECKING:
    from millwheel.operators.builder import Pipeline

How = Literal["inner", "left", "right", "outer"]
_NEED_A_KEY = ("window", "join", "distinct", "process")


class _NeedsKey(PipelineError, AttributeError):
    """An operator of keyed streams, on one without keys; ``hasattr`` is false for it."""


class Stream:
    """A stream of a pipeline, and the operators that read it.

    Handles are values: an operator returns a new one, and reads the stream of its handle.
    """

    def __init__(self, pipeline: Pipeline, name: str, steps: tuple[Step, ...] = (), label: str = "") -> None:
        self._pipeline = pipeline
        self._base = name
        self._steps = steps
        self._label = label or public_name(name)
        self._made: str | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._label!r})"

    @property
    def name(self) -> str:
        """The stream's name in the pipeline."""
        if not self._steps:
            return self._base
        if self._made is None:
            self._made = self._pipeline.derive((self._base,), self._steps, Unnamed(self._label))
        return self._made

    @operator()
    def map(self, function: Callable[[Any], Any]) -> Stream:
        """Replaces each value by ``function(value)``."""
        return self._step("map", function)

    @operator()
    def filter(self, function: Callable[[Any], Any]) -> Stream:
        """Keeps the records for whose value ``function(value)`` is true."""
        return self._step("filter", function)

    @operator()
    def flat_map(self, function: Callable[[Any], Iterable[Any] | None]) -> Stream:
        """Replaces each record by one for each value that ``function(value)`` returns."""
        return self._step("flat_map", function)

    @operator()
    def lookup(
        self,
        table: Any,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        refresh: int | None = None,
        missing: Missing = "keep",
        columns: Sequence[str] | None = None,
        into: str | None = None,
    ) -> Stream:
        """Adds to each value the matching row of a side table.

        ``table`` is one of `millwheel.lookups`, a DataFrame, a list of dicts, or a function that returns one.
        ``on`` names the fields that equal the table's columns, or maps fields to columns. The table is read
        when a run starts and, with ``refresh`` (of wall time), again and again; the epoch of a record decides
        which version it gets. The columns, or those of ``columns``, become fields of the value, or one
        dict in the field ``into``. A value without a row gets None (``missing="drop"``: is dropped).
        """
        where = f"{self!r}.lookup"
        terms = Terms(on, refresh, missing, columns, into)
        return self._step("lookup", make_lookup(where, self._pipeline, f"{self._label}.lookup", table, terms))

    @operator()
    def named(self, name: str) -> Stream:
        """Names the stream, for other computations, `Pipeline.stream` and sinks."""
        where = f"{self!r}.named"
        checked_output(where, self._pipeline, (self._base,), name)
        checked_new(where, self._pipeline, name)
        self._pipeline.derive((self._base,), self._steps, name)
        return Stream(self._pipeline, name)

    @operator()
    def sink(self, sink: Sink) -> Stream:
        """Writes the stream's records to a sink; returns the stream itself."""
        self._pipeline.sink(self.name, sink)
        return self

    @operator()
    def union(self, *others: Stream) -> Stream:
        """All records of this stream and of others."""
        for other in others:
            self._same_pipeline("union", other)
        label = "+".join(stream._label for stream in (self, *others))
        parents = tuple(stream.name for stream in (self, *others))
        name = self._pipeline.derive(parents, (), Unnamed(label))
        return Stream(self._pipeline, name)

    @operator()
    def key_by(self, *key: Any) -> KeyedStream:
        """The stream by key: fields as in `millwheel.by`, or a function of the value."""
        where = f"{self!r}.key_by"
        if len(key) == 1 and isinstance(key[0], By | ByKey):
            return KeyedStream(self, key[0])
        if len(key) == 1 and callable(key[0]):
            return KeyedStream(self, OfValue(checked_function(where, key[0])))
        if not key or not all(isinstance(field, str) and field for field in key):
            shown = ", ".join(map(repr, key)) or "nothing"
            raise PipelineError(f"{where} takes names of fields, or one function of a value, not {shown}")
        return KeyedStream(self, by(*key))

    @operator()
    def top(self, name: str, n: int, *, by: Field, window: Window) -> Stream:
        """The ``n`` values with the largest field in each window, as one record."""
        where = f"{self!r}.top"
        checked_output(where, self._pipeline, (self._base,), name)
        checked_window(where, window)
        ranking = Ranking(reader(by, f"{where}: by"), positive(f"{where}: n", n))
        pairs = self._step("with_key", None)
        shape = Shape(name, {"top": ranking}, keyed=False, by_window=False)
        computation = windows(window, shape)
        self._pipeline.add(
            computation, inputs={pairs.name: everything}, outputs=[name], name=name, late="drop"
        )
        return Stream(self._pipeline, name)

    def _step(self, kind: StepKind, function: Callable[[Any], Any] | None) -> Stream:
        if kind != "with_key":
            checked_function(f"{self!r}.{kind}", function)
        label = self._label if kind in ("key", "with_key") else f"{self._label}.{kind}"
        return Stream(self._pipeline, self._base, (*self._steps, Step(kind, function)), label)

    def _same_pipeline(self, operator: str, other: object) -> None:
        where = f"{self!r}.{operator}"
        if not isinstance(other, Stream):
            raise PipelineError(f"{where} takes a stream, such as Pipeline.inject returns, not {other!r}")
        if other._pipeline is not self._pipeline:
            raise PipelineError(f"{where}: {other!r} is a stream of another pipeline")

    def __getattr__(self, name: str) -> Any:
        if name in _NEED_A_KEY:
            raise _NeedsKey(f"{self!r}.{name}: a stream has no keys of its own; call key_by(...) first")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class KeyedStream(Stream):
    """A stream with keys, for windows, joins and computations."""

    def __init__(self, stream: Stream, extractor: KeyExtractor) -> None:
        super().__init__(stream._pipeline, stream._base, stream._steps, stream._label)
        self._made = stream._made
        self._stream = stream
        self._extractor = extractor

    @property
    def name(self) -> str:
        """The name of the stream that is keyed."""
        return self._stream.name

    def _step(self, kind: StepKind, function: Callable[[Any], Any] | None) -> Stream:
        """Steps on a keyed stream keep the key that the record had before them."""
        if isinstance(self._extractor, KeptKey | ByKey):
            return KeyedStream(self._stream._step(kind, function), self._extractor)
        keyed = self._stream._step("key", self._extractor)
        return KeyedStream(keyed._step(kind, function), KeptKey())

    def _with_keys(self) -> Stream:
        """The stream with the keys in its records."""
        if isinstance(self._extractor, KeptKey | ByKey):
            return self._stream
        return self._stream._step("key", self._extractor)

    @operator()
    def named(self, name: str) -> KeyedStream:
        """Names the stream, for other computations, `Pipeline.stream` and sinks."""
        kept = isinstance(self._extractor, ByKey)
        return KeyedStream(self._with_keys().named(name), self._extractor if kept else KeptKey())

    @operator()
    def sink(self, sink: Sink) -> KeyedStream:
        """Writes the stream's records to a sink, with keys; returns the stream itself."""
        self._with_keys().sink(sink)
        return self

    @operator()
    def union(self, *others: Stream) -> Stream:
        """All records of this stream and of others; keyed, if all of them are."""
        for other in others:
            self._same_pipeline("union", other)
        keyed = [s._with_keys() if isinstance(s, KeyedStream) else s for s in (self, *others)]
        whole = Stream.union(keyed[0], *keyed[1:])
        if all(isinstance(other, KeyedStream) for other in others):
            return KeyedStream(whole, KeptKey())
        return whole

    @operator()
    def key_by(self, *key: Any) -> KeyedStream:
        """The stream by another key."""
        return self._stream.key_by(*key)

    @operator()
    def top(self, name: str, n: int, *, by: Field, window: Window) -> Stream:
        """The ``n`` values with the largest field in each window, as one record."""
        return self._with_keys().top(name, n, by=by, window=window)

    @operator()
    def process(self, computation: Computation, *, outputs: Iterable[str] = (), **options: Any) -> Any:
        """Adds a computation; returns the stream of its output, or a tuple of several."""
        if "inputs" in options:
            raise PipelineError(f"{self!r}.process: the input is the stream itself; leave inputs out")
        if isinstance(outputs, str) or not isinstance(outputs, Iterable):
            shown = f"the text {outputs!r}" if isinstance(outputs, str) else repr(outputs)
            raise PipelineError(f"{self!r}.process: outputs is a list of streams, it is {shown}")
        streams = tuple(outputs)
        options |= {"inputs": {self.name: self._extractor}, "outputs": streams}
        check_arguments(f"{self!r}.process", self._pipeline.add, (computation,), options)
        self._pipeline.add(computation, **options)
        made = tuple(Stream(self._pipeline, stream) for stream in streams)
        return made[0] if len(made) == 1 else made

    @operator()
    def window(
        self,
        window: Window,
        *,
        lateness: int = 0,
        early: int | None = None,
        late: Literal["drop", "divert"] = "drop",
    ) -> Windowed:
        """Groups the records of a key by windows of event time: see `millwheel.windows`.

        A window is emitted when the input watermark reaches its end. With ``lateness`` it is kept that much
        longer, and emitted again for a late record; with ``early`` it is emitted at this interval of wall
        time while it grows. Later records are dropped, or diverted to ``NAME.late``.
        """
        where = f"{self!r}.window"
        checked_window(where, window)
        if late not in ("drop", "divert"):
            raise PipelineError(f'{where}: late is "drop" or "divert", not {late!r}')
        lateness = duration(f"{where}: lateness", lateness, least=0)
        early = None if early is None else duration(f"{where}: early", early)
        return Windowed(self, window, lateness, early, late)

    @operator()
    def join(
        self, other: KeyedStream, *, within: int | tuple[int, int], how: How = "inner", name: str = ""
    ) -> Stream:
        """Pairs records of one key that are ``within`` a span of time.

        That is ``-before <= other.timestamp - self.timestamp <= after``; ``within`` is ``(before, after)``,
        or one number for both. The value is ``{"left", "right"}``, the timestamp the later one. With
        ``how="left"``, ``"right"`` or ``"outer"`` a record without a partner is emitted with None once none
        can arrive.
        """
        where = f"{self!r}.join"
        self._same_pipeline("join", other)
        if not isinstance(other, KeyedStream):
            raise PipelineError(f"{where}: {other!r} has no keys: call key_by(...) on it")
        if how not in ("inner", "left", "right", "outer"):
            raise PipelineError(f'{where}: how is "inner", "left", "right" or "outer", not {how!r}')
        if not name:
            itself = " with itself" if other._label == self._label else f" with {other._label}"
            raise PipelineError(
                f'{where}: {self._label} joined{itself} is a stream of its own: name it, name="pairs" for one'
            )
        checked_output(where, self._pipeline, (self._base, other._base), name)
        both = within if isinstance(within, tuple | list) else (within, within)
        if len(both) != 2:
            raise PipelineError(f"{where}: within is (before, after), or one number for both, not {within!r}")
        before, after = (duration(f"{where}: within", part, least=None) for part in both)
        if before + after < 0 or (not isinstance(within, tuple | list) and before < 0):
            raise PipelineError(f"{where}: within={within!r} is not a span of time")
        left, right = self.name, other.name
        if left == right:  # a computation reads a stream once, so the right side gets a name of its own
            right = self._pipeline.derive((right,), (), Unnamed(other._label))
        self._pipeline.add(
            Join(name, right, before, after, how),
            inputs={left: self._extractor, right: other._extractor},
            outputs=[name],
            name=name,
            late="drop",
        )
        return Stream(self._pipeline, name)

    @operator()
    def distinct(self, name: str, within: int | None = None) -> Stream:
        """The first record of each key; with ``within``, after a gap of that length."""
        where = f"{self!r}.distinct"
        checked_output(where, self._pipeline, (self._base,), name)
        computation: Computation = First(name)
        if within is not None:
            computation = Spaced(name, duration(f"{where}: within", within, least=0))
        self._pipeline.add(
            computation, inputs={self.name: self._extractor}, outputs=[name], name=name, late="drop"
        )
        return Stream(self._pipeline, name)


class Windowed:
    """A keyed stream by window: its methods choose what is computed of each."""

    def __init__(
        self,
        stream: KeyedStream,
        window: Window,
        lateness: int,
        early: int | None,
        late: Literal["drop", "divert"],
    ) -> None:
        self._stream = stream
        self._window = window
        self._lateness = lateness
        self._early = early
        self._late = late

    def __repr__(self) -> str:
        return f"{self._stream!r}.window({self._window!r})"

    @operator()
    def count(self, name: str) -> Stream:
        """The number of records: ``{"key", "start", "end", "count"}``."""
        return self._add("count", name, {"count": Count(None)})

    @operator()
    def aggregate(self, name: str | None = None, /, **fields: Any) -> Stream:
        """Aggregates by field name: ``aggregate("sales", total=mw.agg.sum("price"))``."""
        where = f"{self!r}.aggregate"
        if name is None:  # given by keyword; a field may be called "name" where it is not
            name = fields.pop("name", None)
        if not fields:
            raise PipelineError(f'{where}: name an aggregate, such as total=millwheel.agg.sum("price")')
        taken = ("key", "start", "end", *(("revision",) if self._lateness or self._early is not None else ()))
        for field in fields:
            if field in taken:
                raise PipelineError(f"{where}: {field!r} is a field that this window has: use another name")
        found = {field: as_aggregate(given, f"{where}: {field}") for field, given in fields.items()}
        return self._add("aggregate", name, found)

    @operator()
    def reduce(self, name: str, function: Callable[[Any, Any], Any]) -> Stream:
        """The values folded by a function of two, in any order: ``"value"``."""
        checked_function(f"{self!r}.reduce", function)
        return self._add("reduce", name, {"value": Reduce(function)})

    @operator()
    def collect(self, name: str) -> Stream:
        """All values, by timestamp: ``"values"``."""
        return self._add("collect", name, {"values": Collect()})

    def _add(self, operator: str, name: Any, aggregates: dict[str, Aggregate]) -> Stream:
        checked_output(f"{self!r}.{operator}", self._stream._pipeline, (self._stream._base,), name)
        shape = Shape(name, aggregates, self._lateness, self._early)
        stream = self._stream
        stream._pipeline.add(
            windows(self._window, shape, self._late),
            inputs={stream.name: stream._extractor},
            outputs=[name],
            name=name,
            late=self._late,
        )
        return Stream(stream._pipeline, name)


def everything(record: Record) -> str:
    """The key extractor of operators over all keys."""
    return ""
