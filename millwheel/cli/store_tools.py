"""The commands for a whole store: ``millwheel store``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

from millwheel.errors import StoreError
from millwheel.store.base import Store
from millwheel.store.keyspace import A_SHARD
from millwheel.store.open import open_existing, open_store, open_to_read
from millwheel.store.tools.check import check
from millwheel.store.tools.copy import Copied, copy
from millwheel.store.tools.forget import forget

_MOST_SHARDS = 256  # files, tables or logs
Export = Callable[[str, str, str | None], dict[str, int]]
"""Exports a store to a folder, with a pipeline's codecs; the rows of each table."""


def add_store_commands(commands: Any, export: Export) -> None:
    """Adds ``millwheel store`` and its commands."""
    store = commands.add_parser("store", help="check, copy, export or compact a store")
    tools = store.add_subparsers(metavar="COMMAND", required=True)
    tool = tools.add_parser(
        "check",
        help="verify a store",
        description="Checks every invariant of a store, row by row; the pipeline may run "
        "meanwhile. The exit status is 1 if something is wrong.",
        epilog="example: millwheel store check state/",
    )
    tool.add_argument("store", metavar="STORE", help="a path or a URL")
    tool.add_argument("--json", action="store_true", help="print what was found as JSON")
    tool.set_defaults(call=_store_check)
    tool = tools.add_parser(
        "compact",
        help="free unused space",
        description="Rewrites a store without its unused space; the pipeline must not run. "
        "A store reuses its space by itself: this is for one that was once much larger. In PostgreSQL it "
        "is a VACUUM FULL of each table, which needs space for a copy of the largest one.",
        epilog="example: millwheel store compact state/",
    )
    tool.add_argument("store", metavar="STORE", help="a path or a URL")
    tool.add_argument("--json", action="store_true", help="print the sizes as JSON")
    tool.set_defaults(call=_store_compact)
    tool = tools.add_parser(
        "copy",
        help="copy a pipeline to another store",
        description="Copies a pipeline with all its state to a new store, which may be of another kind and "
        "have other numbers of shards and tablets; the pipeline must not run. Run it on the copy from then "
        "on, and not on the old store again: each would continue from here, and write to the same sinks.",
        epilog="example: millwheel store copy state/ 'postgresql://me@db/pipelines?schema=counts' --shards 8",
    )
    tool.add_argument("store", metavar="FROM", help="a path or a URL")
    tool.add_argument("target", metavar="TO", help="a path or a URL, of a new store")
    tool.add_argument(
        "--shards", type=int, help="a power of two, at least the number of slots (default: that of FROM)"
    )
    tool.add_argument(
        "--tablets", type=int, help="the most slots: a power of two from 64 to 4096 (default: that of FROM)"
    )
    tool.add_argument("--json", action="store_true", help="print what was copied as JSON")
    tool.set_defaults(call=_store_copy)
    tool = tools.add_parser(
        "export",
        help="write a store to Parquet",
        description="Writes rows, timers, watermarks, intervals and epochs to a folder, each as a Parquet "
        "table for Spark. The pipeline may run: then each tablet is as of some moment.",
        epilog="example: millwheel store export state/ export/ --pipeline zeitgeist:pipeline",
    )
    tool.add_argument("store", metavar="FROM", help="a path or a URL")
    tool.add_argument("folder", metavar="FOLDER", help="a new folder")
    tool.add_argument("--pipeline", metavar="MODULE:FACTORY", help="the codecs of the state")
    tool.add_argument("--json", action="store_true", help="print the number of rows as JSON")
    tool.set_defaults(call=lambda options: _store_export(options, export))
    tool = tools.add_parser(
        "forget",
        help="remove the state of a removed computation",
        description="Removes the rows, timers and seen IDs of a computation that left the pipeline; "
        "the pipeline may run meanwhile. A computation that is added under the name later starts empty. "
        "If it is interrupted, call it again.",
        epilog="example: millwheel store forget OldDetector --store state/",
    )
    tool.add_argument("computation", metavar="NAME", help="a computation")
    tool.add_argument("--store", required=True, help="the pipeline's store: a path (LMDB) or a URL")
    tool.add_argument("--json", action="store_true", help="print what was removed as JSON")
    tool.set_defaults(call=_store_forget)


