"""``late="divert"``: late records go to ``NAME.late`` instead of the hook."""

from __future__ import annotations

import pytest

import millwheel as mw
from tests.computations import Hooks


def pipeline(**options: str) -> mw.Pipeline:
    p = mw.Pipeline("late")
    p.inject("in", mw.injectors.Records([]))
    p.add(
        Hooks(lambda c, record: c.produce("out", record.value)),
        name="C",
        inputs={"in": mw.by("user")},
        outputs=["out"],
        late="divert",
        **options,  # type: ignore[arg-type]
    )
    return p


def test_a_late_record_goes_to_the_late_stream_with_its_key_value_and_timestamp() -> None:
    h = mw.testing.Harness(pipeline())
    h.advance("in", 10)
    h.send("in", {"user": "a"}, timestamp=9)
    h.send("in", {"user": "a"}, timestamp=10)
    assert [record.timestamp for record in h.output("out")] == [10]
    (late,) = h.output("C.late")
    assert (late.key, late.value, late.timestamp) == ("a", {"user": "a"}, 9)
    status = h.status()
    assert (status.late["C"], status.diverted["C"], status.dropped["C"], status.records["C"]) == (1, 1, 0, 1)


def test_a_consumer_may_read_the_late_stream() -> None:
    p = pipeline()
    p.add(
        Hooks(lambda c, record: c.produce("corrections", [c.key, record.late])),
        name="Corrections",
        inputs={"C.late": mw.by_key},
        outputs=["corrections"],
    )
    h = mw.testing.Harness(p)
    h.advance("in", 10)
    h.send("in", {"user": "a"}, timestamp=9)
    assert [record.value for record in h.output("corrections")] == [["a", True]]


def test_its_id_counts_as_seen() -> None:
    h = mw.testing.Harness(pipeline())
    h.advance("in", 10)
    h.send("in", {"user": "a"}, timestamp=9, id=1)
    h.send("in", {"user": "a"}, timestamp=9, id=1)
    assert len(h.output("C.late")) == 1
    assert h.status().duplicates["C"] == 1


def test_reading_the_late_stream_of_a_computation_that_has_none_says_what_to_do() -> None:
    p = mw.Pipeline("late")
    p.inject("in", mw.injectors.Records([]))
    p.add(Hooks(), name="C", inputs={"in": mw.by_key})
    p.sink("C.late", mw.sinks.Collect())
    with pytest.raises(mw.PipelineError, match="add 'C' with late=\"divert\" to have it"):
        mw.testing.Harness(p)
