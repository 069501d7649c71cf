"""Pipelines for the simulator, each with something that a failure could break."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import millwheel as mw
from millwheel.testing import Simulated

_RECORDS = 60
_KEYS = 5


class Parts(mw.Injector):
    """Several partitions, each in order of time but for a little; some records come again, with their ID."""

    def __init__(self, partitions: int = 2, *, ids: bool = False) -> None:
        self._ids = ids
        self._parts: dict[str, list[mw.Record]] = {}
        for number in range(partitions):
            source = random.Random(number)
            records = []
            for i in range(_RECORDS // partitions):
                record = mw.Record(
                    value={"word": f"w{source.randrange(_KEYS)}", "n": i},
                    timestamp=i * 10 + source.randrange(30),
                    id=f"{number}-{i}" if ids else None,
                )
                again = source.random() < 0.3, source.randrange(i + 1)
                records.append(record)
                if ids and again[0]:
                    records.append(records[again[1]])
            self._parts[str(number)] = records

    def all(self) -> list[mw.Record]:
        """The records of all partitions."""
        return [record for records in self._parts.values() for record in records]

    def poll(self) -> Mapping[str, Any]:
        return {name: len(records) for name, records in self._parts.items()}

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        return self._parts[partition][start or 0 : end]

    def low_watermark(self, partition: str, offset: Any) -> int:
        left = self._parts[partition][offset or 0 :]
        return min((record.timestamp for record in left), default=mw.MAX_TIME)

    def bound(self, partition: str, start: Any, end: Any, records: int) -> Any:
        return min(end, (start or 0) + records)


class Windower(mw.Computation):
    """Counts a key's records per window, and says so when the window is complete."""

    def process_record(self, record: mw.Record) -> None:
        assert not record.late, "no record of these inputs is late"
        window = record.timestamp // 100
        self.state[window] = self.state.get(window, 0) + 1
        self.set_timer(str(window), (window + 1) * 100)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("windows", [self.key, self.state.pop(int(timer.tag))], timestamp=timer.timestamp - 1)


class Totals(mw.Computation):
    """Adds up what it is sent in wider windows, and for ever."""

    def process_record(self, record: mw.Record) -> None:
        wide = record.timestamp // 300
        self.state["sum"] = self.state.get("sum", 0) + record.value[1]
        self.state[wide] = self.state.get(wide, 0) + record.value[1]
        self.set_timer(str(wide), (wide + 1) * 300)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("totals", self.state.pop(int(timer.tag)))


class Chained(mw.Computation):
    """Shares its intervals, and its transaction, with the computation before it."""

    def process_record(self, record: mw.Record) -> None:
        self.state["seen"] = self.state.get("seen", 0) + 1
        self.hold(record.timestamp, "open")
        if self.state["seen"] % 2 == 0:
            self.release("open")


def windows(*, ids: bool = False) -> mw.Pipeline:
    """Two levels of windows, a chained computation, and two computations that read the same stream."""
    p = mw.Pipeline("windows")
    p.inject("words", Parts(ids=ids))
    p.add(Windower(), inputs={"words": mw.by("word")}, outputs=["windows"])
    p.add(Chained(), inputs={"windows": mw.by_key})
    p.add(Totals(), inputs={"windows": _all_together}, outputs=["totals"])
    return p


def _all_together(record: mw.Record) -> str:
    return "all"


class Spread(Parts):
    """No two partitions have records of the same time."""

    def __init__(self) -> None:
        super().__init__(ids=True)
        for number, records in enumerate(self._parts.values()):
            self._parts[str(number)] = [
                mw.Record(value=r.value, timestamp=2 * r.timestamp + number, id=r.id) for r in records
            ]


