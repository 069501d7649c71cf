"""Keys as numbers: the index of each record's key among the distinct ones.

A dict finds the place of a key that it has in its cache in 45 ns; with 100,000 keys, most are not there, and
it takes 230. Sorting fingerprints takes 40, whatever the keys are, and fingerprints are needed anyway, for
the tablets. Two keys with one fingerprint are found by comparing the texts, and then a dict decides.
``python -m benchmarks path`` shows what it wins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, count
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from millwheel.store.keyspace import row_suffix

Numbers = NDArray[Any]

_SAMPLE = 4_000  # keys that show whether most are different, at a hundredth of the time of a chunk
MANY = 16_384  # keys that are merged by fingerprints: a dict of fewer is in the processor's cache

_fingerprint = xxhash.xxh3_64_intdigest


def fingerprints_of(keys: Sequence[str]) -> Numbers:
    """Return the fingerprint of each key."""
    try:
        return np.fromiter(map(_fingerprint, map(str.encode, keys)), np.uint64, len(keys))
    except UnicodeEncodeError:  # half a character
        return np.array([int.from_bytes(row_suffix(key)[:8], "big") for key in keys], np.uint64)


def tablets_in(fingerprints: Numbers, tablets: int) -> Numbers:
    """Return the tablet of each fingerprint: its first bits."""
    behind = np.uint64(65 - tablets.bit_length())
    return (fingerprints >> behind).astype(number_of(tablets))


def number_of(tablets: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest type for the numbers of ``tablets``."""
    return np.uint8 if tablets <= 256 else np.uint16


def codes_of(keys: Sequence[str]) -> tuple[list[str], Numbers, Numbers]:
    """Return each key once, its fingerprint, and by record the place of its key."""
    sample = keys[:_SAMPLE]
    if 4 * len(set(sample)) > 3 * len(sample):
        fingerprints = fingerprints_of(keys)
        names = np.array(keys, object)
        found = _places(fingerprints, names)
        if found is not None:
            first, places = found
            return names[first].tolist(), fingerprints[first], places
    numbers: defaultdict[str, int] = defaultdict(count().__next__)
    codes = np.fromiter(map(numbers.__getitem__, keys), np.int64, len(keys))
    different = list(numbers)
    return different, fingerprints_of(different), codes


def merged_keys(
    keys: Sequence[list[str]], fingerprints: Sequence[Numbers | None]
) -> tuple[list[str], Numbers, Numbers]:
    """The distinct keys of several lists, one position of each, and all indices.

    ``fingerprints`` are those of each list, where they are known: of few keys none are needed.
    """
    names = np.array(list(chain.from_iterable(keys)), object)
    if len(names) >= MANY:
        known = [
            fingerprints_of(mine) if found is None else found
            for mine, found in zip(keys, fingerprints, strict=True)
        ]
        found = _places(np.concatenate(known), names)
        if found is not None:
            return names[found[0]].tolist(), *found
    numbers: defaultdict[str, int] = defaultdict(count().__next__)
    places = np.fromiter(map(numbers.__getitem__, names.tolist()), np.int64, len(names))
    first = np.empty(len(numbers), np.int64)
    first[places] = np.arange(len(places))
    return list(numbers), first, places


def _places(fingerprints: Numbers, names: Numbers) -> tuple[Numbers, Numbers] | None:
    """The position of each distinct key, and the index of each key among those.

    None where two keys have one fingerprint.
    """
    order = np.argsort(fingerprints)
    arranged = fingerprints[order]
    is_new = np.empty(len(order), np.bool_)
    is_new[:1] = True
    np.not_equal(arranged[1:], arranged[:-1], out=is_new[1:])
    first = order[is_new]
    ranks = np.cumsum(is_new) - 1
    again = ~is_new
    if not (names[order[again]] == names[first[ranks[again]]]).all():
        return None
    places = np.empty(len(order), np.int64)
    places[order] = ranks
    return first, places
