"""The history of a pipeline as tables, and a whole store as Parquet."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from typing import Any

from millwheel.model.pipeline import Pipeline
from millwheel.model.state_codecs import codecs_of
from millwheel.store.base import Store
from millwheel.store.open import open_to_read
from millwheel.store.tools import export as store_export
from millwheel.store.tools.export import columns_of, states, timers, write_parquet
from millwheel.watch.history import KEPT
from millwheel.watch.view import Viewer
from millwheel.worker.counters import SAMPLED

SCHEMAS = {
    "watermarks": "time long, epoch long, computation string, low_watermark long, "
    + ", ".join(f"{name} long" for name in (*SAMPLED, *KEPT)),
    "intervals": "level int, first int, last int, slot int, shard int, busy double, "
    "records_per_second double, hot_computation string, hot_key string, hot_share double, "
    + ", ".join(f"{name} long" for name in KEPT),
    "epochs": "epoch long, began long, seconds double, records long, compact boolean, "
    "phases map<string,double>",
}
"""By table: its columns, in Spark's notation; times get a timestamp column, too."""


def small_tables(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """The tables that are read as a whole: watermarks, intervals and epochs."""
    viewer = Viewer(store)
    view = viewer.look(time.time_ns() // 1000).to_value()
    samples = [asdict(sample) for sample in viewer.samples]
    watermarks = [
        {"time": sample["time"], "epoch": sample["epoch"], "computation": name, **counts}
        for sample in samples
        for name, counts in sample["computations"].items()
    ]
    epochs = [epoch for sample in samples for epoch in sample["epochs"]]
    found = {"watermarks": watermarks, "intervals": view["intervals"], "epochs": epochs}
    return {
        table: [tuple(row.get(name) for name, _ in columns_of(SCHEMAS[table])) for row in rows]
        for table, rows in found.items()
    }


def export(where: str, folder: str, pipeline: Pipeline | None) -> dict[str, int]:
    """Writes the tables of a store as Parquet, with pyarrow; the rows of each."""
    codecs = codecs_of(pipeline) if pipeline is not None else {}
    with closing(open_to_read(where)) as store:
        found: dict[str, Iterable[tuple[Any, ...]]] = {
            "state": states(store, codecs, range(store.tablets)),
            "timers": timers(store, range(store.tablets)),
            **small_tables(store),
        }
        schemas = {**store_export.SCHEMAS, **SCHEMAS}
        return {
            table: write_parquet(table, schemas[table], rows, os.path.join(folder, table))
            for table, rows in found.items()
        }