class Chain(mw.Computation):
    """Every record and every timer changes the state in a way that shows their order."""

    def process_record(self, record: mw.Record) -> None:
        self._link(record.timestamp)
        self.set_timer(str(record.timestamp % 3), record.timestamp + record.value["n"] % 40)

    def process_timer(self, timer: mw.Timer) -> None:
        self._link(-timer.timestamp)

    def _link(self, number: int) -> None:
        assert number >= -self.low_watermark
        self.state["chain"] = (self.state.get("chain", 7) * 31 + number) % 1_000_003
        self.produce("chain", self.state["chain"], timestamp=abs(number))


def in_order() -> mw.Pipeline:
    """Records in order, of a source that sends some twice; behind it the same, by the key that it had."""
    p = mw.Pipeline("in order")
    p.inject("words", Spread())
    p.add(Chain(), inputs={"words": mw.by("word")}, outputs=["chain"], in_order=True)
    p.add(Follows(), inputs={"chain": mw.by_key}, in_order=True)
    return p


class Follows(mw.Computation):
    """Keeps what it got, in order."""

    def process_record(self, record: mw.Record) -> None:
        assert record.timestamp >= self.state.get("last", 0)
        self.state["last"] = record.timestamp
        self.state["sum"] = (self.state.get("sum", 7) * 31 + record.timestamp) % 1_000_003


def resent() -> mw.Pipeline:
    """The same over a source that sends some records twice."""
    return windows(ids=True)


