"""The keys of the store are named in one module, ``millwheel/store/keyspace.py``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from millwheel.store import keyspace
from millwheel.store.keyspace import JournalKey

ROOT = Path(__file__).parents[2]
ROOMS = ("store", "worker", "master", "watch", "testing")
LETTERS = {value for value in vars(keyspace).values() if isinstance(value, bytes) and value.isupper()}
ENTRIES = {value for name, value in vars(JournalKey).items() if name.isupper()}


def _literals(path: Path) -> Iterator[tuple[int, bytes]]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
            yield node.lineno, node.value


def test_no_other_module_has_a_key_of_the_store_or_its_letter() -> None:
    assert {keyspace.ROW, keyspace.BUNDLE} <= LETTERS
    assert {JournalKey.DRIVER, JournalKey.PARTITIONS} <= ENTRIES
    found = [
        f"{path.relative_to(ROOT)}:{line}: {value!r}"
        for room in ROOMS
        for path in (ROOT / "millwheel" / room).rglob("*.py")
        if path.name != "keyspace.py"
        for line, value in _literals(path)
        if value in LETTERS | ENTRIES
    ]
    assert not found


def test_no_two_kinds_of_entries_share_a_letter_or_a_beginning() -> None:
    letters = [value for value in vars(keyspace).values() if isinstance(value, bytes) and value.isupper()]
    assert len(set(letters)) == len(letters)
    names = [value for name, value in vars(JournalKey).items() if name.isupper()]
    assert len(set(names)) == len(names)
