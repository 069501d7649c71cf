"""The injectors in the driver: partitions, offsets, and low watermarks (5.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millwheel.master.commit_entry import Holder
from millwheel.master.finished import Finished
from millwheel.master.journal import Committed, Partition
from millwheel.master.ranges import Poll, SkewLimit, caught_up, choose_ranges
from millwheel.model.injector import Offset
from millwheel.model.names import SourceName, WatermarkName, check_name
from millwheel.model.pipeline import Source
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.watermark.percentile import EXACT, is_of, stragglers, variant
from millwheel.watermark.source import Read, SourceMark, ended_at, read_mark, vouched, with_slack
from millwheel.worker.plan import Plan, Range
from millwheel.worker.report import IntervalReport


class Sources:
    """Invariant: offsets and watermarks of an injector are those of the last commit."""

    def __init__(
        self,
        sources: Sequence[Source],
        partitions: dict[SourceName, dict[str, Partition]],
        watermarks: dict[WatermarkName, int],
        percentiles: Sequence[float] = (),
        closes: bool = True,
    ) -> None:
        self._sources = sources
        self._closes = closes
        self._percentiles = percentiles
        self._partitions = {source.name: partitions.get(source.name, {}) for source in sources}
        self._polled: dict[SourceName, Poll] = {}
        self._finished: dict[SourceName, Finished] = {source.name: Finished() for source in sources}
        self._active: dict[tuple[SourceName, str], int] = {}
        self._jumped = 0
        self._turn = 0
        self._turns: dict[tuple[SourceName, str], int] = {}
        """By partition: when it was last read, in calls of `choose`."""
        self._spans: dict[tuple[SourceName, str], float] = {}
        self._exhausted = False
        # A percentile that is new begins at the exact watermark.
        self.watermarks = {
            variant(source.name, p): watermarks.get(
                variant(source.name, p), watermarks.get(source.name, MIN_TIME)
            )
            for source in sources
            for p in (EXACT, *percentiles)
        }
        """By injector: its low watermark at the last commit, and its percentiles."""
        self.ignored: dict[WatermarkName, list[str]] = {}
        """By percentile watermark: the partitions that it ignores."""
        self.idle: dict[SourceName, list[str]] = {}
        """By injector: the partitions that have been idle too long to hold the watermark."""
        self._empty: dict[SourceName, str] = {}
        self.holders: dict[SourceName, Holder] = {}
        """By injector: the partition that holds its watermark, its value and the reason."""
        self.held_back = False
        """Whether the limit of skew kept something from being read."""

    @property
    def partitions(self) -> Mapping[SourceName, Mapping[str, Partition]]:
        """By injector and partition: its progress at the last commit."""
        return self._partitions

    def notify_again(self) -> None:
        """Repeats the last commit to the injectors: the last driver may have died before."""
        for source in self._sources:
            offsets = {name: state.offset for name, state in self._partitions[source.name].items()}
            if offsets and not source.reader:
                source.injector.commit(offsets)

    def begin(self) -> None:
        """Notifies the injectors that a run begins."""
        for source in self._sources:
            if not source.reader:
                source.injector.run_begins()

    def poll(self, now: int) -> None:
        """Polls the injectors."""
        self._exhausted = True
        for source in self._sources:
            poll = self._polled[source.name] = self._ask(source)
            partitions = self._partitions[source.name]
            endless = not poll.bounded and not self._closes  # then its first poll is its end
            done = endless or (poll.bounded and all(name in poll.ends for name in source.injector.expected))
            finished = self._finished[source.name]
            finished.update(poll.ends)
            for name, end in finished.others.items():
                if name not in partitions:
                    check_name("a partition", name, f"the injector of {source.stream!r}", empty=True)
                state = partitions.setdefault(name, Partition())
                if caught_up(state.offset, end):
                    self._active.setdefault((source.name, name), now)
                    state.watermark = vouched(source.injector, name, end)
                    if state.watermark == MAX_TIME:
                        finished.add(name, end, state.newest)
                    done = done and (endless or state.watermark == MAX_TIME)
                else:
                    self._active[source.name, name] = now
                    done = False
            self._exhausted = self._exhausted and done

    def _ask(self, source: Source) -> Poll:
        """Polls an injector; in a run that ends, an unbounded one keeps its first end."""
        bounded, known = source.injector.bounded, self._polled.get(source.name)
        if known is not None and not bounded and not self._closes:
            return known
        return Poll(self._read_by_others(source) if source.reader else dict(source.injector.poll()), bounded)

    def _read_by_others(self, source: Source) -> dict[str, Offset]:
        """The offsets of the others, which a second reader never passes, so it can join."""
        return {name: state.offset for name, state in self._partitions[source.name.original].items()}

    @property
    def polled(self) -> bool:
        """Whether the injectors were ever polled."""
        return bool(self._polled)

    def _gaps(self) -> dict[str, int]:
        """By computation that catches up: the estimated number of records to the others."""
        gaps: dict[str, int] = {}
        for source in self._sources:
            if source.reader:
                own, ends = self._partitions[source.name], self._read_by_others(source)
                gaps[source.reader] = gaps.get(source.reader, 0) + sum(
                    max(source.injector.size(name, own[name].offset if name in own else None, end), 1)
                    for name, end in ends.items()
                    if (own[name].offset if name in own else None) != end
                )
        return gaps

    @property
    def level(self) -> bool:
        """Whether each computation that catches up is done; valid after a poll."""
        return self.polled and 0 in self._gaps().values()

    @property
    def exhausted(self) -> bool:
        """Whether the injectors will never have more input; valid after a poll."""
        return self._exhausted

    def end(self) -> set[SourceName]:
        """Sets watermarks that ended back to how far event time was (semantics 9)."""
        return self._lower([source for source in self._sources if self._at_end(source)])

    def reopen(self) -> set[SourceName]:
        """Reopens injectors that have more input: the last run did not reach its end.

        Valid after a poll; returns the reopened ones.
        """
        return self._lower([s for s in self._sources if self._at_end(s) and not self._has_ended(s)])

    def by_stream(self) -> dict[str, int]:
        """By injected stream: its low watermark at the last commit."""
        found: dict[str, int] = {}
        for source in self._sources:
            mark = self.watermarks[source.name]
            found[source.stream] = min(mark, found.get(source.stream, MAX_TIME))
        return found

    def _at_end(self, source: Source) -> bool:
        return self.watermarks[source.name] == MAX_TIME

    def _has_ended(self, source: Source) -> bool:
        poll, partitions = self._polled[source.name], self._partitions[source.name]
        return poll.bounded and all(
            caught_up(partitions[name].offset, end) and partitions[name].watermark == MAX_TIME
            for name, end in poll.ends.items()
        )

    def _lower(self, sources: Iterable[Source]) -> set[SourceName]:
        lowered = set()
        for source in sources:
            mark = ended_at(self._newest(source.stream))
            self.watermarks |= {name: mark for name in self.watermarks if is_of(name, source.name)}
            self.holders[source.name] = Holder(None, mark, "was read to its end by the last run")
            lowered.add(source.name)
        return lowered

    def _newest(self, stream: str) -> int:
        """The newest timestamp ever injected into a stream."""
        return max(
            (
                state.newest
                for source in self._sources
                if source.stream == stream
                for state in self._partitions[source.name].values()
            ),
            default=MIN_TIME,
        )

    def choose(
        self, bound: int, tasks: int, unsplit: int, ceiling: int, *, careful: bool = False
    ) -> list[Range]:
        """The ranges for the next epoch; nothing newer than ``ceiling``, if known."""
        skew = SkewLimit(ceiling, self._spans, self._furthest_behind(), careful)
        # One computation catches up at a time. One that is nearly done reads alone for an epoch: then all
        # are at the same offsets.
        reader, gap = next((entry for entry in self._gaps().items() if entry[1]), ("", 0))
        wanted = {reader} if 0 < gap <= bound else {reader, ""}
        sources = [source for source in self._sources if source.reader in wanted]
        polled = {
            name: poll._replace(ends=self._finished[name].others) for name, poll in self._polled.items()
        }
        ranges = choose_ranges(sources, polled, self._partitions, bound, tasks, unsplit, skew, self._turns)
        self.held_back = skew.held_back
        self._turn += 1
        self._turns |= {(item.source, item.partition): self._turn for item in ranges}
        return ranges

    def _furthest_behind(self) -> set[SourceName]:
        """The injectors with the lowest watermark."""
        marks = {s.name: self.watermarks[s.name] for s in self._sources if not s.reader}
        lowest = min(marks.values(), default=MAX_TIME)
        return {name for name, mark in marks.items() if mark == lowest}

    def size(self, ranges: Iterable[Range]) -> int:
        """The estimated number of records in ranges."""
        injectors = {source.name: source.injector for source in self._sources}
        return sum(injectors[r.source].size(r.partition, r.start, r.end) for r in ranges)

    def lag(self) -> dict[str, int]:
        """By injector: the estimated number of records of the last poll not read yet."""
        lag: dict[str, int] = {}
        for source in self._sources:
            partitions, others = self._partitions[source.name], self._finished[source.name].others
            lag[str(source.name)] = sum(
                source.injector.size(name, partitions[name].offset, end)
                for name, end in others.items()
                if not caught_up(partitions[name].offset, end)
            )
        return lag

    def marks(self, ranges: Iterable[Range], now: int) -> dict[WatermarkName, SourceMark]:
        """The watermark of each injector without the ranges that this epoch reads."""
        reading = {(r.source, r.partition) for r in ranges}
        self.idle = {}
        self.holders = {}
        self.ignored = {}
        marks: dict[WatermarkName, SourceMark] = {}
        for source in self._sources:
            for p in self._percentiles:
                fast = variant(source.name, p)
                left = stragglers(self._pending(source), p)
                self.ignored[fast] = sorted(left)
                mark = self._mark(source, reading, now, left)
                marks[fast] = mark._replace(previous=self.watermarks[fast])
            self.idle.pop(source.name, None)
            self.holders.pop(source.name, None)
            marks[source.name] = self._mark(source, reading, now, set())
        return marks

    def empty_changed(self) -> bool:
        """Whether the set of injectors without partitions changed; True once per change."""
        empty = {name: by.why for name, by in self.holders.items() if by.watermark is None}
        before, self._empty = self._empty, empty
        return empty != before

    def committed(self) -> dict[WatermarkName, SourceMark]:
        """The watermark of each injector in the last epoch, for one that continues it."""
        return {
            name: SourceMark(watermark, MAX_TIME, MIN_TIME, None, False)
            for name, watermark in self.watermarks.items()
        }

    def _pending(self, source: Source) -> Iterable[tuple[int, int, str]]:
        """Of each partition: its event time, its number of unread records, its name."""
        injector = source.injector
        for name, end in self._polled[source.name].ends.items():
            state = self._partitions[source.name][name]
            mark = with_slack(vouched(injector, name, state.offset), state.newest, injector.slack)
            waiting = 1 if caught_up(state.offset, end) else injector.size(name, state.offset, end)
            yield mark, max(waiting, 1), name

    def _mark(
        self, source: Source, reading: set[tuple[SourceName, str]], now: int, ignored: set[str]
    ) -> SourceMark:
        injector, poll, partitions = source.injector, self._polled[source.name], self._partitions[source.name]
        finished = self._finished[source.name]
        held, newest, final = MAX_TIME, finished.newest, poll.bounded
        for name in injector.expected:
            if name not in poll.ends:  # it has not appeared: its last known value holds
                mark, final = self._last_known(source, name), False
                held = self._hold(source, held, name, mark, "is expected, and not there")
        for name, end in finished.others.items():
            state = partitions[name]
            newest = max(newest, state.newest)
            if (source.name, name) in reading or name in ignored:
                continue
            mark, why = state.watermark, "has nothing new"
            if not caught_up(state.offset, end):
                final = False
                mark, why = vouched(injector, name, state.offset), "has input that is not read yet"
            elif mark < MAX_TIME and self._is_idle(source, name, now):
                final = False
                self.idle.setdefault(source.name, []).append(name)
                continue
            mark = with_slack(mark, state.newest, injector.slack)
            final = final and mark == MAX_TIME
            held = self._hold(source, held, name, mark, why)
        if not poll.ends and not injector.expected:
            self.holders[source.name] = Holder(None, None, injector.why_empty())
        previous = self.watermarks[source.name]
        if not self._closes:
            newest = self._newest(source.stream)
        return SourceMark(previous, held, newest, injector.slack, final, not self._closes)

    def _last_known(self, source: Source, name: str) -> int:
        """The watermark of a missing partition; its end in an earlier run does not count."""
        mark = self._partitions[source.name].get(name, Partition()).watermark
        if mark == MAX_TIME and (source.name, name) not in self._active:
            return self.watermarks[source.name]
        return mark

    def _hold(self, source: Source, held: int, name: str, mark: int, why: str) -> int:
        """The lower of two watermarks; records which partition holds it."""
        if mark >= held:
            return held
        self.holders[source.name] = Holder(name, mark, why)
        return mark

    def pass_over(self, jumped: int) -> None:
        """Excludes jumps of the clock, in total so far, from partitions' idle times."""
        if jumped != self._jumped:
            self._active = {place: time + jumped - self._jumped for place, time in self._active.items()}
            self._jumped = jumped

    def _is_idle(self, source: Source, name: str, now: int) -> bool:
        after = source.injector.idle_after
        return after is not None and now - self._active[source.name, name] >= after

    def commit(self, plan: Plan, reports: Iterable[IntervalReport]) -> list[Committed]:
        """Applies an epoch's reads; returns the partitions that changed, for the journal."""
        newest: dict[tuple[SourceName, str], int] = {}
        records: dict[tuple[SourceName, str], int] = {}
        for report in reports:
            for source, partition, top, count in report.newest:
                place = (source, partition)
                newest[place] = max(newest.get(place, top), top)
                records[place] = records.get(place, 0) + count
        slack = {source.name: source.injector.slack for source in self._sources}
        reads: dict[SourceName, list[Read]] = {}
        holding: dict[SourceName, int] = {}
        changed: dict[tuple[SourceName, str], Partition] = {}
        for item in plan.ranges:
            place = (item.source, item.partition)
            state = self._partitions[item.source].setdefault(item.partition, Partition())
            top = max(state.newest, newest.get(place, MIN_TIME))
            if state.newest > MIN_TIME and records.get(place) and item.last:
                self._spans[place] = (top - item.newest) / records[place]
            state.newest = top
            state.offset = item.end
            reads.setdefault(item.source, []).append(
                Read(item.partition, item.watermark, state.newest, item.last)
            )
            if item.last:
                state.watermark = item.watermark
                held = with_slack(item.watermark, state.newest, slack[item.source])
                if held < holding.setdefault(item.source, plan.sources[item.source].held):
                    holding[item.source] = held
                    self.holders[item.source] = Holder(item.partition, held, "was read so far")
            changed[place] = state
        marks = dict(plan.sources)
        for source, found in reads.items():
            for each in marks:
                if is_of(each, source):
                    ignored = plan.ignored.get(each, ())
                    marks[each] = marks[each].join(*read_mark(found, slack[source], ignored))
        self.watermarks = {name: mark.watermark() for name, mark in marks.items()}
        return [(source, name, state) for (source, name), state in changed.items()]

    def notify(self, changed: Iterable[Committed]) -> None:
        """Passes committed offsets to the injectors."""
        offsets: dict[SourceName, dict[str, object]] = {}
        for source, name, state in changed:
            offsets.setdefault(source, {})[name] = state.offset
        for item in self._sources:
            if item.name in offsets and not item.reader:
                item.injector.commit(offsets[item.name])
