"""The commands that look a store over and tidy it: ``millwheel store``."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from millwheel.store.check import check
from millwheel.store.forget import forget
from millwheel.store.open import open_existing


def add_store_commands(commands: Any) -> None:
    """Adds ``millwheel store`` and what is below it."""
    store = commands.add_parser("store", help="look a store over, or give space back")
    tools = store.add_subparsers(metavar="COMMAND", required=True)
    tool = tools.add_parser(
        "check",
        help="verify a store",
        description="Looks at every invariant that can be read off a store, row by row; the pipeline may run "
        "meanwhile. Ends with 1 where something is wrong.",
        epilog="example: millwheel store check state/",
    )
    tool.add_argument("store", metavar="STORE", help="a path or a URL")
    tool.add_argument("--json", action="store_true", help="print what was found as JSON")
    tool.set_defaults(call=_store_check)
    tool = tools.add_parser(
        "compact",
        help="give space back to the disk",
        description="Writes a store anew without the space that nobody uses; the pipeline must not run. "
        "A store reuses its space by itself: this is for one that was once much larger.",
        epilog="example: millwheel store compact state/",
    )
    tool.add_argument("store", metavar="STORE", help="a path or a URL")
    tool.add_argument("--json", action="store_true", help="print the sizes as JSON")
    tool.set_defaults(call=_store_compact)
    tool = tools.add_parser(
        "forget",
        help="remove the state of a computation that was taken out",
        description="Removes the rows, timers and seen IDs of a computation that is not in the pipeline any "
        "more; the pipeline may run meanwhile. A computation that is added under the name later starts anew. "
        "If it is interrupted, call it again.",
        epilog="example: millwheel store forget OldDetector --store state/",
    )
    tool.add_argument("computation", metavar="NAME", help="a computation")
    tool.add_argument("--store", required=True, help="the pipeline's store: a path (LMDB) or a URL")
    tool.add_argument("--json", action="store_true", help="print what was removed as JSON")
    tool.set_defaults(call=_store_forget)


def _store_check(options: argparse.Namespace) -> int:
    store = open_existing(options.store)
    try:
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
        print(f"{found.computation} is forgotten: {found.entries:,} entries removed")
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
