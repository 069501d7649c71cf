"""Exactly-once: a record whose ID was seen is dropped (6.1.1), in the scope of semantics 11."""

from __future__ import annotations

import pytest

import millwheel as mw
from millwheel.model.record import RecordId
from tests.computations import Counter, Echo, hooks, single, values
from tests.conftest import MakeHarness


def counting(**options: bool) -> mw.Pipeline:
    return single(Counter(), outputs=["counts"], **options)


def test_a_record_resent_in_another_epoch_is_dropped_and_counted(harness: MakeHarness) -> None:
    h = harness(counting())
    h.send("in", 1, timestamp=0, id="x")
    h.send("in", 1, timestamp=0, id="x")
    assert values(h.output("counts")) == [1]
    assert (h.status().duplicates["C"], h.status().records["C"], h.status().records_in) == (1, 1, 2)


def test_a_record_resent_in_the_same_epoch_is_dropped(harness: MakeHarness) -> None:
    h = harness(counting())
    with h.epoch():
        for _ in range(3):
            h.send("in", 1, timestamp=0, id="x")
    assert values(h.output("counts")) == [1]
    assert h.status().duplicates["C"] == 2


def test_a_record_resent_after_a_crash_is_dropped(harness: MakeHarness) -> None:
    h = harness(counting())
    h.send("in", 1, timestamp=0, id="x")
    h.crash()
    h.send("in", 1, timestamp=0, id="x")
    h.crash()
    h.send("in", 1, timestamp=0, id="x")
    assert values(h.output("counts")) == [1]
    assert h.status().duplicates["C"] == 2


def test_the_first_of_the_duplicates_counts(harness: MakeHarness) -> None:
    h = harness(single(Echo()))
    with h.epoch():
        h.send("in", "first", timestamp=0, id="x")
        h.send("in", "second", timestamp=0, id="x")
    h.send("in", "third", timestamp=0, id="x")
    assert values(h.output("out")) == ["first"]


def test_without_an_id_a_record_is_never_a_duplicate(harness: MakeHarness) -> None:
    h = harness(counting())
    with h.epoch():
        h.send("in", 1, timestamp=0)
        h.send("in", 1, timestamp=0)
        h.send("in", 1, timestamp=0, id="x")
        h.send("in", 1, timestamp=0)
    h.send("in", 1, timestamp=0)
    assert values(h.output("counts")) == [1, 2, 3, 4, 5]
    assert h.status().duplicates["C"] == 0


@pytest.mark.parametrize(("one", "other"), [(1, "1"), ("a", b"a"), (0, ""), ("", b""), (1, -1)])
def test_ids_of_different_types_are_different(one: RecordId, other: RecordId, harness: MakeHarness) -> None:
    h = harness(counting())
    for id in (one, other, one, other):
        h.send("in", 1, timestamp=0, id=id)
    assert values(h.output("counts")) == [1, 2]
    assert h.status().duplicates["C"] == 2


def test_ids_are_scoped_by_key(harness: MakeHarness) -> None:
    h = harness(counting())
    h.send("in", 1, timestamp=0, id="x", key="a")
    h.send("in", 1, timestamp=0, id="x", key="b")
    assert values(h.output("counts")) == [1, 1]
    assert h.status().duplicates["C"] == 0


def test_ids_are_scoped_by_stream(harness: MakeHarness) -> None:
    p = mw.Pipeline("streams")
    p.inject("a", mw.injectors.Records([]))
    p.inject("b", mw.injectors.Records([]))
    p.add(Counter(), inputs={"a": mw.by_key, "b": mw.by_key}, outputs=["counts"])
    h = harness(p)
    for stream in "abab":
        h.send(stream, 1, timestamp=0, id="x")
    assert values(h.output("counts")) == [1, 2]
    assert h.status().duplicates["Counter"] == 2


def test_ids_are_scoped_by_computation(harness: MakeHarness) -> None:
    p = mw.Pipeline("computations")
    p.inject("in", mw.injectors.Records([]))
    p.add(Counter(), name="one", inputs={"in": mw.by_key}, outputs=["counts"])
    p.add(Counter(), name="other", inputs={"in": mw.by_key}, outputs=["counts"])
    h = harness(p)
    h.send("in", 1, timestamp=0, id="x")
    h.send("in", 1, timestamp=0, id="x")
    assert h.status().records == {"one": 1, "other": 1}
    assert h.status().duplicates == {"one": 1, "other": 1}


def test_ids_and_keys_do_not_run_into_each_other(harness: MakeHarness) -> None:
    h = harness(counting())
    h.send("in", 1, timestamp=0, id="bc", key="a")
    h.send("in", 1, timestamp=0, id="c", key="ab")
    assert h.status().duplicates["C"] == 0


def test_with_exactly_once_off_duplicates_are_delivered(harness: MakeHarness) -> None:
    h = harness(counting(exactly_once=False))
    with h.epoch():
        h.send("in", 1, timestamp=0, id="x")
        h.send("in", 1, timestamp=0, id="x")
    h.send("in", 1, timestamp=0, id="x")
    assert values(h.output("counts")) == [1, 2, 3]
    assert h.status().duplicates["C"] == 0


def test_exactly_once_is_a_class_attribute_that_add_overrides(harness: MakeHarness) -> None:
    class AtLeastOnce(Counter):
        exactly_once = False

    for options, expected in (({}, [1, 2]), ({"exactly_once": True}, [1])):
        h = harness(single(AtLeastOnce(), outputs=["counts"], **options))
        h.send("in", 1, timestamp=0, id="x")
        h.send("in", 1, timestamp=0, id="x")
        assert values(h.output("counts")) == expected


def test_exactly_once_off_for_one_consumer_does_not_concern_the_other(harness: MakeHarness) -> None:
    p = mw.Pipeline("computations")
    p.inject("in", mw.injectors.Records([]))
    p.add(Counter(), name="once", inputs={"in": mw.by_key}, outputs=["counts"])
    p.add(Counter(), name="often", inputs={"in": mw.by_key}, outputs=["counts"], exactly_once=False)
    h = harness(p)
    h.send("in", 1, timestamp=0, id="x")
    h.send("in", 1, timestamp=0, id="x")
    assert h.status().records == {"once": 1, "often": 2}


def test_a_skipped_record_leaves_no_id(harness: MakeHarness) -> None:
    h = harness(single(Counter(), key=lambda r: "k" if r.value else mw.SKIP, outputs=["counts"]))
    h.send("in", 0, timestamp=0, id="x")
    h.send("in", 1, timestamp=0, id="x")
    assert values(h.output("counts")) == [1]


def test_the_record_in_the_hook_has_its_id_and_stream(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.produce("out", [record.id, record.stream])))
    h.send("in", 1, timestamp=0, id="x")
    h.send("in", 1, timestamp=0, id=7)
    h.send("in", 1, timestamp=0)
    assert values(h.output("out")) == [["x", "in"], [7, "in"], [None, "in"]]


def test_a_production_is_not_taken_for_a_duplicate_of_another(harness: MakeHarness) -> None:
    p = single(Echo())
    p.add(Counter(), inputs={"out": mw.by_key}, outputs=["counts"])
    h = harness(p)
    with h.epoch():
        h.send("in", "same", timestamp=0, id=1)
        h.send("in", "same", timestamp=0, id=2)
    assert values(h.output("counts")) == [1, 2]
