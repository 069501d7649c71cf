"""Pictures of a pipeline, also of an unfinished or invalid one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape

from millwheel.model.derived import public_name
from millwheel.model.pipeline import Pipeline

Kind = Literal["injector", "computation", "sink"]

_WIDTH, _HEIGHT, _ACROSS, _DOWN, _MARGIN = 168, 46, 92, 22, 8
_LONGEST = 22  # characters of a name that fit into a box


@dataclass(frozen=True)
class Box:
    """A part of a pipeline."""

    kind: Kind
    name: str
    depth: int
    """The number of computations before it."""


@dataclass(frozen=True)
class Arrow:
    """A stream from one part to another, by the numbers of their boxes."""

    source: int
    target: int
    stream: str


def parts(pipeline: Pipeline) -> tuple[list[Box], list[Arrow]]:
    """The boxes and arrows of a pipeline, in topological order from the injectors."""
    writers: dict[str, list[tuple[Kind, str]]] = {}
    for source in pipeline.sources:
        for stream in source.streams:
            writers.setdefault(stream, []).append(("injector", str(source.name)))
    for node in pipeline.nodes.values():
        for stream in node.streams:
            writers.setdefault(stream, []).append(("computation", node.name))
    for derived in pipeline.derived.values():
        mine = writers.setdefault(derived.name, [])
        mine += [w for parent in derived.parents for w in writers.get(parent, ()) if w not in mine]

    depths: dict[str, int] = {}

    def depth(name: str, path: frozenset[str]) -> int:
        if name in path:  # a cycle, which is reported when the pipeline is run
            return 0
        if name not in depths:
            before = [
                depth(writer, path | {name})
                for stream in pipeline.nodes[name].inputs
                for kind, writer in writers.get(stream, ())
                if kind == "computation"
            ]
            depths[name] = max(before, default=0) + 1
        return depths[name]

    boxes = [Box("injector", str(source.name), 0) for source in pipeline.sources]
    nodes = [Box("computation", name, depth(name, frozenset())) for name in pipeline.nodes]
    boxes += sorted(nodes, key=lambda box: box.depth)
    number = {(box.kind, box.name): index for index, box in enumerate(boxes)}
    arrows = [
        Arrow(number[writer], number["computation", name], public_name(stream))
        for name, node in pipeline.nodes.items()
        for stream in node.inputs
        for writer in writers.get(stream, ())
    ]
    for stream, sink in pipeline.sinks:
        before = [number[writer] for writer in writers.get(stream, ())]
        boxes.append(Box("sink", type(sink).__name__, max((boxes[i].depth for i in before), default=0) + 1))
        arrows += [Arrow(index, len(boxes) - 1, public_name(stream)) for index in before]
    return boxes, arrows


def mermaid(pipeline: Pipeline) -> str:
    """A Mermaid flowchart: rounded injectors, boxes, and cylinders for sinks.

    >>> from millwheel.injectors import Records
    >>> from millwheel.model.computation import Computation
    >>> p = Pipeline("counting")
    >>> _ = p.inject("queries", Records([]))
    >>> class Counter(Computation):
    ...     def process_record(self, record):
    ...         self.produce("counts", 1)
    >>> p.add(Counter(), inputs={"queries": str})
    >>> print(mermaid(p))
    flowchart LR
        n0(["queries"])
        n1["Counter"]
        n0 -->|"queries"| n1
    """
    shapes = {"injector": '(["{}"])', "computation": '["{}"]', "sink": '[("{}")]'}
    boxes, arrows = parts(pipeline)
    lines = ["flowchart LR"]
    lines += [f"    n{i}" + shapes[box.kind].format(_mermaid(box.name)) for i, box in enumerate(boxes)]
    lines += [f'    n{arrow.source} -->|"{_mermaid(arrow.stream)}"| n{arrow.target}' for arrow in arrows]
    return "\n".join(lines)


def _mermaid(text: str) -> str:
    """Text for a quoted label: characters special to Mermaid are escaped."""
    return "".join(char if char.isalnum() or char in " _-." else f"#{ord(char)};" for char in text)


def svg(pipeline: Pipeline) -> str:
    """The same as SVG; a column is the distance from the injectors."""
    boxes, arrows = parts(pipeline)
    places = _places(boxes)
    width = max((x for x, _ in places), default=0) + _WIDTH + _MARGIN
    height = max((y for _, y in places), default=0) + _HEIGHT + _MARGIN
    lines = [*_arrows(arrows, places), *_boxes(boxes, places)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="13">',
            f"<title>{_clipped(pipeline.name, 200)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *lines,
            "</svg>",
        ]
    )


def _places(boxes: list[Box]) -> list[tuple[int, int]]:
    """The upper left corner of each box; columns are centred."""
    columns: dict[int, list[int]] = {}
    for index, box in enumerate(boxes):
        columns.setdefault(box.depth, []).append(index)
    tallest = max(map(len, columns.values()), default=0)
    places = [(0, 0)] * len(boxes)
    for depth, column in columns.items():
        top = _MARGIN + (tallest - len(column)) * (_HEIGHT + _DOWN) // 2
        for row, index in enumerate(column):
            places[index] = (_MARGIN + depth * (_WIDTH + _ACROSS), top + row * (_HEIGHT + _DOWN))
    return places


def _arrows(arrows: list[Arrow], places: list[tuple[int, int]]) -> Iterator[str]:
    for arrow in arrows:
        (x1, y1), (x2, y2) = places[arrow.source], places[arrow.target]
        x1, y1, y2 = x1 + _WIDTH, y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
        bend = max((x2 - x1) // 2, 20)
        yield (
            f'<path d="M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}" fill="none" stroke="#8a949b"/>'
            f'<path d="M{x2 - 7} {y2 - 4}L{x2} {y2}L{x2 - 7} {y2 + 4}Z" fill="#8a949b"/>'
        )
        yield (
            f'<text x="{(x1 + x2) // 2}" y="{(y1 + y2) // 2 - 5}" text-anchor="middle" font-size="11" '
            f'fill="#66727a">{_clipped(arrow.stream, 14)}</text>'
        )


def _boxes(boxes: list[Box], places: list[tuple[int, int]]) -> Iterator[str]:
    looks = {
        "injector": 'fill="#efede7" rx="23"',
        "computation": 'fill="#ffffff" stroke="#0c6e6d" rx="8"',
        "sink": 'fill="#ffffff" stroke="#8a949b" stroke-dasharray="4 3" rx="8"',
    }
    for box, (x, y) in zip(boxes, places, strict=True):
        weight = ' font-weight="600"' if box.kind == "computation" else ""
        yield (
            f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" {looks[box.kind]}/>'
            f'<text x="{x + _WIDTH // 2}" y="{y + _HEIGHT // 2 + 5}" text-anchor="middle" '
            f'fill="#1c2326"{weight}>'
            f"{_clipped(box.name, _LONGEST)}</text>"
        )


def _clipped(text: str, length: int) -> str:
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return escape(text if len(text) <= length else text[: length - 1] + "…")
