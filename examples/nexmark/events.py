"""The auction house: persons, auctions and bids, 1 : 3 : 46, the same for the same seed.

Every event has a number, and is a function of it: any range can be made at any time, in columns. The
distributions are those of the NEXMark generator: half of the bids go to one hot auction, three quarters are
made by one hot bidder, and as many auctions are sold by one hot seller; who is hot changes all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from millwheel import SECOND

Kind = Literal["persons", "auctions", "bids"]
KINDS: tuple[Kind, ...] = ("persons", "auctions", "bids")
Value = dict[str, Any]

_Numbers = NDArray[np.int64]

BEGIN = 1_436_918_400 * SECOND
"""When the house opens: 15 July 2015, as in the first generators."""
FIRST_ID = 1_000
FIRST_CATEGORY = 10
CATEGORIES = 5

PER_ROUND: Mapping[Kind, int] = {"persons": 1, "auctions": 3, "bids": 46}
ROUND = 50
"""Events come in rounds: a person, three auctions, 46 bids."""
_FIRST: Mapping[Kind, int] = {"persons": 0, "auctions": 1, "bids": 4}

_OPEN_AUCTIONS = 100
_ACTIVE_PERSONS = 1_000
_LEAD = 10  # persons and auctions that are named a little before they are there
_HOT_EVERY = 100
_STRIDE = 953  # a prime: multiples of it, modulo a group, are the group in another order

_FIRST_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gwen", "Hugo", "Iris", "Jack", "Kim")
_LAST_NAMES = ("Archer", "Baker", "Cooper", "Draper", "Fletcher", "Mason", "Parker", "Sawyer", "Turner")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Seattle", "Kent", "Cody")
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_TEXT = "".join(chr(97 + n * n * 31 % 26) for n in range(1_000))


@dataclass(frozen=True)
class House:
    """``count`` events, ``rate`` in a second of event time, out of order in groups of ``disorder``."""

    count: int
    rate: int = 1_000
    disorder: int = 1_000
    seed: int = 1

    def __post_init__(self) -> None:
        if self.count < 0 or self.rate < 1:
            raise ValueError(f"a house has 0 or more events, 1 or more in a second, not {self}")
        if self.disorder < 1 or self.disorder % _STRIDE == 0:
            raise ValueError(f"disorder is 1 or more, and no multiple of {_STRIDE}, not {self.disorder}")

    @property
    def slack(self) -> int:
        """How far behind the newest timestamp an event may come."""
        return self.disorder * SECOND // self.rate + 1

    def time(self, number: int) -> int:
        """When an event happens."""
        return BEGIN + number * SECOND // self.rate

    def watermark(self, position: int) -> int:
        """No event behind this position is older."""
        return self.time(position // self.disorder * self.disorder)

    def numbers(self, start: int, end: int) -> _Numbers:
        """The numbers of the events from one position to another, in the order in which they come.

        Each group comes in another order; a last group that is not full comes as it is.
        """
        positions = np.arange(start, min(end, self.count), dtype=np.int64)
        within = positions % self.disorder
        mixed = positions - within + within * _STRIDE % self.disorder
        return np.where(positions - within + self.disorder <= self.count, mixed, positions)

    def read(self, kind: Kind, start: int, end: int) -> tuple[list[int], list[Value]]:
        """The timestamps and the values of the events of a kind from one position to another."""
        numbers = self.numbers(start, end)
        within = numbers % ROUND
        first = _FIRST[kind]
        numbers = numbers[(within >= first) & (within < first + PER_ROUND[kind])]
        times = BEGIN + numbers * SECOND // self.rate
        return times.tolist(), _MAKERS[kind](self, numbers, times)

    def all(self) -> dict[Kind, list[Value]]:
        """Everything that happens, in the order in which it comes: for small houses."""
        return {kind: self.read(kind, 0, self.count)[1] for kind in KINDS}


def _persons(house: House, numbers: _Numbers, times: _Numbers) -> list[Value]:
    draw = _Draw(house.seed, numbers)
    columns = (
        draw.below(len(_FIRST_NAMES)),
        draw.below(len(_LAST_NAMES)),
        draw.below(len(_CITIES)),
        draw.below(len(_STATES)),
        draw.below(10**16),
        draw.below(900),
    )
    ids = FIRST_ID + numbers // ROUND
    return [
        {
            "id": id,
            "name": f"{_FIRST_NAMES[first]} {_LAST_NAMES[last]}",
            "emailAddress": f"{_LAST_NAMES[last]}{id}@example.com",
            "creditCard": f"{card:016d}",
            "city": _CITIES[city],
            "state": _STATES[state],
            "dateTime": time,
            "extra": _TEXT[text : text + 100],
        }
        for id, time, first, last, city, state, card, text in zip(
            ids.tolist(), times.tolist(), *(column.tolist() for column in columns), strict=True
        )
    ]


def _auctions(house: House, numbers: _Numbers, times: _Numbers) -> list[Value]:
    draw = _Draw(house.seed, numbers)
    rounds = numbers // ROUND
    seller = np.where(draw.below(4) > 0, rounds // _HOT_EVERY * _HOT_EVERY, _some_person(draw, rounds))
    # As long as it takes for the auctions that are open now to be followed by as many others, on average.
    horizon = _OPEN_AUCTIONS * ROUND // PER_ROUND["auctions"] * SECOND // house.rate
    columns = (
        _auction_ids(numbers) + FIRST_ID,
        times,
        times + 1 + draw.below(max(2 * horizon, 1)),
        FIRST_ID + seller,
        FIRST_CATEGORY + draw.below(CATEGORIES),
        draw.price(),
        draw.price(),
        draw.below(600),
    )
    return [
        {
            "id": id,
            "itemName": _TEXT[text : text + 20],
            "description": _TEXT[text : text + 100],
            "initialBid": price,
            "reserve": price + more,
            "dateTime": time,
            "expires": expires,
            "seller": seller,
            "category": category,
            "extra": _TEXT[text : text + 300],
        }
        for id, time, expires, seller, category, price, more, text in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def _bids(house: House, numbers: _Numbers, times: _Numbers) -> list[Value]:
    draw = _Draw(house.seed, numbers)
    rounds, newest = numbers // ROUND, _auction_ids(numbers)
    oldest = np.maximum(newest - _OPEN_AUCTIONS, 0)
    some = oldest + draw.below(newest - oldest + 1 + _LEAD)
    auction = np.where(draw.below(2) > 0, newest // _HOT_EVERY * _HOT_EVERY, some)
    hot = rounds // _HOT_EVERY * _HOT_EVERY + 1
    bidder = np.where(draw.below(4) > 0, hot, _some_person(draw, rounds))
    columns = (FIRST_ID + auction, FIRST_ID + bidder, draw.price(), times, draw.below(900))
    return [
        {"auction": a, "bidder": b, "price": price, "dateTime": time, "extra": _TEXT[text : text + 68]}
        for a, b, price, time, text in zip(*(column.tolist() for column in columns), strict=True)
    ]


_MAKERS: Mapping[Kind, Callable[[House, _Numbers, _Numbers], list[Value]]] = {
    "persons": _persons,
    "auctions": _auctions,
    "bids": _bids,
}


def _auction_ids(numbers: _Numbers) -> _Numbers:
    """The newest auction when an event happens, itself if it is one; counted from 0."""
    within = np.clip(numbers % ROUND - _FIRST["auctions"], -1, PER_ROUND["auctions"] - 1)
    found: _Numbers = np.maximum(numbers // ROUND * PER_ROUND["auctions"] + within, 0)
    return found


def _some_person(draw: _Draw, rounds: _Numbers) -> _Numbers:
    """One of the newest persons; counted from 0."""
    active = np.minimum(rounds + 1, _ACTIVE_PERSONS)
    return rounds + 1 - active + draw.below(active + _LEAD)


class _Draw:
    """Random numbers: a function of the seed, the event and how many were drawn before (SplitMix64)."""

    def __init__(self, seed: int, numbers: _Numbers) -> None:
        self._state = numbers.astype(np.uint64) * np.uint64(_ODD) + np.uint64(seed * _SEEDS % 2**64)

    def _next(self) -> NDArray[np.uint64]:
        self._state = self._state + np.uint64(_GOLDEN)
        mixed = self._state
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))

    def below(self, bound: int | _Numbers) -> _Numbers:
        """Integers from 0 on."""
        return (self._next() % np.asarray(bound, dtype=np.uint64)).astype(np.int64)

    def price(self) -> _Numbers:
        """From a dollar to a million, in cents: as many of each order of magnitude."""
        share = (self._next() >> np.uint64(11)) / float(2**53)
        return np.rint(10 ** (share * 6) * 100).astype(np.int64)


_GOLDEN = 0x9E3779B97F4A7C15
_ODD = 0xD1342543DE82EF95
_SEEDS = 0xDA942042E4DD58B5
