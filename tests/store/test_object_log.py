"""A log of numbered objects: one write for each number, whoever else writes and whatever is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millwheel.errors import StoreError
from millwheel.objects import Folder, Unanswered
from millwheel.store.base import Get
from millwheel.store.objects.log import Log, Payload
from millwheel.store.objects.object_store import ObjectStore
from millwheel.store.objects.shard import Clocks, ObjectShard
from tests.store.conftest import Host
from tests.store.driving import contents


def _logged(tmp_path: Path) -> list[str]:
    return sorted(path.name.lstrip("0") for path in (tmp_path / "objects" / "shard-00" / "log").iterdir())


class TestTwoHosts:
    def test_what_one_host_writes_the_other_reads(self, host: Host) -> None:
        one, other = host("one"), host("other")
        one.shards[0].write([(b"a", b"1"), (b"b", b"1")])
        assert contents(other.shards[0]) == {b"a": b"1", b"b": b"1"}
        other.shards[0].write([(b"b", b"2")], [b"a"])
        assert contents(one.shards[0]) == {b"b": b"2"}

    def test_a_write_is_one_object_and_a_lost_race_makes_none(self, host: Host, tmp_path: Path) -> None:
        one, other = host("one"), host("other")
        one.shards[0].write([(b"a", b"1")])
        other.shards[0].write([(b"b", b"2")])  # its copy is behind: number 1 is taken
        one.shards[0].write([(b"c", b"3")])  # and so is number 2
        assert _logged(tmp_path) == ["1", "2", "3"]
        assert contents(one.shards[0]) == contents(other.shards[0]) == {b"a": b"1", b"b": b"2", b"c": b"3"}

    def test_the_guard_sees_the_write_that_was_faster(self, host: Host, tmp_path: Path) -> None:
        one, other = host("one"), host("other")
        contents(other.shards[0])
        one.shards[0].write([(b"sequencer", b"2")])

        def guard(get: Get) -> None:
            if get(b"sequencer") == b"2":
                raise StoreError("fenced")

        with pytest.raises(StoreError, match="fenced"):
            other.shards[0].write([(b"row", b"stale")], (), guard)
        assert _logged(tmp_path) == ["1"]
        assert contents(one.shards[0]) == {b"sequencer": b"2"}

    def test_a_copy_far_behind_reads_all_of_it(self, host: Host) -> None:
        one, other = host("one"), host("other")
        contents(other.shards[0])
        for number in range(50):
            one.shards[0].write([(b"k%d" % (number % 7), b"%d" % number)])
        assert contents(other.shards[0]) == contents(one.shards[0])


class TestLostAnswers:
    @pytest.fixture
    def losing(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The next requests to create an object go as they are listed here."""
        fates: list[str] = []
        create = Folder.create

        def losing(self: Folder, name: str, data: bytes) -> bool:
            fate = fates.pop(0) if fates and "/log/" in name else ""
            if fate == "before":
                raise Unanswered("it was cut off")
            done = create(self, name, data)
            if fate == "behind":
                raise Unanswered("the answer was lost")
            return create(self, name, data) if fate == "twice" else done

        monkeypatch.setattr(Folder, "create", losing)
        return fates

    @pytest.mark.parametrize(
        "fates", [["before"], ["behind"], ["twice"], ["before", "before", "behind"]], ids="-".join
    )
    def test_a_write_is_made_once(
        self, fates: list[str], losing: list[str], host: Host, tmp_path: Path
    ) -> None:
        store = host("one")
        store.shards[0].write([(b"a", b"1")])
        losing += fates
        seen: list[bytes | None] = []
        store.shards[0].write([(b"a", b"2")], (), lambda get: seen.append(get(b"a")))
        assert seen == [b"1"]
        assert _logged(tmp_path) == ["1", "2"]
        assert contents(store.shards[0]) == {b"a": b"2"}

    def test_one_whose_writer_gave_up_is_there_for_everybody(self, losing: list[str], host: Host) -> None:
        one, other = host("one"), host("other")
        losing += ["behind"] + ["before"] * 1000
        with pytest.raises(StoreError, match="it was cut off"):
            one.shards[0].write([(b"a", b"1")])
        losing.clear()
        assert contents(other.shards[0]) == {b"a": b"1"}
        one.shards[0].write([(b"b", b"2")])
        assert contents(one.shards[0]) == {b"a": b"1", b"b": b"2"}


class TestDamage:
    @pytest.fixture
    def last(self, host: Host, tmp_path: Path) -> Path:
        store = host("one")
        store.shards[0].write([(b"a", b"1" * 2000)])
        store.shards[0].write([(b"b", b"2" * 2000)])
        return tmp_path / "objects" / "shard-00" / "log" / f"{2:020d}"

    @pytest.mark.parametrize("place", [2, 12, 30, -1])
    def test_a_changed_byte_is_refused_and_named(self, place: int, last: Path, host: Host) -> None:
        data = bytearray(last.read_bytes())
        data[place] ^= 1
        last.write_bytes(data)
        with pytest.raises(StoreError, match=r"shard-00/log/0*2 is damaged"):
            contents(host("other").shards[0])
        with pytest.raises(StoreError, match="is damaged"):
            host("third", readonly=True).verify()

    def test_an_object_that_was_cut_off_is_refused(self, last: Path, host: Host) -> None:
        last.write_bytes(last.read_bytes()[:20])
        with pytest.raises(StoreError, match="its end is missing"):
            contents(host("other").shards[0])

    def test_an_object_under_another_number_is_refused(self, last: Path, host: Host) -> None:
        last.write_bytes(last.with_name(f"{1:020d}").read_bytes())
        with pytest.raises(StoreError, match="it is number 1 of"):
            contents(host("other").shards[0])


