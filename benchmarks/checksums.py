"""What checksums, the audit and the seal of a store in LMDB cost: ``python -m benchmarks.checksums``.

It measures the processor's time, in memory, so a busy machine or a slow disk changes little.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from millwheel.store.lmdb.environment import LmdbShard

_KEYS = 100_000
_TOUCHED = 5_000  # of them, in one transaction
_ROUNDS = 20


def main() -> None:
    """Prints one JSON object for each way of keeping values."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").exists() else None))
    try:
        for checked in (False, True):
            print(json.dumps(measured(folder / str(checked), checked=checked)), flush=True)
    finally:
        shutil.rmtree(folder)


def measured(folder: Path, *, checked: bool) -> dict[str, float]:
    """Microseconds for each entry; bytes of the file."""
    draw = random.Random(1)
    shard = LmdbShard(folder, sync=False, map_size=1 << 28, checked=checked)
    keys = [b"R\x00\x01" + draw.randbytes(8) + b"key %d" % number for number in range(_KEYS)]
    shard.write([(key, draw.randbytes(60)) for key in sorted(keys)])
    best: dict[str, float] = {}

    def note(name: str, count: int, work: Callable[[], None]) -> None:
        began = time.process_time()
        work()
        took = (time.process_time() - began) * 1e6 / count
        best[name] = min(best.get(name, took), took)

    for _ in range(_ROUNDS):
        touched = sorted(draw.sample(keys, _TOUCHED))
        puts = [(key, b"x" * 60) for key in touched]
        note("get", _TOUCHED, lambda touched=touched: _get(shard, touched))  # type: ignore[misc]
        note("put", _TOUCHED, lambda puts=puts: shard.write(puts))  # type: ignore[misc]
        note("scan", _KEYS, lambda: _scan(shard))
    if checked:
        note("audit", _KEYS, lambda: shard.verify(None))
        note("digest, of a megabyte", shard.size() // 1_000_000, lambda: _digest(shard))
    found = {name: round(value, 3) for name, value in best.items()}
    found["bytes"] = shard.size()
    shard.close()
    return {"checked": checked, **found}


def _get(shard: LmdbShard, keys: list[bytes]) -> None:
    with shard.snapshot() as snapshot:
        snapshot.get_each(keys)


def _scan(shard: LmdbShard) -> None:
    with shard.snapshot() as snapshot:
        for _ in snapshot.scan(b"R", b"S"):
            pass


def _digest(shard: LmdbShard) -> None:
    shard.mark()


if __name__ == "__main__":
    main()
