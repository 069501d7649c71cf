"""Changes of PostgreSQL whose tables notify a channel call at once; a lost notification costs a poll."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import millwheel as mw
from tests.servers.postgres import Cluster, cluster
from tests.servers.processes import Unavailable

_PATIENCE = 60.0
_databases = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A server that decodes its log."""
    try:
        with cluster(("fsync=off", "wal_level=logical", "max_replication_slots=10")) as found:
            yield found
    except Unavailable as reason:
        pytest.skip(str(reason))


class World:
    """A database with a published table, and what a followed injector has called."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.called = threading.Event()
        self.opened: list[mw.injectors.PostgresChanges] = []
        self._connection = psycopg.connect(url, autocommit=True)
        self("CREATE TABLE users (id int PRIMARY KEY)", "CREATE PUBLICATION pub FOR TABLE users")

    def __call__(self, *statements: str) -> list[Any]:
        for statement in statements:
            cursor = self._connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def notifies(self, channel: str) -> None:
        """Makes the trigger of the docs."""
        self(
            "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN NOTIFY {channel}; RETURN NULL; END $$",
            "CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON users "
            "FOR EACH STATEMENT EXECUTE FUNCTION tell()",
        )

    def followed(self, **options: Any) -> mw.injectors.PostgresChanges:
        injector = mw.injectors.PostgresChanges(self.url, "pub", **options)
        injector.open(follow=True)
        self.opened.append(injector)
        injector.begin("origin", "changes")
        injector.run_begins()
        return injector

    def await_call(self) -> None:
        assert self.called.wait(_PATIENCE), "the injector did not call"
        self.called.clear()

    def close(self) -> None:
        for injector in self.opened:
            injector.close()
        self("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
        self._connection.close()


@pytest.fixture
def world(server: Cluster) -> Iterator[World]:
    found = World(server.make_database(f"waking{next(_databases)}"))
    yield found
    found.close()


def test_each_commit_of_a_table_that_notifies_calls_and_is_seen_at_once(world: World) -> None:
    world.notifies("users_changed")
    injector = world.followed(channel="users_changed")
    assert injector.notify(world.called.set)
    world.await_call()  # it listens
    for number in range(5):
        known = injector.poll()
        world(f"INSERT INTO users VALUES ({number})")
        world.await_call()
        assert injector.poll() != known  # although it was polled only a moment ago


def test_a_listener_that_was_cut_off_listens_again_and_calls(world: World) -> None:
    world.notifies("users_changed")
    injector = world.followed(channel="users_changed")
    assert injector.notify(world.called.set)
    world.await_call()
    cut = world(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' "
        "AND datname = current_database()"
    )
    assert cut == [(True,)]
    world.await_call()  # it may have missed something
    known = injector.poll()
    world("INSERT INTO users VALUES (1)")
    world.await_call()
    assert injector.poll() != known


def test_a_change_that_nobody_notifies_of_is_found_by_polling(world: World) -> None:
    injector = world.followed(channel="users_changed")
    assert injector.notify(world.called.set)
    world.await_call()
    known = injector.poll()
    world("INSERT INTO users VALUES (1)")
    _until(lambda: injector.poll() != known)
    assert not world.called.is_set()


def test_without_a_channel_and_in_a_run_that_ends_it_is_polled(world: World) -> None:
    assert not world.followed().notify(world.called.set)
    bounded = mw.injectors.PostgresChanges(world.url, "pub", channel="users_changed")
    bounded.open(follow=False)
    world.opened.append(bounded)
    assert not bounded.notify(world.called.set)


def test_an_injector_that_listens_goes_to_a_task(world: World) -> None:
    injector = world.followed(channel="users_changed")
    assert injector.notify(world.called.set)
    sent = pickle.loads(pickle.dumps(injector))
    assert sent.poll().keys() == injector.poll().keys()
    sent.close()


@pytest.mark.parametrize("channel", ["", "x" * 64])
def test_a_channel_that_postgres_would_not_find_is_refused(channel: str) -> None:
    with pytest.raises(mw.MillWheelError, match="channel"):
        mw.injectors.PostgresChanges("postgresql://localhost/shop", "pub", channel=channel)


def _until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(_PATIENCE / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("nothing was found")
