"""Keys as numbers: each different key has one, also where fingerprints are the same."""

from __future__ import annotations

import random

import pytest

from millwheel.store.keyspace import row_suffix, tablets_of
from millwheel.worker import key_codes
from millwheel.worker.key_codes import codes_of, fingerprints_of, merged_keys, tablets_in

ODD = ["", "a", "ü", "\ud800", "日本", "k" * 600, "\x00", "a\x00"]


@pytest.mark.parametrize("tablets", [64, 256, 512, 4_096])
def test_fingerprints_and_tablets_are_those_of_rows(tablets: int) -> None:
    for keys in (ODD, [key for key in ODD if key != "\ud800"], []):
        found = fingerprints_of(keys)
        assert [int(one).to_bytes(8, "big") for one in found] == [row_suffix(key)[:8] for key in keys]
        assert tablets_in(found, tablets).tolist() == tablets_of(keys, tablets)


@pytest.mark.parametrize("different", [1, 10, 5_000])
@pytest.mark.parametrize("colliding", [False, True])
def test_each_record_has_the_place_of_its_key(
    different: int, colliding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if colliding:
        monkeypatch.setattr(key_codes, "fingerprints_of", lambda keys: fingerprints_of(keys) >> 58 << 58)
    rng = random.Random(different)
    keys = [*ODD, *(f"key-{rng.randrange(different)}" for _ in range(3_000))]
    names, fingerprints, codes = codes_of(keys)
    assert [names[code] for code in codes.tolist()] == keys
    assert len(set(names)) == len(names) == len(fingerprints)
    assert tablets_in(fingerprints, 64).tolist() == tablets_of(names, 64)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("many", [10, 10**6])
@pytest.mark.parametrize("colliding", [False, True])
def test_each_key_of_several_lists_is_there_once(
    colliding: bool, many: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_codes, "MANY", many)
    if colliding:
        monkeypatch.setattr(key_codes, "fingerprints_of", lambda keys: fingerprints_of(keys) >> 58 << 58)
    rng = random.Random(1)
    lists = [[*ODD[part:], *{f"key-{rng.randrange(500)}" for _ in range(400)}] for part in range(4)]
    found = [key_codes.fingerprints_of(keys) for keys in lists]
    given = [one if known or number == 1 else None for number, one in enumerate(found)]
    names, first, places = merged_keys(lists, given)
    everything = [key for keys in lists for key in keys]
    assert [everything[position] for position in first.tolist()] == names
    assert [names[place] for place in places.tolist()] == everything
    assert sorted(names) == sorted(set(everything))
