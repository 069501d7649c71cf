"""The low watermark algorithm lives in ``millwheel/watermark``: nobody else asks injectors or joins marks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOM = ROOT / "millwheel" / "watermark"
SLACK = "behind"


def _calls(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield node.func.attr, len(node.args)
            elif isinstance(node.func, ast.Name):
                yield node.func.id, len(node.args)


def test_an_injector_is_asked_for_its_watermark_in_one_place() -> None:
    asked = [
        path.relative_to(ROOT).as_posix()
        for package in ("master", "worker", "watermark", "testing", "spark")
        for path in (ROOT / "millwheel" / package).rglob("*.py")
        for name, arguments in _calls(path)
        if name == "low_watermark" and arguments == 2 and path.name != "formula.py"
    ]
    assert asked == ["millwheel/watermark/source.py"]


def test_the_slack_rule_is_in_one_place() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "millwheel").rglob("*.py")
        for name, arguments in _calls(path)
        if name == SLACK and arguments == 2
    }
    assert users == {"millwheel/watermark/source.py"}
