"""Docstrings begin with a short line, and no text has a word that the field has a plainer one for."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "millwheel").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIRST_LINE = 79

INSTEAD = {
    r"mend(s|ed|ing)?|put(s|ting)? right": "fix",
    r"told|tells?|telling": "report, record, show",
    r"knows? of|known of": "has, state",
    r"brought into|brings? into": "merge, apply",
    r"rows that wait|what was left": "buffered rows, backlog",
    r"who (reads|writes|asks|takes over)": "the reader, the new owner",
    r"so many|as many as there are": "a number, n",
    r"judg(e|es|ed|ing|ement|ements)": "compare, decide",
    r"(comes?|came) to rest": "is idle",
    r"looked (at|into)|looks? (at|into)|a look": "check, read, look up",
    r"dear|dearer|dearest|dearly|costs more than it brings": "expensive, not worth its cost",
    r"zombies?|driver in waiting": "standby, stale writer",
}
"""By pattern: the words to take instead."""

OTHER_MEANING: set[tuple[str, str]] = set()
"""File and text in which a word has another meaning."""

_FORBIDDEN = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b".replace(" ", r"\s+"), re.IGNORECASE)
_CODE = re.compile(r"^( *)(```|~~~).*?^\1\2|``?[^`\n]+``?|\]\([^)\n]*\)|^ {4,}(>>>|\.\.\.).*$", re.MULTILINE | re.DOTALL)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and strings of a module, with their lines: what people read, and no names."""
    source = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def _found(path: Path, texts: Iterator[tuple[int, str]]) -> list[str]:
    return [
        f"{_name(path)}:{line + text.count(chr(10), 0, hit.start())}: {hit.group()!r}: {text[max(0,hit.start()-50):hit.end()+50]!r}"
        for line, text in texts
        for hit in _FORBIDDEN.finditer(_CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group()), text))
        if (_name(path), hit.group()) not in OTHER_MEANING
    ]


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_the_first_line_of_a_docstring_is_short(path: Path) -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    long = [
        f"{_name(path)}: {text.splitlines()[0]}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds) and (text := ast.get_docstring(node))
        if len(text.splitlines()[0]) > FIRST_LINE
    ]
    assert not long


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_text_of_a_module_has_a_word_to_avoid(path: Path) -> None:
    assert _found(path, _texts(path)) == [], INSTEAD


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_no_page_has_a_word_to_avoid(path: Path) -> None:
    assert _found(path, iter([(1, path.read_text())])) == [], INSTEAD
