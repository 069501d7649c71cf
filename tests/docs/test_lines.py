"""Lines of the docs: none of text has more than 110 characters, so a changed word is seen as one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_PAGES = [_ROOT / "README.md", _ROOT / "CHANGELOG.md", *sorted((_ROOT / "docs").rglob("*.md"))]
_LONGEST = 110
_WHOLE = re.compile(r"^\s*(\||!\[|<|>>> |    )")  # tables, pictures, HTML and code have the lines they have
_GENERATED = re.compile(r"<!-- figures: .*?<!-- end -->", re.DOTALL)
_CODE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_no_line_of_text_is_too_long_to_compare(page: Path) -> None:
    text = _CODE.sub("", _GENERATED.sub("", page.read_text()))
    assert [line for line in text.splitlines() if len(line) > _LONGEST and not _WHOLE.match(line)] == []
