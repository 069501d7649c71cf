"""Draws what happens to a pipeline: records, watermarks, clocks, and trouble."""

from __future__ import annotations

import random
from dataclasses import replace

from millwheel.model.time import MAX_TIME
from tests.differential.case import Sent, SourceSpec, Step

_KEYS = [f"key {number}" for number in range(6)]  # in six different tablets


class Steps:
    """Draws what happens: records, watermarks, clocks, and trouble."""

    def __init__(self, chance: random.Random, sources: tuple[SourceSpec, ...]) -> None:
        self._chance = chance
        self._places = [(source.name, part) for source in sources for part in range(source.partitions)]
        self._marks = dict.fromkeys(self._places, 0)
        self._streams = {source.name: source.stream for source in sources}
        writers = [self._streams[name] for name, _ in self._places]
        self._alone = {source.name for source in sources if writers.count(source.stream) == 1}
        self._sent: dict[tuple[str, int], Sent] = {}
        self._wall = 0
        self._records = 0

    def drawn(self) -> tuple[Step, ...]:
        chance = self._chance
        steps: list[Step] = []
        for day in range(chance.choice((1, 1, 1, 2, 3))):
            first = len(steps)
            count = chance.randrange(4, 13) if not day else chance.randrange(1, 5)
            steps += [self._step(first + number) for number in range(count)]
            if day:
                steps[first] = replace(steps[first], reopen=True)
            if chance.random() < 0.75:
                steps.append(self._last(len(steps)))
        return tuple(steps)

    def _step(self, number: int) -> Step:
        chance = self._chance
        records = tuple(self._record() for _ in range(chance.choice((0, 1, 2, 4, 8, 12))))
        moved = {}
        if chance.random() < 0.6:
            for place in self._places:
                if chance.random() < 0.85:
                    self._marks[place] += chance.randrange(0, 25)
                    moved[place] = self._marks[place]
        if chance.random() < 0.4:
            self._wall += chance.randrange(1, 20)
        trouble = chance.random()
        return Step(
            number,
            records,
            moved,
            self._wall,
            crash=trouble < 0.12,
            slots=chance.randrange(1, 5) if 0.12 < trouble < 0.2 else 0,
            layout=chance.randrange(1, 1 << 20) if 0.2 < trouble < 0.3 else 0,
            fault=chance.randrange(1, 1 << 20) if 0.3 < trouble < 0.45 else 0,
        )

    def _last(self, number: int) -> Step:
        records = tuple(self._record() for _ in range(self._chance.choice((0, 2, 4))))
        marks = dict.fromkeys(self._places, MAX_TIME)
        fault = self._chance.randrange(1, 1 << 20) if self._chance.random() < 0.2 else 0
        return Step(number, records, marks, self._wall, drain=True, fault=fault)

    def _record(self) -> Sent:
        chance = self._chance
        self._records += 1
        source, partition = chance.choice(self._places)
        sent = Sent(
            self._records,
            source,
            partition,
            chance.choice(_KEYS),
            chance.randrange(100),
            self._marks[source, partition] + chance.randrange(-12, 30),
        )
        if chance.random() > 0.35:
            return sent
        id = chance.randrange(16)
        # Which of two comes first is open where they have different producers: then they are the same.
        again = self._sent.setdefault((self._streams[source], id), sent)
        if source not in self._alone or chance.random() < 0.7:
            sent = replace(sent, key=again.key, n=again.n, timestamp=again.timestamp)
        return replace(sent, id=id)