class TestRefused:
    @pytest.mark.parametrize("key", [b"", b"x" * 512])
    def test_a_key_that_no_copy_takes_is_not_written(self, key: bytes, host: Host, tmp_path: Path) -> None:
        store = host("one")
        store.shards[0].write([(b"a", b"1")])
        with pytest.raises(StoreError, match="from 1 to 511 bytes"):
            store.shards[0].write([(key, b"")])
        assert _logged(tmp_path) == ["1"]
        assert contents(store.shards[0]) == {b"a": b"1"}

    def test_a_store_that_was_opened_to_be_read_is_not_written(self, host: Host, tmp_path: Path) -> None:
        host("one").shards[0].write([(b"a", b"1")])
        reader = host("other", readonly=True)
        with pytest.raises(StoreError, match="read only"):
            reader.shards[0].write([(b"b", b"")])
        assert contents(reader.shards[0]) == {b"a": b"1"}
        assert _logged(tmp_path) == ["1"]


class TestRemoved:
    """A number whose object was removed behind a snapshot is not one that was never written."""

    GRACE = 1000.0

    @pytest.fixture
    def now(self) -> list[float]:
        return [0.0]

    @pytest.fixture
    def hosts(self, host: Host, now: list[float]) -> tuple[ObjectStore, ObjectStore]:
        found = host("asleep"), host("awake")
        for store in found:
            shard = store.shards[0]
            assert isinstance(shard, ObjectShard)
            shard.clocks = Clocks(lambda: now[0], lambda: 5.0)
            shard.grace = self.GRACE
        return found

    def _go_on(self, awake: ObjectStore, now: list[float]) -> None:
        """The other host writes on, and everything that is old is removed."""
        shard = awake.shards[0]
        assert isinstance(shard, ObjectShard)
        for number in range(5):
            shard.write([(b"n", b"%d" % number)])
        now[0] += self.GRACE
        shard.checkpoint(grace=0)
        assert awake.objects.get(shard.log.name(2)) is None

    def test_a_copy_that_is_too_old_is_made_again(
        self, hosts: tuple[ObjectStore, ObjectStore], now: list[float]
    ) -> None:
        asleep, awake = hosts
        awake.shards[0].write([(b"first", b"")])
        assert contents(asleep.shards[0]) == {b"first": b""}
        self._go_on(awake, now)
        assert contents(asleep.shards[0]) == {b"first": b"", b"n": b"4"}

    def test_a_write_under_a_number_that_was_removed_is_refused(
        self, hosts: tuple[ObjectStore, ObjectStore], now: list[float]
    ) -> None:
        asleep, awake = hosts
        awake.shards[0].write([(b"first", b"")])
        contents(asleep.shards[0])

        def sleeps(get: Get) -> None:
            self._go_on(awake, now)

        with pytest.raises(StoreError, match=r"was suspended for longer than the log is kept"):
            asleep.shards[0].write([(b"lost", b"")], (), sleeps)
        assert contents(asleep.shards[0]) == {b"first": b"", b"n": b"4"}
        assert contents(awake.shards[0]) == {b"first": b"", b"n": b"4"}


class TestHalfMadeObjects:
    """A server that was killed in a put says that the object exists, and does not have it."""

    class Halved(Folder):
        half = True

        def create(self, name: str, data: bytes) -> bool:
            return False if self.half else super().create(name, data)

    @pytest.fixture
    def halved(self, tmp_path: Path) -> Halved:
        return self.Halved(tmp_path)

    def test_the_write_is_tried_for_the_patience_and_the_error_names_the_object(self, halved: Halved) -> None:
        seconds = [0.0]
        log = Log(halved, "s", "f", patience=60.0, clock=lambda: seconds[0], pause=_passing(seconds))
        with pytest.raises(StoreError, match=r"f/log/0*1, as it exists.*60 seconds.*Remove the object"):
            log.append(1, Payload.of([(b"a", b"1")], (), 1))
        assert 60 < seconds[0] < 62

    def test_a_server_that_has_recovered_is_waited_for(self, halved: Halved) -> None:
        seconds = [0.0]

        def pause(length: float) -> None:
            seconds[0] += length
            halved.half = seconds[0] < 5

        log = Log(halved, "s", "f", patience=60.0, clock=lambda: seconds[0], pause=pause)
        assert log.append(1, Payload.of([(b"a", b"1")], (), 1)) is None
        assert log.read(1) is not None


def _passing(seconds: list[float]) -> Callable[[float], None]:
    def pause(length: float) -> None:
        seconds[0] += length

    return pause
