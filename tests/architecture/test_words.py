"""Docstrings begin with a short line, and texts have the words of the field."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "millwheel").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIRST_LINE = 79
NEAR = 40  # characters shown on both sides of a word

INSTEAD = {
    "mend(s|ed|ing)?|puts? right|putting right": "fix",
    "told|tells?|telling": "report, record, show",
    "knows? of|known of": "has, state",
    "brought into|brings? into": "merge, apply",
    "rows that wait|what was left": "buffered rows, backlog",
    "who (reads|writes|asks|takes over)": "the reader, the new owner",
    "so many|as many as there are": "a number, n",
    "judg(e|es|ed|ing|ement|ements)": "compare, check, score",
    "(comes?|came) to rest": "is idle",
    "looks? (at|into)|looked (at|into|for)|a look": "check, read, look up",
    "dear|dearer|dearest|dearly|costs more than it brings": "expensive, not worth its cost",
    "zombies?|driver in waiting": "standby, stale writer",
}
"""By pattern of words to avoid: those to take."""
OTHER_MEANING: set[tuple[str, str]] = set()
"""By file: texts in which such a word has another meaning."""

_AVOIDED = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b".replace(" ", r"\s+"), re.IGNORECASE)
_CODE = re.compile(r"^( *)```.*?^\1```|``[^`]+``|`[^`\n]+`|\]\([^)\n]*\)", re.MULTILINE | re.DOTALL)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _texts(path: Path) -> Iterator[str]:
    """The comments and strings of a module: what people read, and no names."""
    source = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value


def avoided(name: str, texts: Iterable[str]) -> list[str]:
    """The words to avoid in the texts of a file, outside of code, with the text around them."""
    return [
        text[max(hit.start() - NEAR, 0) : hit.end() + NEAR]
        for text in (_CODE.sub("`code`", text) for text in texts)
        for hit in _AVOIDED.finditer(text)
        if (name, hit.group()) not in OTHER_MEANING
    ]


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_the_first_line_of_a_docstring_is_short(path: Path) -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    firsts = [
        text.splitlines()[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds) and (text := ast.get_docstring(node))
    ]
    assert [first for first in firsts if len(first) > FIRST_LINE] == []


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_has_no_word_to_avoid(path: Path) -> None:
    assert avoided(_name(path), _texts(path)) == [], INSTEAD


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_a_page_has_no_word_to_avoid(path: Path) -> None:
    assert avoided(_name(path), [path.read_text()]) == [], INSTEAD


def test_a_word_to_avoid_is_found_in_text_and_not_in_code() -> None:
    assert avoided("page", ["What it was\ntold is `told`, and ``so many`` of it."]) == [
        "What it was\ntold is `code`, and `code` of it."
    ]
    assert avoided("page", ["a mean of so\n  many records", "a meandering, untold, lookahead"]) != []
    assert avoided("page", ["a meandering, untold, lookahead story of judgeship"]) == []
