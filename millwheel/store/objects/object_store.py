"""The store on object storage: ``s3://bucket/prefix`` and others.

    store.json                     format, numbers of shards and tablets, identity; made once
    driver                         the lease of the driver
    journal/log/NUMBER             the journal: a log
    shard-NN/log/NUMBER            a shard: a log
    .../snapshots/NUMBER           the content of a log at a number, in parts:
    .../parts/NUMBER-NONCE-NNNN    ranges of keys with their values

Every object but the lease is made once, with put-if-absent, and never changed. `millwheel.objects` opens
the URL; see `log`, `working_copy`.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit

from millwheel.errors import StoreError
from millwheel.model.keys import TABLETS
from millwheel.model.secrets import without_secrets
from millwheel.objects import PATIENCE, Folder, Objects, open_objects
from millwheel.store.base import Shard, Store
from millwheel.store.formats import check_tablets
from millwheel.store.lmdb.manifest import (
    Identity,
    check_manifest,
    identity_in,
    new_identity,
    signed,
    unsigned,
)
from millwheel.store.objects.lease import Lease
from millwheel.store.objects.log import Log
from millwheel.store.objects.shard import Clocks, ObjectShard
from millwheel.store.objects.snapshots import Snapshots
from millwheel.store.objects.working_copy import WorkingCopy, copies_folder, remove_unused

FORMAT = 1
FORMAT_OF_MANY = 2
"""2: it has a number of tablets, which is not 64."""
NAME = "store.json"
_GRACE = 3600.0  # seconds that the log is kept after a snapshot; a process may be suspended for half of it
_FIRST_PATIENCE = 5.0  # seconds before the first answer: most often the URL is wrong
_JOURNAL = 1  # bytes of a key that name its range in snapshots of the journal
_SHARD = 4  # and of a shard: the kind, the computation, and a quarter of a tablet
_OURS = ("patience", "grace", "id")


class ObjectStore(Store):
    """The store below a prefix of a bucket.

    The URL is that of `millwheel.objects`, with two parameters of the store: ``patience`` (seconds without an
    answer of the server, default 60) and ``grace`` (seconds that the log is kept after a snapshot, default
    3600). With ``existing``, a missing store is not made; with ``readonly``, every write is refused.
    """

    def __init__(
        self,
        url: str,
        *,
        shards: int = 1,
        tablets: int = TABLETS,
        existing: bool = False,
        readonly: bool = False,
    ) -> None:
        theirs, ours = split(url)
        name = f"the store {without_secrets(theirs)}"
        patience = _number(name, "patience", ours.get("patience", str(PATIENCE)))
        grace = _number(name, "grace", ours.get("grace", str(_GRACE)))
        first = open_objects(theirs, patience=min(patience, _FIRST_PATIENCE))
        self._name = name
        self._url = theirs
        identity = self._open(first, shards, tablets, ours.get("id"), existing=existing or readonly)
        self.tablets = identity.tablets
        self.objects = open_objects(theirs, patience=patience)
        own = urlencode([(key, ours[key]) for key in ("patience", "grace") if key in ours])
        separator = "&" if "?" in theirs else "?"
        self.address = f"{theirs}{separator}{own + '&' if own else ''}id={identity.id}"
        if not readonly:
            remove_unused(copies_folder())
        self._shards = make_shards(self.objects, identity, patience=patience, grace=grace, readonly=readonly)
        self.journal: Shard = self._shards[0]
        self.shards: Sequence[Shard] = self._shards[1:]
        self._lease = Lease(self.objects)

    def _open(
        self, objects: Objects, shards: int, tablets: int, id: str | None, *, existing: bool
    ) -> Identity:
        found = read_identity(objects)
        if found is None:
            if existing or id is not None:
                raise StoreError(f"there is no store at {objects.name} (seen from {socket.gethostname()})")
            found = make(objects, shards, tablets)
        if id is not None and found.id != id:
            raise StoreError(f"{self._name} is another one now: it was removed and made again")
        return found

    def lock(self, owner: str, *, takeover: bool = False) -> None:
        refuse_unsafe(self.objects)
        self._lease.take(owner, takeover=takeover)
        if isinstance(self.objects, Folder):
            self.objects.remove_unfinished()

    def in_use(self) -> bool | None:
        return self._lease.holder()

    def close(self) -> None:
        for shard in self._shards:
            shard.close()
        self._lease.release()

    def size(self) -> int:
        return sum(entry.size for entry in self.objects.list(""))

    def verify(self) -> None:
        """Reads the newest snapshots and their logs; a `StoreError` if one is damaged."""
        for shard in self._shards:
            shard.verify()

    def compact(self) -> tuple[int, int]:
        """Writes a full snapshot, removes what it replaces; bytes before and after.

        Objects younger than the grace period stay: a process that read them may still use them.
        """
        before = self.size()
        for shard in self._shards:
            shard.catch_up()
            shard.checkpoint(full=True)
        return before, self.size()


def make_shards(
    objects: Objects,
    identity: Identity,
    *,
    patience: float,
    grace: float,
    readonly: bool = False,
    clocks: Clocks | None = None,
    background: bool = True,
) -> list[ObjectShard]:
    """The journal and the shards of a store."""
    made = []
    for number in range(identity.shards + 1):
        folder = f"shard-{number - 1:02d}" if number else "journal"
        width = _SHARD if number else _JOURNAL
        made.append(
            ObjectShard(
                Log(objects, identity.id, folder, patience=patience),
                WorkingCopy(identity.id, folder),
                Snapshots(objects, identity.id, folder, width),
                width=width,
                grace=grace,
                readonly=readonly,
                clocks=clocks,
                background=background,
            )
        )
    return made


def split(url: str) -> tuple[str, dict[str, str]]:
    """A URL for `millwheel.objects`, and the parameters of the store in it."""
    parts = urlsplit(url)
    given = parse_qsl(parts.query)
    theirs = [(key, value) for key, value in given if key not in _OURS]
    ours = {key: value for key, value in given if key in _OURS}
    return parts._replace(query=urlencode(theirs, safe=":/")).geturl(), ours


def read_identity(objects: Objects) -> Identity | None:
    """The identity of a store; None: there is none."""
    data = objects.get(NAME)
    if data is None:
        return None
    value = unsigned(data)
    if value is None or value.get("kind") != "objects":
        raise StoreError(
            f"{objects.name} is damaged: its object {NAME} is not what was written. Restore it from a "
            "version or a backup of the bucket"
        )
    check_manifest(value, objects.name, (FORMAT, FORMAT_OF_MANY))
    return identity_in(value)


def make(objects: Objects, shards: int, tablets: int = TABLETS) -> Identity:
    """Makes a store below an empty prefix; of two at once, the first one wins."""
    check_tablets(shards, tablets)
    there = [entry.name for entry in objects.list("", most=2) if entry.name != NAME]
    if there and objects.get(NAME) is None:
        raise StoreError(
            f"{objects.name} has no store, but other objects, such as {there[0]}: give the pipeline a prefix "
            "of its own. Nothing is written"
        )
    refuse_unsafe(objects)
    value = {"kind": "objects", **new_identity(shards, tablets, (FORMAT, FORMAT_OF_MANY))}
    objects.create(NAME, signed(value))
    found = read_identity(objects)
    if found is None:
        raise StoreError(f"{objects.name}: the object {NAME} was written, but cannot be read. Try again")
    return found


def refuse_unsafe(objects: Objects) -> None:
    """Raises if the storage allows to create an existing object: writers rely on it."""
    name = f"check/{uuid.uuid4().hex}"
    try:
        first = objects.create(name, b"first")
        second = objects.create(name, b"second")
    finally:
        objects.delete([name])
    if not first or second:
        raise StoreError(
            f"{objects.name}: the server accepts a conditional put (If-None-Match: *) of an object that "
            "exists, so it cannot keep two writers apart. Use a server with conditional puts, or "
            "PostgreSQL"
        )


def _number(name: str, what: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not found > 0:
        raise StoreError(f"{name}: {what} is a number of seconds, not {text!r}")
    return found
