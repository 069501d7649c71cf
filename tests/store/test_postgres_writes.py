"""Writes to PostgreSQL: large ones, slow ones, and those of a server that knows less."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from millwheel.store.postgres.sessions import Session
from tests.store.conftest import Open
from tests.store.driving import contents


def test_a_write_ends_however_little_the_network_takes_at_once(open_it: Open) -> None:
    store = open_it()
    session = store.sessions.take()
    with socket.socket(fileno=os.dup(session.connection.fileno())) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    store.sessions.give(session)
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
    monkeypatch.setattr("millwheel.store.postgres.postgres_shard.MERGES", 10**9)
    shard = open_it().shards[0]
    shard.write([(b"a", b"1"), (b"b", b"2")])
    shard.write([(b"b", b"3"), (b"c", b"4")], [b"a"])
    assert contents(shard) == {b"b": b"3", b"c": b"4"}


def _row(number: int) -> bytes:
    return b"R\x00\x01" + number.to_bytes(8, "big") + b"key"


class TestPlaces:
    """Rows that were read are written where they stand, without being looked for again."""

    @pytest.fixture
    def sent(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The first word of each statement that changes something."""
        found: list[str] = []
        real = Session.send

        def send(session: Session, query: str, parameters: Sequence[Any] = ()) -> Any:
            if query.startswith(("WITH done", "MERGE", "INSERT", "DELETE")):
                found.append(query.split()[0])
            return real(session, query, parameters)

        monkeypatch.setattr(Session, "send", send)
        return found

    def test_only_what_was_not_read_is_looked_for(self, open_it: Open, sent: list[str]) -> None:
        shard = open_it().shards[0]
        shard.write([(_row(n), b"old") for n in range(5)])
        with shard.snapshot() as snapshot:
            assert snapshot.get_each([_row(1), _row(2), _row(9)]) == [b"old", b"old", None]
        sent.clear()
        shard.write([(_row(1), b"new"), (_row(2), b"new")])
        assert sent == ["WITH"]
        with shard.snapshot() as snapshot:
            snapshot.get_each([_row(1), _row(9)])
        shard.write([(_row(1), b"newer"), (_row(3), b"new"), (_row(9), b"first")], [_row(4)])
        assert sent == ["WITH", "DELETE", "WITH", "MERGE"]
        expected = {_row(0): b"old", _row(1): b"newer", _row(2): b"new", _row(3): b"new", _row(9): b"first"}
        assert contents(shard) == expected

    def test_places_are_of_use_for_one_write(self, open_it: Open, sent: list[str]) -> None:
        shard = open_it().shards[0]
        shard.write([(_row(1), b"1"), (_row(2), b"1")])
        with shard.snapshot() as snapshot:
            snapshot.get_each([_row(1), _row(2)])
        shard.write([(_row(1), b"2")])
        sent.clear()
        shard.write([(_row(2), b"2")])
        assert sent == ["MERGE"]

    @pytest.mark.parametrize("between", ["written", "deleted", "moved"])
    def test_a_row_that_is_there_no_more_is_looked_for(
        self, open_it: Open, sent: list[str], between: str
    ) -> None:
        shard, other = open_it().shards[0], open_it().shards[0]
        shard.write([(_row(n), b"old") for n in range(200)])
        with shard.snapshot() as snapshot:
            snapshot.get_each([_row(n) for n in range(200)])
        if between == "written":
            other.write([(_row(7), b"theirs")])
        elif between == "deleted":
            other.write([], [_row(7)])
        else:  # others stand where it stood
            other.write([], [_row(n) for n in range(200)])
            open_it().compact()
            other.write([(_row(n), b"old") for n in range(100, 200)])
            other.write([(_row(n), b"old") for n in range(100)])
        sent.clear()
        guarded: list[bytes | None] = []
        shard.write(
            [(_row(7), b"ours"), (_row(8), b"ours"), (b"T new", b"")],
            [_row(9)],
            lambda get: guarded.append(get(b"nothing")),
        )
        assert sent.count("MERGE") == 1, "with all of it, once more"
        assert guarded == [None, None]
        found = contents(shard)
        assert found.pop(b"T new") == b""
        assert found == {_row(n): b"ours" if n in (7, 8) else b"old" for n in range(200) if n != 9}

    def test_many_rows_are_written_in_pieces(
        self, open_it: Open, sent: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shard = open_it().shards[0]
        shard.write([(_row(n), b"old") for n in range(100)])
        with shard.snapshot() as snapshot:
            snapshot.get_each([_row(n) for n in range(100)])
        monkeypatch.setattr("millwheel.store.postgres.postgres_shard.STATEMENT", 1_000)
        sent.clear()
        shard.write([(_row(n), b"new%d" % n) for n in range(100)])
        assert set(sent) == {"WITH"}
        assert len(sent) > 1
        assert contents(shard) == {_row(n): b"new%d" % n for n in range(100)}

    def test_of_too_many_the_place_is_not_noted(
        self, open_it: Open, sent: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("millwheel.store.postgres.snapshot.MOST_PLACES", 3)
        shard = open_it().shards[0]
        shard.write([(_row(n), b"old") for n in range(10)])
        sent.clear()
        with shard.snapshot() as snapshot:
            snapshot.get_each([_row(n) for n in range(5)])
            assert snapshot.get_each([_row(n) for n in range(5, 10)]) == [b"old"] * 5
        shard.write([(_row(n), b"new") for n in range(10)])
        assert sent == ["WITH", "MERGE"]
        assert set(contents(shard).values()) == {b"new"}
