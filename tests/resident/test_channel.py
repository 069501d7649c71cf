"""The connection of a resident task: only who has the secret is let in, and messages come whole."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from millwheel.spark.channel import Channel, Listener, connect


def _accept(listener: Listener) -> tuple[threading.Thread, list[Channel | None]]:
    found: list[Channel | None] = []
    thread = threading.Thread(target=lambda: found.append(listener.accept(60.0, lambda: True)), daemon=True)
    thread.start()
    return thread, found


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
def test_messages_of_any_size_come_as_they_were_sent(host: str | None) -> None:
    listener = Listener(host)
    thread, found = _accept(listener)
    task = connect(listener.address, listener.secret, 10.0)
    thread.join(60)
    (driver,) = found
    assert driver is not None
    parts = [b"", b"x", b"y" * 3_000_000]
    sender = threading.Thread(target=driver.send, args=(3, parts), daemon=True)
    sender.start()
    assert task.receive() == (3, parts)
    sender.join(60)
    task.send(1)
    assert driver.receive() == (1, [])
    task.close()
    with pytest.raises(ConnectionError):
        driver.receive()
    driver.close()


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
def test_who_does_not_have_the_secret_is_dropped_and_the_task_is_let_in_after_it(host: str | None) -> None:
    listener = Listener(host)
    thread, found = _accept(listener)
    with pytest.raises(OSError):
        connect(listener.address, b"wrong" * 6, 10.0)
    family = socket.AF_UNIX if isinstance(listener.address, str) else socket.AF_INET
    with socket.socket(family) as stranger:
        stranger.connect(listener.address)
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n" * 3)
    task = connect(listener.address, listener.secret, 10.0)
    thread.join(60)
    assert found[0] is not None
    found[0].close()
    task.close()


def test_what_the_driver_sends_cannot_be_sent_back_as_a_proof() -> None:
    listener = Listener()
    thread, found = _accept(listener)
    with socket.socket(socket.AF_UNIX) as mirror:
        mirror.connect(str(listener.address))
        for _ in range(2):
            mirror.sendall(mirror.recv(32))
        mirror.settimeout(10.0)
        assert not mirror.recv(1)  # dropped
    connect(listener.address, listener.secret, 10.0).close()
    thread.join(60)
    assert found[0] is not None
    found[0].close()


def test_nobody_listens_once_the_task_has_come() -> None:
    listener = Listener()
    thread, found = _accept(listener)
    task = connect(listener.address, listener.secret, 10.0)
    thread.join(60)
    assert not Path(str(listener.address)).parent.exists()
    with pytest.raises(OSError, match="No such file"):
        connect(listener.address, listener.secret, 10.0)
    task.close()
    assert found[0] is not None
    found[0].close()


def test_a_listener_that_is_not_wanted_any_more_gives_up() -> None:
    assert Listener().accept(60.0, lambda: False) is None
