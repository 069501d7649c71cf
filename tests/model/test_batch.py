"""Records in columns: joined, taken apart and sent, they are the records that they were."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.model.batch import RecordBatch, join
from millwheel.model.codec import pack
from millwheel.worker.envelope import pack_columns, unpack_columns

_FORMS = ("objects", "packed", "lines", "lines and objects", "fields")


def _batch(form: str, numbers: list[int], *, keys: bool, ids: bool) -> RecordBatch:
    values: list[Any] = [{"n": n} for n in numbers]
    lines = [json.dumps(value).encode() for value in values]
    batch = RecordBatch(list(numbers), values)
    if form == "packed":
        batch = RecordBatch(list(numbers), list(map(pack, values)), packed=True)
    elif form != "objects":
        batch.json = lines
        batch.values = values if form == "lines and objects" else []
        batch.fields = {"n": list(numbers)} if form == "fields" else None
    batch.keys = [f"k{n}" for n in numbers] if keys else None
    batch.ids = [n if n % 2 else None for n in numbers] if ids else None
    return batch


_batches = st.builds(
    _batch,
    st.sampled_from(_FORMS),
    st.lists(st.integers(0, 99), max_size=5),
    keys=st.booleans(),
    ids=st.booleans(),
)


@given(parts=st.lists(_batches, max_size=4))
@settings(deadline=None)
def test_batches_of_all_forms_are_joined_to_the_records_that_they_have(parts: list[RecordBatch]) -> None:
    expected = [record for part in parts for record in part.records("s")]
    assert list(join(parts).records("s")) == expected
    assert [record for part in parts for record in part.records("s")] == expected  # and are as they were


@given(batch=_batches, data=st.data())
@settings(deadline=None)
def test_a_part_of_a_batch_has_the_records_at_its_positions(batch: RecordBatch, data: st.DataObject) -> None:
    records = list(batch.records())
    wanted = data.draw(st.lists(st.sampled_from(range(len(batch))), max_size=6)) if len(batch) else []
    assert list(batch.take(wanted).records()) == [records[i] for i in wanted]
    assert [batch.value(i) for i in range(len(batch))] == [record.value for record in records]


@given(batch=_batches)
@settings(deadline=None)
def test_a_batch_arrives_as_it_was_sent(batch: RecordBatch) -> None:
    sent, counts = unpack_columns(pack_columns(batch))
    assert counts is None
    assert list(sent.records()) == list(batch.records())


def test_a_batch_of_lines_is_joined_undecoded() -> None:
    both = join(
        [_batch("fields", [1, 2], keys=False, ids=False), _batch("fields", [3], keys=True, ids=False)]
    )
    assert both.values == []
    assert both.json == [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}']
    assert both.fields == {"n": [1, 2, 3]}
    assert both.keys == ["", "", "k3"]
    assert list(both.records()) == [
        mw.Record(value={"n": n}, timestamp=n, key="k3" if n == 3 else "") for n in (1, 2, 3)
    ]
