"""Parquet files of committed epochs, by stream and day, in folders or as objects."""

from __future__ import annotations

import datetime
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from millwheel.disk import sync_folder
from millwheel.model.time import DAY
from millwheel.sinks.arrow_rows import import_arrow
from millwheel.sinks.schedule import Schedule
from millwheel.sinks.staging import Staging

EVERY = 30.0  # seconds between files: an hour of epochs leaves a hundred for each stream
ROWS = 1_000_000  # after which files are written before the time is over
ROW_BYTES = 64  # the least size of a staged row
_NO_DAY = "__HIVE_DEFAULT_PARTITION__"


class ParquetPublisher:
    """Makes files of staged batches, in the driver.

    1. The files are written below the hidden folder, durably. A crash leaves them to be removed.
    2. The state is saved: the last epoch, and the path of each file. From here on they are published.
    3. They are moved to their paths, and the batches are dropped. After a crash or a full disk the rest is
       moved before anything else is published.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._staging = Staging(folder, f"Parquet({os.fspath(folder)!r})")
        self.schedule = Schedule(self._publish)
        self._origin = ""
        self._through = 0
        self._published: tuple[int, list[list[str]]] | None = None
        """The last published epoch and its files, while some are not moved yet."""

    def begin(self, origin: str, epoch: int, every: float, rows: int) -> None:
        """Takes over from the last driver, and finishes its publication."""
        with self.schedule.begin(self._staging, epoch, every, rows * ROW_BYTES):
            self._published = None
            state = self._staging.take()
            self._move(state.get("moves", []))
            for left in (self._folder / ".staged").glob("*.parquet"):
                left.unlink()
            self._origin = origin
            if state.get("origin") == origin:
                self._through = state["through"]
            else:
                self._staging.drop()
                self._through = epoch

    def _publish(self) -> None:
        self._finish()
        arrow = import_arrow("Parquet")
        batches = self._staging.batches(self._through, self.schedule.committed)
        if batches:
            table = arrow.concat_tables(
                arrow.ipc.open_stream(item.path.read_bytes()).read_all() for item in batches
            )
            name = f"part-{self._origin[:8]}-{batches[0].epoch:010d}-{batches[-1].epoch:010d}.parquet"
            moves = self._write_all(arrow, table, name)
            self._staging.save({"origin": self._origin, "through": self.schedule.committed, "moves": moves})
            self._published = self.schedule.committed, moves
        else:
            self._published = self.schedule.committed, []
        self._finish()

    def _finish(self) -> None:
        """Moves published files to their paths, also those of a failed attempt."""
        if self._published is None:
            return
        through, moves = self._published
        self._move(moves)
        self._staging.save({"origin": self._origin, "through": through, "moves": []})
        self._through = through
        self._staging.drop(through)
        self._published = None

    def _write_all(self, arrow: Any, table: Any, name: str) -> list[list[str]]:
        """Writes the files of a table, all or none; returns the path of each."""
        moves: list[list[str]] = []
        try:
            for place, part in _parts(arrow, table):
                moves.append([f"{len(moves)}.parquet", f"{place}/{name}"])
                self._write(part, moves[-1][0])
        except OSError:
            for written, _ in moves:
                (self._folder / ".staged" / written).unlink(missing_ok=True)
            raise
        return moves

    def _write(self, table: Any, name: str) -> None:
        from pyarrow import parquet

        path = self._folder / ".staged" / name
        parquet.write_table(table, path)
        with open(path, "rb") as file:
            os.fsync(file.fileno())

    def _move(self, moves: Sequence[Sequence[str]]) -> None:
        for name, place in moves:
            path, target = self._folder / ".staged" / name, self._folder / place
            if path.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
                sync_folder(target.parent)
                sync_folder(target.parent.parent)
        if moves:
            sync_folder(self._folder)


def tables(batches: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """Return the files of batches, one for each stream and day."""
    arrow = import_arrow("Parquet")
    from pyarrow import parquet

    table = arrow.concat_tables(arrow.ipc.open_stream(batch).read_all() for batch in batches)
    found = []
    for folder, part in _parts(arrow, table):
        buffer = io.BytesIO()
        parquet.write_table(part, buffer)
        found.append((folder.replace("{", "%7B").replace("}", "%7D") + "/part-{}.parquet", buffer.getvalue()))
    return found


def _parts(arrow: Any, table: Any) -> list[tuple[str, Any]]:
    """The table by stream and day, with the folder of each part."""
    import pyarrow.compute as compute

    times = table["timestamp"].cast(arrow.int64())
    days = compute.divide(times, DAY)  # towards zero: a time before 1970 may be in the previous day
    days = compute.subtract(days, compute.less(times, compute.multiply(days, DAY)).cast(arrow.int64()))
    table = table.append_column("day", days)
    parts = []
    for stream in table["stream"].unique().to_pylist():
        of_stream = table.filter(compute.equal(table["stream"], stream))
        for day in of_stream["day"].unique().to_pylist():
            part = of_stream.filter(compute.equal(of_stream["day"], day)).drop_columns(["stream", "day"])
            parts.append((f"stream={quote(stream, safe=' ')}/date={_date(day)}", part))
    return parts


def _date(day: int) -> str:
    try:
        return (datetime.date(1970, 1, 1) + datetime.timedelta(day)).isoformat()
    except OverflowError:
        return _NO_DAY


publishers: dict[Path, ParquetPublisher] = {}
"""The publishers of this process, by folder."""


def publisher(folder: Path) -> ParquetPublisher:
    """This process's publisher of a folder, shared by the sinks of several streams."""
    if folder not in publishers:
        publishers[folder] = ParquetPublisher(folder)
    return publishers[folder]
