"""Writes to PostgreSQL: large ones, slow ones, and those of a server that knows less."""

from __future__ import annotations

import os
import socket

import pytest

from tests.store.conftest import Open
from tests.store.driving import contents


def test_a_write_ends_however_little_the_network_takes_at_once(open_it: Open) -> None:
    store = open_it()
    session = store._sessions.take()
    with socket.socket(fileno=os.dup(session._connection.fileno())) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    store._sessions.give(session)
    entries = {b"%d" % i: os.urandom(1_500_000) for i in range(7)}  # the last statement is a large one too
    store.shards[0].write(list(entries.items()))
    assert contents(store.shards[0]) == entries


def test_a_value_of_100_megabytes_is_taken_and_replaced(open_it: Open) -> None:
    shard = open_it().shards[0]
    value = os.urandom(1_000_000) * 100
    shard.write([(b"large", value), (b"small", b"1")])
    with shard.snapshot() as snapshot:
        assert snapshot.get(b"large") == value
        assert [len(found) for _, found in snapshot.scan(b"a", b"z")] == [len(value), 1]
    shard.write([(b"large", b"")])
    assert contents(shard) == {b"large": b"", b"small": b"1"}


def test_a_server_that_knows_no_merge_does_the_same(open_it: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.store.postgres._MERGES", 10**9)
    shard = open_it().shards[0]
    shard.write([(b"a", b"1"), (b"b", b"2")])
    shard.write([(b"b", b"3"), (b"c", b"4")], [b"a"])
    assert contents(shard) == {b"b": b"3", b"c": b"4"}
