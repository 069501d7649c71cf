"""Many records, dealt out by tablet: each of them once, with all that is its own, in order."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.model.codec import pack
from millwheel.store.keyspace import tablets_of
from millwheel.worker import route
from millwheel.worker.envelope import Columns, pack_section, unpack_section

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
    columns = Columns(
        keys,
        [(-1) ** n * (2**62 + n) for n in range(len(keys))],
        [pack(value) for value in values] if kind == "packed" else values,
        [f"id-{n}" if n % 3 else None for n in range(len(keys))] if with_ids else None,
        kind == "packed",
        lines if kind == "json" else None,
    )
    found: dict[tuple[int, str], list[Any]] = {}
    with mock.patch.object(route, "_OFTEN", often):
        parts = route._by_tablet(columns)
    for tablet, part in enumerate(parts):
        if not part.keys:
            continue  # it is not sent
        section = unpack_section(pack_section(3, 1, tablet, part))
        mine: list[Any] = section.json if section.json is not None else section.values() or []
        ids = section.ids if section.ids is not None else [None] * len(mine)
        for key, time, value, id in zip(section.keys, section.timestamps, mine, ids, strict=True):
            found.setdefault((tablet, key), []).append((time, value, id))
    expected: dict[tuple[int, str], list[Any]] = {}
    for n, key in enumerate(keys):
        if key is not mw.SKIP:
            id = columns.ids[n] if columns.ids is not None else None
            value = lines[n] if kind == "json" else values[n]
            expected.setdefault((tablets_of([key])[0], key), []).append((columns.timestamps[n], value, id))
    assert found == expected
