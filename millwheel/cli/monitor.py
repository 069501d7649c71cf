"""Commands that read a store: ``status``, ``inspect``, ``explain``, ``top``..."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from millwheel.model.pipeline import Pipeline
from millwheel.model.state_codecs import codecs_of
from millwheel.store.open import open_to_read
from millwheel.watch import text
from millwheel.watch.explain import explain
from millwheel.watch.key_view import inspect
from millwheel.watch.view import Viewer, look

LoadPipeline = Callable[[str], Pipeline]

_CLEAR = "\x1b[H\x1b[2J"


def add_commands(commands: Any, load_pipeline: LoadPipeline) -> None:
    """Adds the commands to those of ``millwheel``."""
    command = _command(
        commands,
        "status",
        "show the progress of a pipeline",
        "Shows each computation's low watermark and its lag, records in and out, late, dropped, duplicate "
        "and failed ones, pending timers, keys and the size of their state, and the injectors. The pipeline "
        "may be running or stopped; counts are since the store was made, rates of the last ten seconds.",
        "millwheel status --store state/",
    )
    command.set_defaults(call=_status)

    command = _command(
        commands,
        "inspect",
        "show one key of one computation",
        "Shows the state, the timers and the holds of one key. Without --pipeline, state is decoded as "
        "MessagePack or JSON, or shown as bytes; with it, by the computation's own codec.",
        "millwheel inspect Windower 'cat videos' --store state/",
    )
    command.add_argument("computation", metavar="COMPUTATION", help="a computation")
    command.add_argument("key", metavar="KEY", help="a key")
    command.add_argument("--pipeline", metavar="MODULE:FACTORY", help="the codecs of the state")
    command.set_defaults(call=lambda options: _inspect(options, load_pipeline))

    command = _command(
        commands,
        "explain",
        "show why a low watermark has its value",
        "Follows a computation's low watermark back to what holds it: a key with its timer or "
        "hold, or a partition of an injector. The pipeline may be running or stopped.",
        "millwheel explain DipDetector --store state/",
    )
    command.add_argument("computation", metavar="NAME", help="a computation")
    command.set_defaults(call=_explain)

    command = _command(
        commands,
        "top",
        "watch a pipeline in the terminal",
        "Shows, again and again, the computations that are furthest behind, the busiest intervals with their "
        "hot keys, and the phases of the last epochs. Ctrl-C ends it. --json: a line each time.",
        "millwheel top --store state/ --every 2",
    )
    command.add_argument("--every", type=float, default=1.0, help="seconds between updates (default: 1)")
    command.add_argument("--count", type=int, help="end after this many updates (default: never)")
    command.set_defaults(call=_top)

    command = commands.add_parser(
        "ui",
        help="serve the page of a store",
        description="Serves the page that `millwheel run --ui` serves, for a pipeline that runs in another "
        "process of this machine, or that has stopped. Ctrl-C ends it.",
        epilog="example: millwheel ui 8080 --store state/",
    )
    command.add_argument("where", metavar="PORT", help="a port, or an address such as 0.0.0.0:8080")
    command.add_argument("--store", required=True, help="the pipeline's store: a path (LMDB) or a URL")
    command.add_argument("--pipeline", metavar="MODULE:FACTORY", help="the codecs of the state")
    command.set_defaults(call=lambda options: _ui(options, load_pipeline))


def _command(commands: Any, name: str, text: str, description: str, example: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=description, epilog=f"example: {example}"
    )
    command.add_argument("--store", required=True, help="the pipeline's store: a path (LMDB) or a URL")
    command.add_argument("--json", action="store_true", help="print JSON")
    return command


def _now() -> int:
    return time.time_ns() // 1000


def _status(options: argparse.Namespace) -> int:
    store = open_to_read(options.store)
    try:
        view = look(store, _now())
    finally:
        store.close()
    print(json.dumps(view.to_value()) if options.json else text.status(view))
    return 0


def _inspect(options: argparse.Namespace, load_pipeline: LoadPipeline) -> int:
    codecs = codecs_of(load_pipeline(options.pipeline)) if options.pipeline else None
    store = open_to_read(options.store)
    try:
        found = inspect(store, options.computation, options.key, codecs)
    finally:
        store.close()
    print(json.dumps(dataclasses.asdict(found)) if options.json else text.key(found))
    return 0


def _explain(options: argparse.Namespace) -> int:
    store = open_to_read(options.store)
    try:
        found = explain(store, options.computation)
    finally:
        store.close()
    print(json.dumps(dataclasses.asdict(found)) if options.json else found)
    return 0


def _top(options: argparse.Namespace) -> int:
    store = open_to_read(options.store)
    pause = threading.Event()
    try:
        viewer = Viewer(store)
        looks = 0
        while True:
            view = viewer.look(_now())
            if options.json:
                print(json.dumps(view.to_value()), flush=True)
            else:
                clear = _CLEAR if sys.stdout.isatty() else ""
                print(clear + text.top(view, shutil.get_terminal_size().lines), flush=True)
            looks += 1
            if options.count is not None and looks >= options.count:
                return 0
            pause.wait(options.every)
    finally:
        store.close()


def _ui(options: argparse.Namespace, load_pipeline: LoadPipeline) -> int:
    from millwheel.watch.server import Server

    codecs = codecs_of(load_pipeline(options.pipeline)) if options.pipeline else None
    store = open_to_read(options.store)
    try:
        look(store, _now())  # reports a store without a pipeline at once
        server = Server(store, options.where, codecs=codecs)
        print(f"{server.url} (Ctrl-C ends it)", flush=True)
        try:
            server.wait()
        finally:
            server.close()
    finally:
        store.close()
    return 0
