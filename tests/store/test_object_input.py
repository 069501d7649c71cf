"""What is refused on object storage, with what to do, and with nothing written; and one driver at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.errors import StoreError
from millwheel.objects import Folder
from millwheel.store.objects.lease import Lease, process
from millwheel.store.objects.object_store import ObjectStore
from millwheel.store.open import open_existing, open_store, open_to_read, place_of
from tests.computations import Idle
from tests.servers.clock import ahead
from tests.servers.processes import Unavailable
from tests.servers.s3 import Server, server
from tests.store.conftest import Host
from tests.store.driving import run


def _objects(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class TestBadInput:
    def test_a_bucket_that_is_not_there(self, s3: Server) -> None:
        with pytest.raises(StoreError, match="there is no such bucket"):
            open_store(s3.url("no-such-bucket", "prefix"))

    def test_no_credentials(self, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://169.254.169.254:1")
        with pytest.raises(StoreError, match="there are no credentials"):
            open_store(f"{s3_url}&patience=1")

    def test_a_wrong_region(self, s3_url: str) -> None:
        with pytest.raises(StoreError, match="the region is not the bucket's"):
            open_store(s3_url.replace("us-east-1", "eu-west-7"))

    def test_a_clock_that_is_wrong(self, s3: Server, tmp_path: Path) -> None:
        try:
            wrong = ahead(86_400, tmp_path)
        except Unavailable as reason:
            pytest.skip(str(reason))
        url = s3.url("tests", "a-day-ahead")
        script = "import sys; from millwheel.store.open import open_store; open_store(sys.argv[1])"
        done = subprocess.run(
            [sys.executable, "-c", script, url], env=os.environ | wrong, capture_output=True, text=True
        )
        assert "StoreError: s3://tests/a-day-ahead" in done.stderr
        assert "the clock of this machine differs from the server's" in done.stderr
        assert not (s3.folder / "data" / "tests" / "a-day-ahead").exists()

    def test_no_right_to_write(self) -> None:
        try:
            with server("--readonly") as found:
                found.make_bucket("tests")
                with pytest.raises(StoreError, match="access is denied"):
                    open_store(found.url("tests", "prefix"))
                assert _objects(found.folder / "data") == []
        except Unavailable as reason:
            pytest.skip(str(reason))

    def test_a_server_without_conditional_puts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def create(self: Folder, name: str, data: bytes) -> bool:
            self.put(name, data)  # as a server does that does not know the condition
            return True

        with monkeypatch.context() as patch:
            patch.setattr(Folder, "create", create)
            with pytest.raises(StoreError, match="cannot keep two writers apart"):
                open_store(f"file://{tmp_path}/objects")
        assert _objects(tmp_path) == []
        store = open_store(f"file://{tmp_path}/objects")
        monkeypatch.setattr(Folder, "create", create)
        with pytest.raises(StoreError, match="cannot keep two writers apart"):
            store.lock("a driver")
        store.close()

    def test_a_prefix_with_other_objects(self, tmp_path: Path) -> None:
        Folder(tmp_path).put("data/part-0.parquet", b"PAR1")
        with pytest.raises(StoreError, match=r"other objects, such as data/part-0\.parquet"):
            open_store(f"file://{tmp_path}")
        assert _objects(tmp_path) == ["data/part-0.parquet"]

    def test_a_prefix_of_another_pipeline(self, tmp_path: Path) -> None:
        def pipeline(name: str) -> mw.Pipeline:
            p = mw.Pipeline(name)
            p.inject("in", mw.injectors.Records([mw.Record(value=1, timestamp=1)]))
            p.add(Idle(), name="C", inputs={"in": mw.by_key})
            return p

        url = f"file://{tmp_path}/objects"
        run(pipeline("theirs"), open_store(url))
        before = _objects(tmp_path / "objects")
        with (
            closing(open_store(url)) as store,
            pytest.raises(StoreError, match="belongs to the pipeline 'theirs', not to 'mine'"),
        ):
            run(pipeline("mine"), store)
        assert _objects(tmp_path / "objects") == before

    @pytest.mark.parametrize("given", ["patience=soon", "patience=0", "grace=-1", "grace=nan"])
    def test_a_parameter_that_is_no_number_of_seconds(self, given: str, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match=f"{given.partition('=')[0]} is a number of seconds"):
            open_store(f"file://{tmp_path}/objects?{given}")

    def test_a_store_that_is_not_there_is_not_made(self, tmp_path: Path) -> None:
        for open_it in (open_existing, open_to_read):
            with pytest.raises(StoreError, match="there is no store at"):
                open_it(f"file://{tmp_path}/objects")
        assert _objects(tmp_path) == []

    def test_an_identity_that_was_changed(self, tmp_path: Path) -> None:
        open_store(f"file://{tmp_path}/objects").close()
        path = tmp_path / "objects" / "store.json"
        path.write_bytes(path.read_bytes().replace(b'"shards": 1', b'"shards": 2'))
        with pytest.raises(StoreError, match=r"store\.json is not what was written"):
            open_store(f"file://{tmp_path}/objects")


class TestAddress:
    def test_the_address_opens_the_same_store(self, s3_url: str) -> None:
        store = open_store(f"{s3_url}&patience=30", shards=4)
        again = open_store(store.address)
        assert again.address == store.address
        assert len(again.shards) == 4
        assert place_of(store.address) == f"{s3_url}&patience=30"
        store.close()
        again.close()

    def test_an_address_of_a_store_that_was_made_anew_is_refused(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/objects"
        store = open_store(url)
        store.close()
        (tmp_path / "objects" / "store.json").unlink()
        with pytest.raises(StoreError, match="there is no store"):
            open_store(store.address)
        open_store(url).close()
        with pytest.raises(StoreError, match="it was removed and made again"):
            open_store(store.address)

    def test_of_two_that_make_a_store_at_once_the_first_decides(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = f"file://{tmp_path}/objects"
        made: list[ObjectStore] = []
        create = Folder.create

        def in_between(self: Folder, name: str, data: bytes) -> bool:
            if name == "store.json" and not made:
                monkeypatch.setattr(Folder, "create", create)
                made.append(ObjectStore(url, shards=2))
            return create(self, name, data)

        monkeypatch.setattr(Folder, "create", in_between)
        second = ObjectStore(url, shards=8)
        assert len(second.shards) == len(made[0].shards) == 2
        assert second.address == made[0].address
        second.close()
        made[0].close()


class TestOneDriver:
    def test_a_second_driver_is_refused_with_the_name_of_the_first(self, host: Host) -> None:
        first, second = host("one"), host("other")
        first.lock("process 1 on host one")
        assert second.in_use()
        with pytest.raises(StoreError, match="in use by process 1 on host one"):
            second.lock("process 2")
        first.close()
        assert second.in_use() is False
        second.lock("process 2")

    def test_a_driver_that_was_killed_is_not_waited_for(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/objects"
        script = (
            "import os, signal, sys\nfrom millwheel.store.open import open_store\n"
            "open_store(sys.argv[1]).lock('the one that was killed')\nos.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", script, url], timeout=60)
        assert (tmp_path / "objects" / "driver").exists()
        store = open_store(url)
        store.lock("the next one")
        store.close()

    def test_a_driver_of_another_host_is_waited_for_until_its_lease_is_over(self, tmp_path: Path) -> None:
        now = [0.0]

        def pause(seconds: float) -> None:
            now[0] += seconds

        first = Lease(Folder(tmp_path))
        first.take("the one on another host", takeover=False)
        assert first.mine is not None
        first.mine["process"] = ["another", *process()[1:]]
        first.write()
        second = Lease(Folder(tmp_path), clock=lambda: now[0], pause=pause)
        assert second.holder() is None

        def renewed(seconds: float) -> None:
            pause(seconds)
            assert first.mine is not None
            first.mine["beat"] += 1
            first.write()

        second.pause = renewed
        with pytest.raises(StoreError, match="in use by the one on another host"):
            second.take("second", takeover=False)
        second.pause = pause
        second.take("second", takeover=False)
        assert now[0] >= 15
        first.release()  # it is not its own any more
        assert second.holder() is True
        second.release()
        assert second.holder() is False

    def test_a_lease_is_taken_over(self, host: Host) -> None:
        first, second = host("one"), host("other")
        first.lock("hangs")
        second.lock("takes over", takeover=True)
        first.close()
        with pytest.raises(StoreError, match="in use by takes over"):
            host("third").lock("third")
