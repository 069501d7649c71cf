"""Many records, dealt out by tablet: each of them once, with all that is its own, in order."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.model.batch import RecordBatch
from millwheel.model.codec import pack
from millwheel.model.keys import PARTS
from millwheel.store.keyspace import tablets_of
from millwheel.worker import route
from millwheel.worker.envelope import pack_section, unpack_section

_keys = st.lists(st.sampled_from(["a", "b", "c", "", "ü", "k1", "k2", mw.SKIP]), min_size=1, max_size=60)


@given(
    keys=_keys,
    kind=st.sampled_from(["json", "packed", "objects"]),
    with_ids=st.booleans(),
    often=st.sampled_from([1, 8]),
)
def test_sections_have_each_record_once_in_order(
    keys: list[Any], kind: str, with_ids: bool, often: int
) -> None:
    values = [{"n": n} for n in range(len(keys))]
    lines = [b'{"n":%d}' % n for n in range(len(keys))]
    batch = RecordBatch(
        [(-1) ** n * (2**62 + n) for n in range(len(keys))],
        [pack(value) for value in values] if kind == "packed" else values,
        [f"id-{n}" if n % 3 else None for n in range(len(keys))] if with_ids else None,
        keys,
        json=lines if kind == "json" else None,
        packed=kind == "packed",
    )
    found: dict[tuple[int, str], list[Any]] = {}
    with mock.patch.object(route, "OFTEN", often):
        parts = route.by_part(batch)
    for number, (part, counts) in enumerate(parts):
        if not part.keys:
            continue  # it is not sent
        sent, _ = unpack_section(pack_section(3, 1, number, part, counts)).batch()
        mine: list[Any] = sent.json if sent.json is not None else sent.values
        ids = sent.ids if sent.ids is not None else [None] * len(mine)
        for key, time, value, id in zip(sent.key_column(), sent.timestamps, mine, ids, strict=True):
            found.setdefault((number, key), []).append((time, value, id))
    expected: dict[tuple[int, str], list[Any]] = {}
    for n, key in enumerate(keys):
        if key is not mw.SKIP:
            id = batch.ids[n] if batch.ids is not None else None
            value = lines[n] if kind == "json" else values[n]
            expected.setdefault((tablets_of([key], PARTS)[0], key), []).append(
                (batch.timestamps[n], value, id)
            )
    assert found == expected