def _store_check(options: argparse.Namespace) -> int:
    store = open_to_read(options.store)
    try:
        store.verify()
        found = check(store)
    finally:
        store.close()
    if options.json:
        print(json.dumps(found.__dict__))
    else:
        there = ", ".join(f"{count:,} {what}" for what, count in sorted(found.counts.items()))
        print(f"pipeline {found.pipeline!r}, epoch {found.epoch:,}: {there}")
        for problem in found.problems:
            print(f"WRONG: {problem}")
        if found.more:
            print(f"and {found.more:,} more")
        if not found.problems:
            print("nothing is wrong")
    return 1 if found.problems else 0


def _store_forget(options: argparse.Namespace) -> int:
    store = open_existing(options.store)
    try:
        found = forget(store, options.computation, f"millwheel store forget, process {os.getpid()}")
    finally:
        store.close()
    if options.json:
        print(json.dumps(found.__dict__))
    else:
        print(f"{found.computation} is removed: {found.entries:,} entries")
    return 0


def _store_compact(options: argparse.Namespace) -> int:
    store = open_existing(options.store)
    try:
        store.lock(f"millwheel store compact, process {os.getpid()}")
        before, now = store.compact()
    finally:
        store.close()
    if options.json:
        print(json.dumps({"bytes_before": before, "bytes_after": now}))
    else:
        print(f"{before / 1e6:,.1f} MB before, {now / 1e6:,.1f} MB now")
    return 0


def _store_copy(options: argparse.Namespace) -> int:
    with closing(open_existing(options.store)) as source:
        tablets = options.tablets if options.tablets is not None else source.tablets
        shards = options.shards if options.shards is not None else _shards(source, tablets)
        if shards & (shards - 1) or not 1 <= shards <= _MOST_SHARDS:
            raise StoreError(f"--shards is a power of two up to {_MOST_SHARDS}, not {shards}")
        if options.target.startswith("memory:"):
            raise StoreError("a copy in memory would be lost with this process: copy to a path or a database")
        with closing(open_store(options.target, shards=shards, tablets=tablets)) as target:
            done = _copy(source, target)
    if options.json:
        print(json.dumps(done.__dict__))
    else:
        print(
            f"pipeline {done.pipeline!r}, epoch {done.epoch:,}: {done.entries:,} entries, counted again, in "
            f"{done.shards} shards and {done.tablets} tablets; run it on the copy from now on, and not on "
            "the old store"
        )
    return 0


def _shards(source: Store, tablets: int) -> int:
    """The shards of a copy: as many as the source has, if it can have that number."""
    return min(max(len(source.shards), tablets // A_SHARD), tablets)


def _copy(source: Store, target: Store) -> Copied:
    for store in (source, target):
        store.lock(f"millwheel store copy, process {os.getpid()}")
    if not sys.stderr.isatty():
        return copy(source, target)
    try:
        return copy(source, target, lambda done: print(f"\r{done:,} entries", end="", file=sys.stderr))
    finally:
        print(file=sys.stderr)


def _store_export(options: argparse.Namespace, export: Export) -> int:
    open_to_read(options.store).close()
    if os.path.exists(options.folder) and os.listdir(options.folder):
        raise StoreError(f"the folder {options.folder} is not empty: export to a new one")
    rows = export(options.store, options.folder, options.pipeline)
    if options.json:
        print(json.dumps(rows))
    else:
        print(f"{options.folder}: " + ", ".join(f"{count:,} {name}" for name, count in rows.items()))
    return 0
