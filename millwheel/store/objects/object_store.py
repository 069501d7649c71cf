"""The store on object storage: ``s3://bucket/prefix``, and what else `millwheel.objects` opens.

    store.json                     format, number of shards, identity; made once
    driver                         the lease of the driver
    journal/log/NUMBER             the journal: a log
    shard-NN/log/NUMBER            a shard: a log
    .../snapshots/NUMBER           what a log adds up to at a number, in parts:
    .../parts/NUMBER-NONCE-NNNN    ranges of keys with their values

Every object but the lease is made once, with put-if-absent, and never changed. See `log`, `working_copy`.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit

from millwheel.errors import StoreError
from millwheel.model.secrets import without_secrets
from millwheel.objects import PATIENCE, Objects, open_objects
from millwheel.store.base import Shard, Store
from millwheel.store.lmdb.manifest import Identity, signed, unsigned
from millwheel.store.objects.lease import Lease
from millwheel.store.objects.log import Log
from millwheel.store.objects.shard import Clocks, ObjectShard
from millwheel.store.objects.snapshots import Snapshots
from millwheel.store.objects.working_copy import WorkingCopy, copies_folder, remove_unused

FORMAT = 1
NAME = "store.json"
_GRACE = 3600.0  # seconds that the log is kept behind a snapshot; a process may stand still for half of it
_FIRST_PATIENCE = 5.0  # before the first answer: as a rule the URL is wrong
_JOURNAL = 1  # bytes of a key that name its range in snapshots of the journal
_SHARD = 4  # and of a shard: the kind, the computation, and a quarter of a tablet
_OURS = ("patience", "grace", "id")


class ObjectStore(Store):
    """The store below a prefix of a bucket.

    The URL is that of `millwheel.objects`, with ``patience`` (seconds that the server may be away, default
    60) and ``grace`` (seconds that the log is kept behind a snapshot, default 3600) as parameters of ours.
    With ``existing``, a store that is not there is not made; with ``readonly``, every write is refused.
    """

    def __init__(self, url: str, *, shards: int = 1, existing: bool = False, readonly: bool = False) -> None:
        theirs, ours = split(url)
        name = f"the store {without_secrets(theirs)}"
        patience = _number(name, "patience", ours.get("patience", str(PATIENCE)))
        grace = _number(name, "grace", ours.get("grace", str(_GRACE)))
        first = open_objects(theirs, patience=min(patience, _FIRST_PATIENCE))
        self._name = name
        self._url = theirs
        identity = self._open(first, shards, ours.get("id"), existing=existing or readonly)
        self._objects = open_objects(theirs, patience=patience)
        own = urlencode([(key, ours[key]) for key in ("patience", "grace") if key in ours])
        separator = "&" if "?" in theirs else "?"
        self.address = f"{theirs}{separator}{own + '&' if own else ''}id={identity.id}"
        if not readonly:
            remove_unused(copies_folder())
        self._shards = make_shards(self._objects, identity, patience=patience, grace=grace, readonly=readonly)
        self.journal: Shard = self._shards[0]
        self.shards: Sequence[Shard] = self._shards[1:]
        self._lease = Lease(self._objects)

    def _open(self, objects: Objects, shards: int, id: str | None, *, existing: bool) -> Identity:
        found = read_identity(objects)
        if found is None:
            if existing or id is not None:
                raise StoreError(f"there is no store at {objects.name} (seen from {socket.gethostname()})")
            found = make(objects, shards)
        if id is not None and found.id != id:
            raise StoreError(f"{self._name} is another one by now: it was removed and made anew")
        return found

    def lock(self, owner: str, *, takeover: bool = False) -> None:
        refuse_unsafe(self._objects)
        self._lease.take(owner, takeover=takeover)

    def in_use(self) -> bool | None:
        return self._lease.holder()

    def close(self) -> None:
        for shard in self._shards:
            shard.close()
        self._lease.release()

    def size(self) -> int:
        return sum(entry.size for entry in self._objects.list(""))

    def verify(self) -> None:
        """Reads the newest snapshots and the logs behind them; a `StoreError` says what is damaged."""
        for shard in self._shards:
            shard.verify()

    def compact(self) -> tuple[int, int]:
        """Writes a snapshot of everything, and removes what it stands for; the bytes before and after.

        What is younger than the grace period stays: a process that read it may still be at work.
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
    """A URL as `millwheel.objects` takes it, and the parameters in it that are ours."""
    parts = urlsplit(url)
    given = parse_qsl(parts.query)
    theirs = [(key, value) for key, value in given if key not in _OURS]
    ours = {key: value for key, value in given if key in _OURS}
    return parts._replace(query=urlencode(theirs, safe=":/")).geturl(), ours


def read_identity(objects: Objects) -> Identity | None:
    """Which store it is; None: there is none."""
    data = objects.get(NAME)
    if data is None:
        return None
    value = unsigned(data)
    if value is None or value.get("kind") != "objects":
        raise StoreError(
            f"{objects.name} is damaged: its object {NAME} is not what was written. Restore it from a "
            "version or a backup of the bucket"
        )
    if value["format"] != FORMAT:
        raise StoreError(
            f"{objects.name} has format {value['format']}, and this millwheel reads format {FORMAT}: use the "
            "millwheel that made it, or a newer one"
        )
    return Identity(value["shards"], value["id"])


def make(objects: Objects, shards: int) -> Identity:
    """Makes a store below an empty prefix; of two that make one at once, the first decides."""
    there = [entry.name for entry in objects.list("", most=2) if entry.name != NAME]
    if there and objects.get(NAME) is None:
        raise StoreError(
            f"{objects.name} has no store, but other objects, such as {there[0]}: give the pipeline a prefix "
            "of its own. Nothing is written"
        )
    refuse_unsafe(objects)
    value = {"kind": "objects", "format": FORMAT, "shards": shards, "id": uuid.uuid4().hex}
    objects.create(NAME, signed(value))
    found = read_identity(objects)
    if found is None:
        raise StoreError(f"{objects.name}: the object {NAME} was written, and is not there. Try again")
    return found


def refuse_unsafe(objects: Objects) -> None:
    """Raises where the storage does not refuse to create what is there: two writers are kept apart by it."""
    name = f"check/{uuid.uuid4().hex}"
    try:
        first = objects.create(name, b"first")
        second = objects.create(name, b"second")
    finally:
        objects.delete([name])
    if not first or second:
        raise StoreError(
            f"{objects.name}: the server takes a conditional put (If-None-Match: *) for an object that is "
            "there, so it cannot keep two writers apart. Use a server that knows conditional puts, or "
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
