"""However a file is cut into ranges, each line is read exactly once, in order."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.injectors import lines
from millwheel.master.journal import Partition
from millwheel.master.ranges import Poll, SkewLimit, choose_ranges
from millwheel.model.names import SourceName
from millwheel.model.pipeline import Source
from tests.input.reading import opened, path_of, values, write

Files = mw.injectors.Files

_texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60)
_lines = st.lists(_texts | st.none(), min_size=1, max_size=40)  # None: an empty line


def _jsonl(texts: list[str | None], *, end: bool) -> tuple[str, list[Any]]:
    entries = [None if text is None else {"t": i, "v": text} for i, text in enumerate(texts)]
    data = "\n".join("" if entry is None else json.dumps(entry, ensure_ascii=False) for entry in entries)
    return data + ("\n" if end else ""), [entry for entry in entries if entry is not None]


def _csv(texts: list[str | None], *, end: bool) -> tuple[str, list[Any]]:
    plain = [None if text is None else "".join(c for c in text if c.isalnum()) for text in texts]
    rows = ["" if text is None else f"{i},{text}" for i, text in enumerate(plain)]
    data = "\n".join(["t,some long name of a field", *rows]) + ("\n" if end else "")
    return data, [
        {"t": str(i), "some long name of a field": text} for i, text in enumerate(plain) if text is not None
    ]


@pytest.mark.parametrize(("name", "make"), [("a.jsonl", _jsonl), ("a.csv", _csv)])
@settings(max_examples=150, deadline=None)
@given(
    texts=_lines,
    end=st.booleans(),
    steps=st.lists(st.integers(1, 15), min_size=1, max_size=10),
    chunk=st.sampled_from([7, 64, 1 << 20]),
)
def test_every_walk_along_bounds_reads_each_line_once(
    name: str, make: Any, texts: list[str | None], end: bool, steps: list[int], chunk: int
) -> None:
    text, expected = make(texts, end=end)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(lines, "CHUNK", chunk):
        path = write(Path(folder) / name, text)
        injector = opened(Files(path, timestamp="t"))
        found: list[Any] = []
        for partition, stop in injector.poll().items():
            start: Any = None
            number = 0
            while start != stop:
                cut = injector.bound(partition, start, stop, steps[number % len(steps)])
                assert (start or 0) < cut <= stop
                assert injector.bound(partition, start, stop, steps[number % len(steps)]) == cut
                found += values(injector.read(partition, start, cut))
                start = cut
                number += 1
        assert found == expected


@settings(max_examples=100, deadline=None)
@given(
    files=st.lists(_lines, min_size=1, max_size=3),
    bound=st.integers(1, 400),
    tasks=st.integers(1, 5),
    unsplit=st.integers(0, 30),
)
def test_the_ranges_of_all_epochs_and_tasks_read_each_line_once_and_in_order(
    files: list[list[str | None]], bound: int, tasks: int, unsplit: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        expected: dict[str, list[Any]] = {}
        for number, texts in enumerate(files):
            text, entries = _jsonl(texts, end=True)
            expected[str(write(Path(folder) / f"{number}.jsonl", text))] = entries
        injector = opened(Files(Path(folder) / "*.jsonl", timestamp="t"))
        source = Source(SourceName("in"), injector)
        poll = Poll(dict(injector.poll()), True)
        partitions = {source.name: {name: Partition() for name in poll.ends}}
        found: dict[str, list[Any]] = {name: [] for name in expected}
        with mock.patch("millwheel.master.ranges.SMALLEST_SHARE", 3):
            while ranges := choose_ranges(
                [source], {source.name: poll}, partitions, bound, tasks, unsplit, SkewLimit()
            ):
                assert sorted({item.task for item in ranges}) == list(range(max(r.task for r in ranges) + 1))
                for item in sorted(ranges, key=lambda item: item.task):
                    state = partitions[source.name][item.partition]
                    assert state.offset == item.start, "a task reads behind one that comes after it"
                    found[path_of(item.partition)] += values(
                        injector.read(item.partition, item.start, item.end)
                    )
                    state.offset = item.end
        assert found == expected


def test_the_size_of_a_range_is_about_its_number_of_lines(tmp_path: Path) -> None:
    text, _ = _jsonl(["x" * 20] * 5_000, end=True)
    path = write(tmp_path / "a.jsonl", text)
    injector = opened(Files(path, timestamp="t"))
    ((partition, end),) = injector.poll().items()
    assert 3_000 < injector.size(partition, None, end) < 7_000
    cut = injector.bound(partition, None, end, 1_000)
    assert 500 < len(list(injector.read(partition, None, cut))) < 2_000


def test_a_gzip_file_is_read_in_one_range(tmp_path: Path) -> None:
    text, entries = _jsonl(["x" * 20] * 500, end=True)
    path = write(tmp_path / "a.jsonl.gz", text)
    injector = opened(Files(path, timestamp="t"))
    ((partition, end),) = injector.poll().items()
    assert injector.bound(partition, None, end, 1) == end
    assert values(injector.read(partition, None, end)) == entries
