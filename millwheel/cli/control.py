"""Commands for a running pipeline: ``millwheel apply``, ``rescale`` and ``stop``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from millwheel.master.diff import Change, change, check_accept
from millwheel.master.intervals import check_slots
from millwheel.master.mailbox import ask
from millwheel.model.graph import build
from millwheel.model.pipeline import Pipeline
from millwheel.store.open import open_existing, open_to_read

LoadFactory = Callable[[str], Callable[[], Pipeline]]

_MARGIN = 15.0  # seconds
_PATIENCE = 30.0  # seconds for the current epoch, unless work in flight is to be finished
_TIMEOUT = 120.0  # seconds: an epoch takes one, work in flight a few


def add_asking_commands(commands: Any, load_factory: LoadFactory) -> None:
    """Adds the commands to those of ``millwheel``."""
    command = commands.add_parser(
        "apply",
        help="change a running pipeline to another one",
        description="The pipeline that runs on the store is changed to the one that the function returns, "
        "between two epochs: computations, injectors, sinks and edges are added and removed, and the others "
        "keep state, timers and watermarks. The function is sent to the process that runs the pipeline and "
        "called there. A change that does not fit the kept state is refused, with the reason.",
        epilog="example: millwheel apply zeitgeist:pipeline --store state/ --dry-run",
    )
    command.add_argument("pipeline", metavar="MODULE:FACTORY", help="a function that returns a Pipeline")
    command.add_argument(
        "--dry-run", action="store_true", help="only show the difference; the pipeline need not run"
    )
    command.add_argument(
        "--removed",
        choices=["drain", "drop"],
        default="drain",
        help="a removed computation finishes its work in flight first, or stops at once (default: drain); "
        "its state is kept either way, until `millwheel store forget`",
    )
    add_accept(command)
    _common(command)
    command.set_defaults(call=lambda options: _apply(options, load_factory))

    command = commands.add_parser(
        "rescale",
        help="change the number of slots of a running pipeline",
        description="The pipeline that runs on the store divides its key space into another number of "
        "pieces from its next epoch on. A later `millwheel run` has its own number of slots.",
        epilog="example: millwheel rescale 8 --store state/",
    )
    command.add_argument(
        "slots", type=int, help="the number of slots, from 1 to the tablets of the store (64 by default)"
    )
    _common(command)
    command.set_defaults(call=_rescale)

    command = commands.add_parser(
        "stop",
        help="stop a running pipeline",
        description="Ends the pipeline that runs on the store after its epoch; `millwheel run` on the same "
        "store continues it. With --drain nothing more is read, and work in flight is finished "
        "first: the backlog, and every window that the watermark allows to close.",
        epilog="example: millwheel stop --drain --store state/",
    )
    command.add_argument(
        "--drain",
        action="store_true",
        help="finish work in flight first: the backlog, and timers up to the watermark; windows "
        "beyond it stay open for the next run (`millwheel run --drain` closes them all)",
    )
    _common(command)
    command.set_defaults(call=_stop)


def add_accept(command: argparse.ArgumentParser) -> None:
    """Adds the option that accepts a changed key extractor."""
    command.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="NAME",
        help="accept another key extractor for this computation than the one that made its rows, which keep "
        "the old keys; repeatable",
    )


def _common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--store", required=True, help="the pipeline's store: a path (LMDB) or a URL")
    command.add_argument(
        "--timeout", type=float, default=_TIMEOUT, help=f"seconds to wait (default: {_TIMEOUT:.0f})"
    )
    command.add_argument("--json", action="store_true", help="print JSON")


def _apply(options: argparse.Namespace, load_factory: LoadFactory) -> int:
    factory = load_factory(options.pipeline)
    graph = build(factory())
    store = open_to_read(options.store) if options.dry_run else open_existing(options.store)
    try:
        check_accept(graph, options.accept)
        found = change(graph, store, options.accept)
        if options.dry_run:
            print(json.dumps(found.to_value()) if options.json else text(found))
            return 1 if found.refusals else 0
        found.check()

        from millwheel.spark.pickle_by_value import by_value

        given = {
            "factory": by_value(factory),
            "removed": options.removed,
            "accept": options.accept,
            "python": list(sys.version_info[:2]),
        }
        answer = ask(store, "apply", given, **_waiting(options))
    finally:
        store.close()
    done = Change(**{name: tuple(value) for name, value in answer.items()})
    print(json.dumps(answer) if options.json else f"{graph.name} {done}")
    return 0


def _rescale(options: argparse.Namespace) -> int:
    store = open_existing(options.store)
    try:
        check_slots(options.slots, store.tablets)
        answer = ask(store, "rescale", {"slots": options.slots}, **_waiting(options))
    finally:
        store.close()
    print(json.dumps(answer) if options.json else f"{answer['slots']} slots after epoch {answer['epoch']:,}")
    return 0


def _stop(options: argparse.Namespace) -> int:
    store = open_existing(options.store)
    try:
        # The rest of the time is for Spark to end a worker, and for closing the store.
        within = max(options.timeout - _MARGIN, options.timeout / 2)
        given = {"drain": options.drain, "timeout": within if options.drain else min(within, _PATIENCE)}
        answer = ask(store, "stop", given, **_waiting(options))
    finally:
        store.close()
    how = "drained and stopped" if options.drain else "stopped"
    print(json.dumps(answer) if options.json else f"{how} after epoch {answer['epoch']:,}")
    return 0


def _waiting(options: argparse.Namespace) -> dict[str, Any]:
    def tell(what: str) -> None:
        print(f"millwheel: {what}", file=sys.stderr, flush=True)

    who = f"millwheel {options.command}, process {os.getpid()}"
    return {"who": who, "timeout": options.timeout, "tell": tell}


def text(found: Change) -> str:
    """A difference, a line for each part."""
    signs = {"added": "+", "removed": "-"}
    lines = [f"{signs[what]} {part} {name}" for what, part, name in found.parts]
    lines += [f"= computation {name}" for name in found.kept]
    lines += [f"! {what}" for what in found.keys_changed]
    lines += [f"REFUSED: {why}" for why in found.refusals]
    return "\n".join(lines)
