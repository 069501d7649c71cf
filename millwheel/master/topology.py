"""A pipeline as a plain value, to compare changes with without its code.

It is journaled, so that a difference can be shown whether the pipeline runs or not. A key
extractor is represented by a fingerprint of its code, the same in every process of one Python version.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import xxhash

from millwheel.model.derived import KeptKey
from millwheel.model.graph import Graph
from millwheel.model.keys import ByKey
from millwheel.model.names import SourceName
from millwheel.model.state_form import state_form

_DEEPEST = 6  # nested function calls; deeper, functions of equal names count as equal
_ADDRESS = " at 0x"

# Of the globals of a function: with more types, it would soon be the whole module.
_LOOKED_INTO = (bool, int, float, str, bytes, tuple, frozenset, types.FunctionType)


def design_of(graph: Graph, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Computations, injectors and sinks by name; ``away``: removed since ``before``."""
    left = {**before.get("away", {}), **before["nodes"]} if before else {}
    return {
        "away": {name: node for name, node in left.items() if name not in graph.nodes},
        "name": graph.name,
        "python": list(sys.version_info[:2]),
        "nodes": {
            name: {
                "inputs": {stream: _extractor(graph, stream, key) for stream, key in node.inputs.items()},
                "outputs": list(node.streams),
                "codec": shown(node.computation.codec),
                "version": node.computation.version,
                "form": state_form(node.computation),
            }
            for name, node in graph.nodes.items()
        },
        "injectors": {
            str(source.name): [source.stream, shown(source.injector)]
            for source in graph.sources
            if not source.reader
        },
        "sinks": {stream: [shown(sink) for sink in sinks] for stream, sinks in graph.sinks.items()},
    }


def sent_elsewhere(graph: Graph, before: dict[str, Any]) -> list[str]:
    """Computations that key injected records differently than an earlier design.

    Extractors that cannot be compared, those of another Python, count as equal.
    """
    now = design_of(graph)
    same_python = before.get("python") == now["python"]
    known = before.get("nodes", {})
    return [
        name
        for name, node in now["nodes"].items()
        for stream, (mark, _, by_value) in node["inputs"].items()
        if stream in known.get(name, {"inputs": {}})["inputs"]
        and any(isinstance(sender, SourceName) for sender in graph.producers[stream])
        and mark != known[name]["inputs"][stream][0]
        and (same_python or by_value or known[name]["inputs"][stream][2])
    ]


def _extractor(graph: Graph, stream: str, extractor: Any) -> list[Any]:
    """The fingerprint, the text, and whether by value, of a stream's key extraction."""
    before = list(_key_steps(graph, stream)) if isinstance(extractor, ByKey | KeptKey) else []
    if not before:
        return [fingerprint(extractor), shown(extractor), is_by_value(extractor)]
    names = ", ".join(map(shown, before))
    return [fingerprint([extractor, before]), names, all(map(is_by_value, before))]


def _key_steps(graph: Graph, stream: str) -> Iterator[Any]:
    """The functions that give a derived stream its keys, along its derivation."""
    for parent, found in graph.derived.items():
        for derived, _ in found:
            if derived.name == stream:
                yield from _key_steps(graph, parent)
                yield from (step.function for step in derived.steps if step.kind == "key")


def shown(value: Any) -> str:
    """A short name that is the same in every process: without addresses in memory."""
    if isinstance(value, types.FunctionType):
        return value.__qualname__
    if _ADDRESS in repr(value):
        return type(value).__qualname__
    return repr(value)


def fingerprint(value: Any) -> str:
    """Equal for key extractors with equal code and data, as far as that is visible.

    >>> from millwheel.model.keys import by
    >>> fingerprint(by("a")) == fingerprint(by("a")), fingerprint(by("a")) == fingerprint(by("b"))
    (True, False)
    """
    return xxhash.xxh3_64_hexdigest(repr(_plain(value, _DEEPEST)).encode("utf-8", "surrogatepass"))


def is_by_value(extractor: Any) -> bool:
    """Whether an extractor is the engine's own: equal in every Python version."""
    return _is_ours(type(extractor)) and not any(callable(item) for item in _held(extractor).values())


def _is_ours(value: Any) -> bool:
    """Whether the engine defines it: identified by name, as its code may change."""
    return str(getattr(value, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]


def _held(value: Any) -> dict[str, Any]:
    slots = getattr(type(value), "__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return {**{name: getattr(value, name, None) for name in names}, **getattr(value, "__dict__", {})}


def _plain(value: Any, depth: int) -> Any:
    """A value that compares by content, and prints the same in every process."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if not depth:
        return _name(value)
    deeper = functools.partial(_plain, depth=depth - 1)
    if isinstance(value, list | tuple):
        return [deeper(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(deeper(item)) for item in value)
    if isinstance(value, dict):
        return sorted((repr(deeper(key)), repr(deeper(item))) for key, item in value.items())
    if isinstance(value, types.CodeType):
        return [value.co_code, [deeper(item) for item in value.co_consts], value.co_names, value.co_varnames]
    if isinstance(value, types.FunctionType):
        return _function(value, depth)
    if isinstance(value, functools.partial):
        return [deeper(value.func), deeper(value.args), deeper(value.keywords)]
    if isinstance(value, types.MethodType):
        return [deeper(value.__func__), deeper(value.__self__)]
    if isinstance(value, type | types.BuiltinFunctionType | types.ModuleType):
        return _name(value)
    call = type(value).__call__ if callable(value) else None
    code = deeper(call) if isinstance(call, types.FunctionType) and not _is_ours(call) else None
    held = _held(value)
    text = shown(value)
    return [type(value).__qualname__, code, deeper(held) if held or _ADDRESS in text else text]


def _function(function: types.FunctionType, depth: int) -> Any:
    code = function.__code__
    if _is_ours(function):
        return [_name(function), _plain([_cell(cell) for cell in function.__closure__ or ()], depth - 1)]
    cells = [_cell(cell) for cell in function.__closure__ or ()]
    used = {name: function.__globals__.get(name) for name in code.co_names}
    used = {name: value for name, value in used.items() if isinstance(value, _LOOKED_INTO)}
    parts = (code, function.__defaults__, function.__kwdefaults__, cells, used)
    return [_plain(part, depth - 1) for part in parts]


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell: a function that refers to itself
        return None


def _name(value: Any) -> str:
    found = value if hasattr(value, "__qualname__") or hasattr(value, "__name__") else type(value)
    return str(getattr(found, "__qualname__", None) or found.__name__)
