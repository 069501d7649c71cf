"""What the drawn computations do: written once, against the names that the contract gives to a hook.

A hook's every choice is a hash of what the contract lets it see. Where the order of a key's records is
open, what a record does commutes with what others do; timers have an order in any case.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Protocol

import millwheel as mw
from tests.differential.case import Extractor, NodeSpec

SIZE = 10
"""Of a window."""
MODULUS = 1_000_003
_TAGS = ("a", "b", "c")
_DEEPEST = 3  # timers that a timer sets: so that they end


class Hook(Protocol):
    """What a hook reaches: in the engine the computation, in the reference something else."""

    key: str
    state: Any

    @property
    def low_watermark(self) -> int: ...
    @property
    def now(self) -> int: ...
    def set_timer(self, tag: str, time: int, clock: Any = ...) -> None: ...
    def clear_timer(self, tag: str) -> None: ...
    def produce(self, stream: str, value: Any, timestamp: int | None = None) -> None: ...
    def hold(self, timestamp: int, tag: str = "") -> None: ...
    def release(self, tag: str = "") -> None: ...
    def count(self, name: str, n: int = 1) -> None: ...


class Refused(Exception):
    """What a drawn hook raises."""


def mix(*parts: Any) -> int:
    """A number that depends on all of its arguments, the same in every process."""
    return zlib.crc32(repr(parts).encode()) >> 3


def number(value: Any) -> int:
    """What a record says: of one from an error stream, what the record said that failed."""
    if isinstance(value, dict) and "traceback" in value:
        inner = value["value"]
        return mix(inner["tag"], inner["clock"]) % 1_000 if "tag" in inner else number(inner)
    if "n" not in value:  # of an operator
        return mix(sorted(value.items())) % 1_000
    return int(value["n"])


def bad(value: Any) -> bool:
    """Whether a window refuses a value, alone or with others."""
    return bool(value.get("bad"))


def value_of(n: int) -> dict[str, Any]:
    """The value of an injected record."""
    return {"n": n, "bad": n % 11 == 0}


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two values as one: what a window makes of it is the same."""
    return {"n": one["n"] + other["n"], "bad": bad(one) or bad(other)}


def in_place(key: str, records: Sequence[mw.Record]) -> list[tuple[Any, int]]:
    """A combiner that changes the values that it was given."""
    found: dict[int, tuple[Any, int]] = {}
    for record in records:
        start = record.timestamp // SIZE
        if start not in found:
            found[start] = (record.value, record.timestamp)
            continue
        value, newest = found[start]
        value["n"] += record.value["n"]
        value["bad"] = bad(value) or bad(record.value)
        found[start] = (value, max(newest, record.timestamp))
    return list(found.values())


def extract(how: Extractor, record: mw.Record) -> Any:
    """The key of a record at a consumer."""
    n = number(record.value)
    if how == "by_key":
        return record.key
    if how == "all":
        return ""
    if how == "suffix":
        return record.key + "'"
    if how == "mod":
        return f"m{n % 3}"
    if how == "field":
        return str(n % 7)
    if how == "picky":
        if n % 5 == 0:
            raise Refused(f"no key for {n}")
        return f"p{n % 3}"
    return mw.SKIP if n % 2 else f"s{n % 3}"


def side_table(now: int) -> list[dict[str, Any]]:
    """What a table that is looked up has at a time: it changes with each."""
    return [{"id": id, "plus": id * 7 + now % 11} for id in range(3)]


def transform(how: str, value: Any, now: int = 0) -> list[Any]:
    """What an operator makes of a value, in an epoch of this time: any number of values."""
    n = number(value)
    if how == "lookup":
        return [{"n": n + row["plus"]} for row in side_table(now) if row["id"] == n % 4]
    if how == "map":
        return [{"n": n + 2}]
    if how == "filter":
        return [value] if n % 3 else []
    return [{"n": n + turn} for turn in range(n % 3)]


def on_record(spec: NodeSpec, hook: Hook, record: mw.Record) -> None:
    """What a computation does with a record."""
    if spec.kind == "window":
        _add_to_window(spec, hook, record)
    elif spec.kind == "forward":
        hook.produce(spec.outputs[0], {"n": number(record.value) + 1})
        hook.count("forwarded")
    else:
        _obey_record(spec, hook, record)


def on_timer(spec: NodeSpec, hook: Hook, timer: mw.Timer) -> None:
    """What a computation does with a timer."""
    if spec.kind == "window":
        _close_window(spec, hook, timer)
    else:
        _obey_timer(spec, hook, timer)


