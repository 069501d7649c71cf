"""Object storage by URL: what is written, listed and removed, and what is said where that fails."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.objects import Objects, open_client, open_objects
from millwheel.store.open import open_store
from tests.servers.s3 import Server


@pytest.fixture(params=["folder", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "folder":
        return open_objects(f"file://{tmp_path}/objects")
    return open_objects(request.getfixturevalue("s3_url"))


def test_an_object_is_created_once_and_the_first_one_stays(objects: Objects) -> None:
    assert objects.create("log/1", b"first")
    assert not objects.create("log/1", b"second")
    assert objects.get("log/1") == b"first"


def test_of_many_that_create_an_object_at_once_one_has_done_it(objects: Objects) -> None:
    for number in range(5):
        made: list[int] = []
        start = threading.Barrier(8)

        def create(
            writer: int, number: int = number, made: list[int] = made, start: threading.Barrier = start
        ) -> None:
            start.wait()
            if objects.create(f"log/{number}", b"%d" % writer * 1000):
                made.append(writer)

        threads = [threading.Thread(target=create, args=(writer,)) for writer in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 1
        assert objects.get(f"log/{number}") == b"%d" % made[0] * 1000


def test_an_object_is_replaced_read_in_part_and_removed(objects: Objects) -> None:
    objects.put("a", b"old")
    objects.put("a", b"new value")
    assert objects.get("a") == b"new value"
    assert objects.get("a", length=3) == b"new"
    assert objects.get("a", length=100) == b"new value"
    assert objects.get("a", start=4, length=3) == b"val"
    assert objects.get("a", start=4, length=100) == b"value"
    assert objects.get("b", start=4, length=3) is None
    objects.delete(["a", "was never there"])
    assert objects.get("a") is None
    objects.delete([])


def test_a_list_has_the_objects_of_a_folder_in_order_and_those_behind_a_name(objects: Objects) -> None:
    for name in ("log/3", "log/1", "log/2", "logs/1", "other"):
        objects.put(name, name.encode())
    assert [entry.name for entry in objects.list("log")] == ["log/1", "log/2", "log/3"]
    assert [entry.name for entry in objects.list("log", after="log/1")] == ["log/2", "log/3"]
    assert objects.list("log")[0].size == 5
    assert objects.list("nothing") == []


def test_an_object_of_some_megabytes_is_whole(objects: Objects) -> None:
    data = bytes(range(256)) * 50_000
    assert objects.create("large", data)
    assert objects.get("large") == data


def test_a_bucket_that_is_not_there_is_said(s3: Server) -> None:
    objects = open_objects(s3.url("no-such-bucket", "prefix"))
    for request in (lambda: objects.create("a", b""), lambda: objects.get("a"), lambda: objects.list("log")):
        with pytest.raises(mw.MillWheelError, match=r"no-such-bucket.*there is no such bucket\. Create it"):
            request()


def test_credentials_that_are_wrong_are_said_and_not_shown(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(mw.MillWheelError, match="credentials are not accepted") as raised:
        open_objects(s3_url).get("a")
    assert "wrong-secret" not in str(raised.value)


def test_credentials_that_are_missing_are_said(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    # Nobody answers there: the role of a machine is asked for at an address of its network.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://169.254.169.254:1")
    with pytest.raises(mw.MillWheelError, match=r"there are no credentials\. Set AWS_ACCESS_KEY_ID"):
        open_objects(s3_url, patience=1).get("a")


def test_a_wrong_region_is_said(s3_url: str) -> None:
    with pytest.raises(mw.MillWheelError, match="the region is not the bucket's"):
        open_objects(s3_url.replace("region=us-east-1", "region=eu-west-7")).get("a")


def test_a_server_that_is_not_there_is_said(s3: Server) -> None:
    with pytest.raises(mw.MillWheelError, match="cannot be reached"):
        open_objects(s3.url("tests", "prefix", port=1), patience=0.5).get("a")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket/prefix?password=x", "there is no parameter password"),
        ("file:///", "names no folder"),
        ("file://shared/x", "names no folder"),
        ("ftp://bucket/prefix", "no object storage for ftp"),
    ],
)
def test_a_url_that_is_wrong_is_refused_before_anything_is_sent(url: str, said: str) -> None:
    with pytest.raises(mw.MillWheelError, match=said):
        open_objects(url)


def test_errors_are_of_the_kind_that_the_caller_asks_for(s3: Server) -> None:
    objects = open_objects(s3.url("no-such-bucket", "prefix"), error=mw.InputError)
    with pytest.raises(mw.InputError, match="no such bucket"):
        objects.get("a")


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(mw.MillWheelError, match=r"pip install 'millwheel-spark\[object\]'"):
        open_client("s3://bucket/prefix")


def test_a_driver_removes_what_a_killed_process_has_left_in_a_folder(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    store.shards[0].write([(b"a", b"1")])
    old, new = (tmp_path / "store/shard-00/log" / f".part-{name}" for name in ("old", "new"))
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    two_days_ago = time.time() - 2 * 86_400
    os.utime(old, (two_days_ago, two_days_ago))
    os.utime(tmp_path / "store/store.json", (two_days_ago, two_days_ago))
    store.lock("a driver")
    assert not old.exists()
    assert new.exists(), "its writer may be alive"
    assert (tmp_path / "store/store.json").exists()
    store.close()
