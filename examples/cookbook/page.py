"""The page of the docs, made of the files: ``python -m examples.cookbook --page > docs/cookbook.md``."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from pathlib import Path

from examples.cookbook import RECIPES, recipe

_HEAD = """# Cookbook

Twenty-one queries to begin with. Each is a file in `examples/cookbook` with input to try it on and what comes
out, and a test runs them all. `python -m examples.cookbook sessions` runs one on Spark. Operators are
explained [on their own page](operators.md).

`p` is a `mw.Pipeline` whose streams are injected, from [files, Kafka, tables](connectors.md) or elsewhere.
Times in what comes out are microseconds.
"""


def page() -> str:
    """Markdown: of each recipe its title, what it answers, the query, and the first rows that come out."""
    return _HEAD + "".join(map(_section, RECIPES))


def _section(name: str) -> str:
    found = recipe(name)
    doc = inspect.cleandoc(found.__doc__ or "")
    first, _, rest = doc.partition("\n")
    what, _, answer = first.partition(": ")
    text = f"{answer[:1].upper()}{answer[1:]} {' '.join(rest.split())}".strip()
    lines = textwrap.fill(text, 110, break_on_hyphens=False) if answer else " ".join(rest.split())
    rows = "\n".join(json.dumps(row) for row in found.RESULT[:2])
    parts = [
        f"## {what.rstrip('.')}",
        lines,
        f"```python\n{_code(found.__file__)}\n```",
        f"```json\n{rows}\n```",
    ]
    parts.append(f"*`examples/cookbook/{name}.py`*")
    return "\n" + "\n\n".join(part for part in parts if part) + "\n"


def _code(path: str) -> str:
    """The query without its definition, behind the functions and classes that it uses."""
    source = Path(path).read_text()
    parts: list[str] = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        lines = source.splitlines()[first - 1 : node.end_lineno]
        if node.name == "query":
            lines = textwrap.dedent("\n".join(lines[1:])).splitlines()
            lines = [line.removeprefix("return ") if line.startswith("return ") else line for line in lines]
        parts.append("\n".join(lines))
    return "\n\n\n".join(parts)