def check_resent(found: Simulated) -> None:
    """Each record was counted once, in its window, however often it came."""
    wanted: Counter[tuple[str, int]] = Counter()
    for record in Parts().all():
        wanted[record.value["word"], record.timestamp // 100 * 100 + 99] += 1
    got = {(record.key, record.timestamp): record.value[1] for record in found.outputs["windows"]}
    assert len(got) == len(found.outputs["windows"]), "a window came twice"
    assert got == wanted
    assert sum(record.value for record in found.outputs["totals"]) == _RECORDS
    assert found.states["Totals"]["all"] == {"sum": _RECORDS}


resent.check = check_resent  # type: ignore[attr-defined]


def weak() -> mw.Pipeline:
    """The same with weak productions: what is computed does not depend on chance."""
    p = mw.Pipeline("weak")
    p.inject("words", Parts(ids=True))
    p.add(Windower(), inputs={"words": mw.by("word")}, outputs=["windows"], strong_productions=False)
    p.add(Totals(), inputs={"windows": _all_together}, outputs=["totals"], strong_productions=False)
    return p


class Passes(mw.Computation):
    """Passes on what it gets, and counts it."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("passed", record.value)


def weak_twice() -> mw.Pipeline:
    """Two weak levels before a strong one: of the two the last must commit first, whoever runs them."""
    p = mw.Pipeline("weak twice")
    p.inject("words", Parts())
    p.add(Windower(), inputs={"words": mw.by("word")}, outputs=["windows"], strong_productions=False)
    parity = {"windows": lambda record: str(record.value[1] % 2)}
    p.add(Passes(), inputs=parity, outputs=["passed"], strong_productions=False)
    p.add(Totals(), inputs={"passed": _all_together}, outputs=["totals"])
    return p


def weak_then_strong() -> mw.Pipeline:
    """Weak productions for a computation with strong ones."""
    p = mw.Pipeline("weak, then strong")
    p.inject("words", Parts())
    p.add(Windower(), inputs={"words": mw.by("word")}, outputs=["windows"], strong_productions=False)
    p.add(Totals(), inputs={"windows": _all_together}, outputs=["totals"])
    return p


class Draws(mw.Computation):
    """Depends on chance: what it produced once must be what it produces ever after."""

    def process_record(self, record: mw.Record) -> None:
        token = random.randrange(1 << 60)  # another one in each attempt
        self.state.setdefault("tokens", []).append(token)
        self.produce("tokens", token)


class Keeps(mw.Computation):
    """Keeps what it was sent."""

    def process_record(self, record: mw.Record) -> None:
        self.state.setdefault("tokens", []).append(record.value)
        self.produce("kept", record.value)


def draws() -> mw.Pipeline:
    """Chance, and two consumers under other keys."""
    p = mw.Pipeline("draws")
    p.inject("words", Parts())
    p.add(Draws(), inputs={"words": mw.by("word")}, outputs=["tokens"])
    p.add(Keeps(), name="One", inputs={"tokens": _by_parity}, outputs=["kept"])
    p.add(Keeps(), name="Two", inputs={"tokens": _all_together}, outputs=["kept"])
    return p


def _by_parity(record: mw.Record) -> str:
    return str(record.value % 2)


def check_draws(found: Simulated) -> None:
    """Everybody has seen the same tokens, each once."""
    drawn = _tokens(found, "Draws")
    assert len(drawn) == len(set(drawn)) == _RECORDS, f"{len(drawn)} tokens of {_RECORDS} records"
    for name in ("One", "Two"):
        assert _tokens(found, name) == drawn, f"{name} was sent other tokens than were drawn"
    assert sorted(record.value for record in found.outputs["tokens"]) == drawn, "the sink has other tokens"
    assert sorted(record.value for record in found.outputs["kept"]) == sorted(2 * drawn)


def _tokens(found: Simulated, name: str) -> list[int]:
    return sorted(token for state in found.states[name].values() for token in state["tokens"])


draws.check = check_draws  # type: ignore[attr-defined]


class Holds(mw.Computation):
    """Passes records on in pairs, as old as the elder: until the second comes, it holds the watermark."""

    def process_record(self, record: mw.Record) -> None:
        first = self.state.pop("first", None)
        if first is None:
            self.state["first"] = record.timestamp
            self.hold(record.timestamp, "first")
        else:
            self.release("first")
            self.produce("pairs", [self.key, 2], timestamp=min(first, record.timestamp))


class Pairs(mw.Computation):
    """Counts pairs by window, chained behind who holds; none of them may be late."""

    def process_record(self, record: mw.Record) -> None:
        assert not record.late, "a hold did not hold"
        window = record.timestamp // 100
        self.state[window] = self.state.get(window, 0) + 1
        self.set_timer(str(window), (window + 1) * 100)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("windows", [self.key, self.state.pop(int(timer.tag))], timestamp=timer.timestamp - 1)


def held() -> mw.Pipeline:
    """Keys that hold each other's watermark, and windows chained behind them."""
    p = mw.Pipeline("held")
    p.inject("words", Parts(1))
    p.add(Holds(), inputs={"words": mw.by("word")}, outputs=["pairs"])
    p.add(Pairs(), inputs={"pairs": mw.by_key}, outputs=["windows"])
    p.add(Totals(), inputs={"windows": _all_together}, outputs=["totals"])
    return p


def held_apart() -> mw.Pipeline:
    """The same with the windows behind a shuffle: a hold of any interval counts there in the same epoch."""
    p = mw.Pipeline("held apart")
    p.inject("words", Parts(1))
    p.add(Holds(), inputs={"words": mw.by("word")}, outputs=["pairs"])
    p.add(Pairs(), inputs={"pairs": lambda record: record.key}, outputs=["windows"])
    return p


class Extra(mw.Computation):
    """Comes and goes; counts what it gets."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.set_timer("soon", record.timestamp + 50)

    def process_timer(self, timer: mw.Timer) -> None:
        """There is nothing to do."""


def changing() -> mw.Pipeline:
    """What stays while others come and go."""
    return windows()


def _with_more() -> mw.Pipeline:
    p = windows()
    p.add(Extra(), name="Beside", inputs={"words": _all_together})
    p.add(Extra(), name="Chained too", inputs={"windows": mw.by_key})
    return p


def _with_a_level_more() -> mw.Pipeline:
    p = windows()
    p.add(Extra(), name="Deeper", inputs={"totals": lambda record: str(record.value % 2)})
    return p


def _with_a_replay() -> mw.Pipeline:
    p = windows()
    p.add(Extra(), name="Beside", inputs={"words": _all_together})
    p.add(Replayed(), inputs={"words": mw.by("word")}, outputs=["replayed"], replay="earliest")
    return p


class Replayed(mw.Computation):
    """Passes on all that it gets, from the beginning."""

    def process_record(self, record: mw.Record) -> None:
        assert not record.late, "what is replayed is not late"
        self.produce("replayed", record.value)


changing.variants = (_with_more, _with_a_level_more, _with_a_replay)  # type: ignore[attr-defined]


def _with_a_replay_and_more() -> mw.Pipeline:
    p = _with_a_replay()
    p.add(Extra(), name="Deeper", inputs={"totals": _all_together})
    p.remove("Beside")
    return p


def replayed() -> mw.Pipeline:
    """In the end there is one that has read everything, whenever it came."""
    return _with_a_replay()


def check_replayed(found: Simulated) -> None:
    """Who came late has read every record once; those who were there have not felt it."""
    check_resent(found)
    wanted = Counter((record.value["word"], record.value["n"]) for record in Parts().all())
    assert Counter((r.value["word"], r.value["n"]) for r in found.outputs["replayed"]) == wanted


replayed.check = check_replayed  # type: ignore[attr-defined]
replayed.first = windows  # type: ignore[attr-defined]
replayed.variants = (_with_a_replay_and_more,)  # type: ignore[attr-defined]


class Sees(mw.Computation):
    """Keeps which reading of the table each record has seen, and passes it on."""

    def process_record(self, record: mw.Record) -> None:
        seen = [record.value["part"], record.value["n"], record.value["read"]]
        self.state.setdefault("seen", []).append(seen)
        if "One" in record.value["to"]:
            self.produce("passed", {"seen": seen, "word": record.value["word"]})


_readings = itertools.count(1)


def _read_anew() -> list[dict[str, Any]]:
    """Another table at every reading, in whatever process."""
    read = next(_readings)
    return [{"word": f"w{number}", "read": read} for number in range(_KEYS)]


class Numbered(Parts):
    """Records that can be told apart."""

    def __init__(self) -> None:
        super().__init__()
        for part, records in self._parts.items():
            self._parts[part] = [
                mw.Record(value={**r.value, "part": part, "n": number, "to": ["One"]}, timestamp=r.timestamp)
                for number, r in enumerate(records)
            ]


def looked_up() -> mw.Pipeline:
    """A side table that changes before every epoch, seen by two consumers under other keys."""
    p = mw.Pipeline("looked up")
    found = p.inject("words", Numbered()).lookup(_read_anew, on="word", refresh=1).named("found")
    found.key_by("word").process(Sees(), name="One", outputs=["passed"])
    p.add(Sees(), name="Two", inputs={"found": _all_together}, outputs=["passed"])
    p.stream("passed").lookup(_read_anew, on="word", refresh=1).named("again")
    p.add(Keeps(), name="Last", inputs={"again": _all_together}, outputs=["kept"])
    return p


def check_looked_up(found: Simulated) -> None:
    """Every record is there once, and everybody has seen it with one version of the table."""
    seen = [[r.value["part"], r.value["n"], r.value["read"]] for r in found.outputs["found"]]
    assert len({(part, n) for part, n, _ in seen}) == len(seen) == _RECORDS
    for name in ("One", "Two"):
        kept = sorted(one for state in found.states[name].values() for one in state["seen"])
        assert kept == sorted(seen), f"{name} has seen other versions than the sink"
    again = sorted(record.value["read"] for record in found.outputs["again"])
    assert sorted(token["read"] for token in found.states["Last"]["all"]["tokens"]) == again
    assert len(again) == 2 * _RECORDS


looked_up.check = check_looked_up  # type: ignore[attr-defined]
