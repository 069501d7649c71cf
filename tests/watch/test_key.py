"""One key of one computation: state, timers, holds, by whatever codec."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.model.json_form import plain
from millwheel.model.state_codecs import codecs_of
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.watch.key_view import inspect
from tests.computations import Hooks
from tests.spark.sources import Feed
from tests.store.driving import take
from tests.watch.running import HOSTILE


@dataclass
class Basket:
    items: list[str]
    paid: bool = False


class Unreadable(mw.codecs.Codec):
    def encode(self, value: Any) -> bytes:
        return b"\xc1\xff"

    def decode(self, data: bytes) -> Any:
        raise RuntimeError("not today")


def store_of(
    path: Path, key: str, state: Any, codec: Any = mw.codecs.msgpack
) -> tuple[LmdbStore, mw.Pipeline]:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.state = state
        c.set_timer("later", mw.MAX_TIME - 1)
        c.set_timer("soon", 7)
        c.set_timer("wall", 5 + 2**60, clock=mw.WALL)
        c.hold(3, "open")

    p = mw.Pipeline("one key")
    records = [mw.Record(value=1, timestamp=1, key=key), mw.Record(value=2, timestamp=6, key="unread")]
    p.inject("in", Feed({"only": records}, opened=1))
    computation = Hooks(on_record)
    computation.codec = codec
    p.add(computation, name="C", inputs={"in": mw.by_key})
    driver, executor = take(p, LmdbStore(path / "store", shards=4), slots=4)
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    driver.close()
    return LmdbStore(path / "store"), p


@pytest.mark.parametrize("key", ["plain", "", HOSTILE, "ключ", "x" * 2000, "\ud800"], ids=range(6))
def test_state_timers_and_holds_are_shown_whatever_the_key(tmp_path: Path, key: str) -> None:
    store, _ = store_of(tmp_path, key, {"n": 1, 2: "two"})
    found = inspect(store, "C", key)
    assert (found.found, found.codec, found.state) == (True, "msgpack", {"n": 1, "2": "two"})
    assert [(timer["tag"], timer["clock"]) for timer in found.timers] == [
        ("soon", "watermark"),
        ("wall", "wall"),
        ("later", "watermark"),
    ]
    assert found.holds == [{"tag": "open", "time": 3}]
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["key"] == key
    store.close()


def test_a_key_without_a_row_is_not_found(tmp_path: Path) -> None:
    store, _ = store_of(tmp_path, "a", 1)
    assert not inspect(store, "C", "b").found
    store.close()


def test_an_unknown_computation_is_an_error_that_names_those_there_are(tmp_path: Path) -> None:
    store, _ = store_of(tmp_path, "a", 1)
    with pytest.raises(mw.PipelineError, match="no computation 'D': there are C"):
        inspect(store, "D", "a")
    store.close()


@pytest.mark.parametrize(
    ("codec", "guessed"), [(mw.codecs.json, "json"), (mw.codecs.pickle, "raw")], ids=["json", "pickle"]
)
def test_the_pipelines_codec_reads_what_a_guess_may_not(tmp_path: Path, codec: Any, guessed: str) -> None:
    store, p = store_of(tmp_path, "a", {"text": "ä"}, codec)
    assert inspect(store, "C", "a").codec == guessed
    assert inspect(store, "C", "a", codecs_of(p)).state == {"text": "ä"}
    store.close()


def test_a_dataclass_is_shown_by_its_fields(tmp_path: Path) -> None:
    mw.register(Basket)
    store, _ = store_of(tmp_path, "a", Basket(["cat"]))
    assert inspect(store, "C", "a").state == {"@type": "Basket", "items": ["cat"], "paid": False}
    store.close()


def test_a_codec_that_raises_leaves_the_bytes(tmp_path: Path) -> None:
    store, p = store_of(tmp_path, "a", 1, Unreadable())
    found = inspect(store, "C", "a", codecs_of(p))
    assert found.codec == "raw"
    assert "not today" in found.state
    assert inspect(store, "C", "a").codec == "raw"
    store.close()


def test_a_large_state_is_cut_and_says_so() -> None:
    shown = plain({"list": list(range(1_000_000)), "text": "x" * 1_000_000})
    text = json.dumps(shown)
    assert len(text) < 300_000
    assert "more" in text


def test_a_state_that_holds_itself_ends() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert "…" in json.dumps(plain(loop), ensure_ascii=False)
