"""JSON lines and Parquet on object storage: whole objects of whole epochs, each record in one of them."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import millwheel as mw
from millwheel.objects import Bucket, open_objects
from millwheel.sinks import object_publisher, object_staging
from millwheel.store.memory import MemoryStore
from tests.servers.s3 import Server
from tests.store.driving import run


class Place:
    """A prefix, a sink for it, and the disk of its server to look at."""

    def __init__(self, kind: str, url: str, server: Server) -> None:
        self.kind = kind
        self.url = url
        self.folder = server.folder / "data" / url.removeprefix("s3://").partition("?")[0]

    def sink(self, **options: Any) -> mw.Sink:
        options = {"every": 3_600, **options}
        return (
            mw.sinks.JsonLines(self.url, **options)
            if self.kind == "lines"
            else mw.sinks.Parquet(self.url, **options)
        )

    def begun(self, epoch: int = 0, **options: Any) -> mw.Sink:
        object_publisher.publishers.clear()  # as in a new process
        sink = self.sink(**options)
        sink.open()
        sink.begin("a", epoch)
        return sink

    def objects(self) -> list[Path]:
        return [path for path in self.folder.rglob("part-*") if path.is_file()]

    def values(self) -> list[Any]:
        if self.kind == "lines":
            return sorted(record.value for record in self.sink().records())  # type: ignore[attr-defined]
        table = ds.dataset([str(path) for path in self.objects()]).to_table() if self.objects() else None
        return [] if table is None else sorted(map(json.loads, table["value"].to_pylist()))

    def staged(self) -> list[str]:
        return [path.name for path in self.folder.glob("_millwheel/*/staged/*")]


@pytest.fixture(params=["lines", "parquet"])
def place(request: pytest.FixtureRequest, s3: Server, s3_url: str) -> Place:
    return Place(request.param, s3_url, s3)


def _record(value: Any, time: int = 5) -> mw.Record:
    return mw.Record(value=value, timestamp=time, key="k", stream="out")


def test_many_epochs_are_one_object_which_appears_when_they_are_committed(place: Place) -> None:
    sink = place.begun()
    for epoch in range(1, 6):
        for shard in (0, 1, 0):  # the second time is a retry
            sink.write(epoch, shard, [_record(10 * epoch + shard)])
        sink.commit(epoch)
    sink.write(6, 0, [_record(60)])
    assert place.objects() == []
    sink.close()
    assert len(place.objects()) == 1
    assert place.values() == [10 * epoch + shard for epoch in range(1, 6) for shard in (0, 1)]
    assert place.staged() == ["0000000006-00000000"]


class Crash(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("call", range(1, 8))
def test_a_driver_that_is_gone_before_any_of_its_requests_leaves_each_record_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    sink = place.begun(every=0)
    sink.write(1, 0, [_record(10)])
    sink.commit(1)
    sink.write(2, 0, [_record(20), _record(21, time=mw.DAY)])
    sink.write(2, 1, [_record(22)])
    calls = Counter[str]()

    def crashing(name: str) -> Any:
        real = getattr(Bucket, name)

        def method(self: Any, *arguments: Any) -> Any:
            calls["all"] += 1
            if calls["all"] == call:
                raise Crash
            return real(self, *arguments)

        return method

    with monkeypatch.context() as patch:
        for name in ("create", "put", "delete"):
            patch.setattr(Bucket, name, crashing(name))
        try:
            sink.commit(2)
        except Crash:
            pass
        else:
            assert call > 4  # there are no more requests than that
    again = place.begun(epoch=2)
    again.write(3, 0, [_record(30)])
    again.commit(3)
    again.close()
    assert place.values() == [10, 20, 21, 22, 30]
    assert place.staged() == []


def test_of_two_drivers_that_publish_at_once_one_is_first(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = place.begun()
    stale.write(1, 0, [_record(1)])
    stale.commit(1)
    publisher = object_publisher.publishers[place.url]
    real = Bucket.create
    taken: list[bool] = []

    def overtaken(self: Any, *arguments: Any) -> bool:
        if not taken:
            taken.append(True)
            other = place.begun(epoch=1)  # takes over between the stale driver's look and its entry
            other.close()
        return real(self, *arguments)

    monkeypatch.setattr(Bucket, "create", overtaken)
    publisher.schedule.close()
    assert taken
    assert place.values() == [1]
    assert len(place.objects()) == 1


def test_a_run_writes_there_and_the_log_does_not_grow(place: Place) -> None:
    p = mw.Pipeline("objects")
    p.inject("in", mw.injectors.Records([_record(i, time=i) for i in range(50)], per_epoch=7))
    p.sink("in", place.sink(every=0))
    run(p, MemoryStore())
    assert place.values() == list(range(50))
    assert place.staged() == []
    assert len(list(place.folder.glob("_millwheel/*/log/*"))) == 1


def test_what_windows_emit_is_written_there_too(place: Place) -> None:
    p = mw.Pipeline("objects")
    clicks = p.inject("in", mw.injectors.Records([_record({"n": i}, time=i) for i in range(50)], per_epoch=7))
    clicks.key_by(lambda value: str(value["n"] % 3)).window(mw.windows.tumbling(10)).count("counts")
    p.sink("counts", place.sink(every=0))
    run(p, MemoryStore())
    found = [record.value for record in place.sink().records()] if place.kind == "lines" else None  # type: ignore[attr-defined]
    if found is None:
        table = ds.dataset([str(path) for path in place.objects()]).to_table()
        found = list(map(json.loads, table["value"].to_pylist()))
    assert sum(value["count"] for value in found) == 50
    assert len(found) == 15


def test_a_bucket_that_is_not_there_is_an_error_before_the_first_epoch(s3: Server) -> None:
    for sink in (mw.sinks.JsonLines(s3.url("nowhere", "x")), mw.sinks.Parquet(s3.url("nowhere", "x"))):
        sink.open()
        with pytest.raises(
            mw.MillWheelError, match=r"there is no such bucket\. Create it, or correct the URL"
        ):
            sink.begin("a", 0)


def test_credentials_and_rights_that_are_missing_are_errors_before_the_first_epoch(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore
    from obstore.exceptions import PermissionDeniedError

    def refused(*rest: Any, **more: Any) -> Any:
        raise PermissionDeniedError("403 Forbidden: AccessDenied")

    object_publisher.publishers.clear()
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
        sink = place.sink()
        sink.open()
        with pytest.raises(mw.MillWheelError, match="credentials are not accepted") as raised:
            sink.begin("a", 0)
        assert "wrong-secret" not in str(raised.value)
    with monkeypatch.context() as patch:
        for name in ("put", "list"):
            patch.setattr(obstore, name, refused)
        sink = place.sink()
        sink.open()
        with pytest.raises(mw.MillWheelError, match="need the rights to list, read, write and delete"):
            sink.begin("a", 0)


def test_a_server_that_is_away_is_an_error_and_nothing_is_lost(
    place: Place, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (object_publisher, object_staging):
        monkeypatch.setattr(module, "open_objects", functools.partial(open_objects, patience=0.5))
    sink = place.begun(every=0)
    sink.write(1, 0, [_record(10)])
    s3.stop()
    try:
        with pytest.raises(mw.MillWheelError, match="the server cannot be reached"):
            sink.commit(1)
        with pytest.raises(mw.MillWheelError, match="the server cannot be reached"):
            sink.close()
        with pytest.raises(mw.MillWheelError, match="the server cannot be reached"):
            place.begun(epoch=1)
    finally:
        s3.start()
    again = place.begun(epoch=1)
    assert place.values() == [10]
    again.close()