def _add_to_window(spec: NodeSpec, hook: Hook, record: mw.Record) -> None:
    n = number(record.value)
    if bad(record.value) and spec.errors == "divert":
        hook.state["never"] = 1  # is undone
        raise Refused(f"bad {n}")
    if record.late and spec.combine:  # beside others or not
        hook.state["late"] = [(hook.state.get("late", [0])[0] + n) % MODULUS]
        return
    if record.late:  # on its own: what else comes in the same epoch is not part of the result
        hook.produce(spec.outputs[0], {"n": n})
        return
    start = record.timestamp // SIZE * SIZE
    window = hook.state.setdefault(str(start), [0])
    window[0] = (window[0] + n) % MODULUS
    hook.set_timer(str(start), start + SIZE)
    if spec.wall and not spec.combine and n % 5 == 0:
        hook.set_timer(f"w{n}", (hook.now // 10 + 1) * 10, clock=mw.WALL)
    if spec.holds:
        hook.hold(start + SIZE - 1, tag=str(start))
        if _keeps(spec) and not spec.combine and n % 3 == 0:
            hook.hold(start, tag=f"kept {start}")


def _close_window(spec: NodeSpec, hook: Hook, timer: mw.Timer) -> None:
    if timer.clock == mw.WALL:
        hook.produce(spec.outputs[0], {"n": int(timer.tag[1:])}, timestamp=timer.timestamp + 1_000)
        return
    total = hook.state.pop(timer.tag)[0]
    if spec.holds:
        hook.release(timer.tag)
    hook.produce(spec.outputs[-1], {"n": total}, timestamp=timer.timestamp - 1)
    hook.count("windows")
    if not hook.state and not _keeps(spec):
        del hook.state


def _keeps(spec: NodeSpec) -> bool:
    """Whether a window holds for ever: until the run ends."""
    return spec.holds and spec.seed % 2 == 0


def _obey_record(spec: NodeSpec, hook: Hook, record: mw.Record) -> None:
    n = number(record.value)
    seen: tuple[Any, ...] = (spec.seed, n, record.timestamp, record.stream, record.late)
    state = hook.state
    if spec.ordered:
        seen = (*seen, state.get("n", 0), state.get("d", 0))
    choice = mix(*seen)
    what = mix(choice) if spec.in_order else mix(choice, hook.now, hook.low_watermark)
    state["n"] = state.get("n", 0) + 1
    state["d"] = (state.get("d", 0) * (31 if spec.ordered else 1) + what) % MODULUS
    for turn in range(choice % 4):
        _act(spec, hook, mix(choice, turn), record.timestamp, free=spec.ordered, depth=0)
    if spec.errors == "divert" and mix(choice, "raise") % 6 == 0:
        raise Refused(f"record {n}")


def _obey_timer(spec: NodeSpec, hook: Hook, timer: mw.Timer) -> None:
    tag = timer.tag
    depth = int(tag[1:]) if tag[0] == "g" else 0
    if tag[0] == "r":
        hook.release("h" + tag[1:])
    if tag[0] == "l":
        left = int(tag[1])
        if left:
            hook.set_timer(f"l{left - 1}{tag[2:]}", timer.timestamp + 4, clock=timer.clock)
        hook.produce(spec.outputs[0], {"n": left})
        return
    state = hook.state
    choice = mix(spec.seed, tag, timer.timestamp, timer.clock, state.get("d", 0))
    what = mix(choice) if spec.in_order else mix(choice, hook.now, hook.low_watermark)
    state["d"] = (state.get("d", 0) * 31 + what) % MODULUS
    hook.produce(spec.outputs[-1], {"n": state["d"] % 997})
    for turn in range(choice % 3):
        _act(spec, hook, mix(choice, turn), timer.timestamp, free=True, depth=depth + 1)
    if spec.errors == "divert" and mix(choice, "raise") % 6 == 0:
        raise Refused(f"timer {tag}")


def _act(spec: NodeSpec, hook: Hook, choice: int, time: int, *, free: bool, depth: int) -> None:
    """One action; one that is not free commutes with all others that are not."""
    far = choice // 16 % 25 - 5
    at, now = time + far, hook.now + max(far, 1)
    kind = choice % (16 if free else 10)
    if kind in (0, 1, 2, 10, 11) and depth < _DEEPEST:
        wall = kind == 2 and spec.wall
        if depth:
            tag = f"g{depth}"
        else:
            tag = _TAGS[choice // 512 % 3] if free else f"{'w' if wall else 't'}{now if wall else at}"
        hook.set_timer(tag, now if wall else at, clock=mw.WALL if wall else mw.WATERMARK)
    elif kind == 3 and spec.holds:
        hook.hold(at, tag=f"h{at}")
        if choice // 1024 % 4:
            hook.set_timer(f"r{at}", at + at % 7)
    elif kind == 4:
        hook.set_timer(f"l{choice // 64 % 4}.{at}", at)
    elif kind in (5, 6):
        hook.produce(spec.outputs[choice // 32 % len(spec.outputs)], {"n": choice % 89})
    elif kind == 7:
        hook.produce(spec.outputs[0], {"n": choice % 83}, timestamp=at)
    elif kind == 8:
        hook.count(f"c{choice % 2}", choice % 5)
    elif kind == 12:
        hook.clear_timer(_TAGS[choice // 512 % 3])
    elif kind == 13 and spec.holds:
        hook.hold(at)
    elif kind == 14:
        hook.release()
    elif kind == 15:
        del hook.state
