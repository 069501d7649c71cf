"""Pictures of a pipeline: Mermaid for documents, SVG for notebooks."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import millwheel as mw
from millwheel.model.picture import parts
from tests.computations import Counter, Echo, Windower

SVG = "{http://www.w3.org/2000/svg}"


def diamond() -> mw.Pipeline:
    p = mw.Pipeline("diamond")
    p.inject("in", mw.injectors.Records([]))
    p.add(Windower(), inputs={"in": mw.by("user")}, outputs=["windows"])
    p.add(Echo("echo"), inputs={"in": mw.by("user")}, outputs=["echo"], errors="divert")
    p.add(Counter(), inputs={"windows": mw.by_key, "echo": mw.by_key}, outputs=["counts"])
    p.sink("counts", mw.sinks.Collect())
    p.sink("Echo.errors", mw.sinks.Collect())
    return p


def test_mermaid_has_every_part_and_every_stream() -> None:
    assert diamond().to_mermaid().splitlines() == [
        "flowchart LR",
        '    n0(["in"])',
        '    n1["Windower"]',
        '    n2["Echo"]',
        '    n3["Counter"]',
        '    n4[("Collect")]',
        '    n5[("Collect")]',
        '    n0 -->|"in"| n1',
        '    n0 -->|"in"| n2',
        '    n1 -->|"windows"| n3',
        '    n2 -->|"echo"| n3',
        '    n3 -->|"counts"| n4',
        '    n2 -->|"Echo.errors"| n5',
    ]


def test_names_mean_nothing_to_mermaid_or_to_xml() -> None:
    name = '"]; click <script>alert(1)</script> & #35;'
    p = mw.Pipeline(name)
    p.inject(name, mw.injectors.Records([]))
    p.add(Counter(), name=name, inputs={name: mw.by_key}, outputs=["counts"])
    label = '(["#34;#93;#59; click #60;script#62;'
    assert label in p.to_mermaid()
    assert "<script>" not in p.to_mermaid()
    picture = ElementTree.fromstring(p._repr_svg_())
    assert picture.findtext(f"{SVG}title") == name
    assert not list(picture.iter(f"{SVG}script"))


def test_the_picture_has_a_box_for_each_part_and_none_upon_another() -> None:
    picture = ElementTree.fromstring(diamond()._repr_svg_())
    _, *boxes = picture.iter(f"{SVG}rect")
    places = {(box.get("x"), box.get("y")) for box in boxes}
    assert len(boxes) == len(places) == 6
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"Windower", "Echo", "Counter", "windows", "Echo.errors"} <= set(texts)


def test_a_computation_stands_behind_its_producers() -> None:
    boxes, arrows = parts(diamond())
    assert all(boxes[arrow.source].depth < boxes[arrow.target].depth for arrow in arrows)


def test_what_is_not_finished_has_a_picture_too() -> None:
    p = mw.Pipeline("half")
    assert p.to_mermaid() == "flowchart LR"
    ElementTree.fromstring(p._repr_svg_())
    p.add(Echo("a"), name="A", inputs={"b": mw.by_key, "nobody writes this": mw.by_key}, outputs=["a"])
    p.add(Echo("b"), name="B", inputs={"a": mw.by_key}, outputs=["b"])
    p.sink("nowhere", mw.sinks.Collect())
    assert '"B"' in p.to_mermaid(), "a cycle"
    ElementTree.fromstring(p._repr_svg_())
