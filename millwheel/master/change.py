"""What it means for a running pipeline to become another one (paper 3: dynamically, without a restart)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millwheel.errors import PipelineError, shorten
from millwheel.model.graph import Graph
from millwheel.store.base import Store
from millwheel.store.layout import after, row_prefix
from millwheel.store.row import decode_row

_SAMPLED = 20  # rows of each shard that a new codec must be able to read


@dataclass(frozen=True)
class Change:
    """The difference between two graphs, by the names of their parts."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    kept: tuple[str, ...]
    injectors_added: tuple[str, ...]
    injectors_removed: tuple[str, ...]

    def __str__(self) -> str:
        parts = [
            f"{what} {', '.join(names)}"
            for what, names in (
                ("adds", self.added),
                ("removes", self.removed),
                ("keeps", self.kept),
                ("injects", self.injectors_added),
                ("no longer injects", self.injectors_removed),
            )
            if names
        ]
        return "; ".join(parts) or "changes nothing"


def change(old: Graph, new: Graph, store: Store, numbers: dict[str, int]) -> Change:
    """What becomes of a graph; a `PipelineError` where kept state could not be carried over."""
    if old.name != new.name:
        raise PipelineError(
            f"the pipeline {old.name!r} cannot become {new.name!r}: its store belongs to it, by that name"
        )
    kept = [name for name in new.nodes if name in old.nodes]
    for name in kept:
        _check_keys(name, old, new)
        _check_codec(name, old, new, store, numbers[name])
    before, now = ({source.name for source in graph.sources} for graph in (old, new))
    return Change(
        tuple(name for name in new.nodes if name not in old.nodes),
        tuple(name for name in old.nodes if name not in new.nodes),
        tuple(kept),
        tuple(sorted(now - before)),
        tuple(sorted(before - now)),
    )


def _check_keys(name: str, old: Graph, new: Graph) -> None:
    before, now = old.nodes[name].inputs, new.nodes[name].inputs
    for stream in before.keys() & now.keys():
        if not _same(before[stream], now[stream]):
            raise PipelineError(
                f"computation {name!r}, stream {stream!r}: the key extractor was {before[stream]!r} and is "
                f"to be {now[stream]!r}; its state is kept by the old keys. Give it another name, "
                "and remove this one"
            )


def _same(one: Any, other: Any) -> bool:
    """Whether two key extractors do the same, as far as that can be seen."""
    return bool(one == other) or (type(one) is type(other) and _body(one) == _body(other))


def _body(extractor: Any) -> Any:
    code = getattr(extractor, "__code__", None)
    if code is None:
        return getattr(extractor, "__dict__", extractor)
    cells = [cell.cell_contents for cell in getattr(extractor, "__closure__", None) or ()]
    return code.co_code, code.co_consts, code.co_names, cells


def _check_codec(name: str, old: Graph, new: Graph, store: Store, number: int) -> None:
    before, now = old.nodes[name].computation.codec, new.nodes[name].computation.codec
    if type(before) is type(now):
        return
    prefix = row_prefix(number)
    for shard in store.shards:
        with shard.snapshot() as snapshot:
            for (_, value), _ in zip(snapshot.scan(prefix, after(prefix)), range(_SAMPLED), strict=False):
                state = decode_row(value).state
                if state is None:
                    continue
                try:
                    now.decode(state)
                except Exception as error:
                    raise PipelineError(
                        f"computation {name!r}: the codec {now!r} cannot read the state that {before!r} "
                        f"wrote ({shorten(str(error), 120)})"
                    ) from error
