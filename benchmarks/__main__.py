"""``python -m benchmarks [NAME]``: one benchmark, or all of them one after the other."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_TIME_LIMITS = {  # seconds, of a full run
    "field": 5_400,
    "profile": 300,
    "path": 1_800,
    "throughput": 1_800,
    "latency": 1_800,
    "lag": 600,
    "skew": 600,
    "balance": 1_800,
    "hotkey": 900,
    "slots": 900,
    "timers": 600,
    "guarantees": 1_200,
    "sweeps": 3_600,
    "recovery": 1_800,
    "start": 600,
    "growth": 4_500,
    "dedup": 900,
    "in_order": 600,
    "cache": 1_200,
    "overhead": 1_200,
    "looking": 600,
    "nab": 600,
    "planted": 900,
    "wikipedia": 600,
    "zeitgeist": 1_800,
    "nexmark": 1_800,
    "io": 1_200,
    "memory": 2_400,
    "postgres": 1_200,
    "objects": 1_200,
    "manykeys": 2_400,
    "soak": 5_400,
}
NAMES = tuple(_TIME_LIMITS)


def main() -> int:
    """Runs what the command line asks for; 0 if it ended, whatever the figures are."""
    arguments = _parser().parse_args()
    if arguments.list:
        print(json.dumps(catalogue()))
        return 0
    # Leaves by the usual way, so that stores and input are removed and Spark is stopped.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if arguments.name is None:
        return _all(quick=arguments.quick)
    benchmark = importlib.import_module(f"benchmarks.{arguments.name}")
    options = {name: value for name, value in vars(arguments).items() if name not in ("name", "list")}
    entry: Callable[..., Any] = getattr(benchmark, "main", None) or benchmark.run
    if options.pop("tablets", False):
        benchmark.run_tablets()
        return 0
    if options.pop("parts", False):
        del options["rounds"]
        entry = benchmark.run_parts
    entry(**options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures millwheel; tables go to the screen, JSON and charts to artifacts/bench.",
        epilog="Without a name, all of them run, each in a process of its own. "
        "Example: python -m benchmarks throughput --quick",
    )
    parser.add_argument("--quick", action="store_true", help="a small version of everything")
    parser.add_argument("--list", action="store_true", help="print what there is, as JSON, and end")
    parser.set_defaults(name=None)
    names = parser.add_subparsers(metavar="NAME", help="run one of them")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        command = names.add_parser(name, help=text, description=text)
        # The default must not overwrite a --quick that was given before the name.
        command.add_argument(
            "--quick", action="store_true", default=argparse.SUPPRESS, help="a small version"
        )
        command.set_defaults(name=name)
        return command

    command = add("field", "windowed counts on millwheel and on its peers, two cores, interleaved")
    command.add_argument("--rounds", type=int, default=3, help="turns of each system (default: 3)")
    command.add_argument(
        "--only", action="append", metavar="SYSTEM", help="this system; may be given more than once"
    )
    command = add("profile", "microseconds a record by part of the hot path, in one process")
    command.add_argument("--keys", type=int, help="how many keys (default: 1,000, then 100,000)")
    command.add_argument("--records", type=int, help="how many records (default: 1,000,000)")
    command.add_argument("--flame", action="store_true", help="draw a flame graph too, with py-spy")
    command = add("path", "what each special case of a record's path wins against the plain way, in turns")
    command.add_argument("--rounds", type=int, default=7, help="turns of each alternative (default: 7)")
    command.add_argument("--only", action="append", metavar="NAME", help="this alternative; may be repeated")
    command.add_argument("--case", action="append", metavar="TEXT", help="cases with this in their name")
    command = add("page", "docs/performance.md from the results of full runs; measures nothing")
    command.add_argument(
        "--check", action="store_true", help="say whether it is up to date, and write nothing"
    )
    command = add("throughput", "windowed counts by key, against transformWithState")
    command.add_argument("--rounds", type=int, default=3, help="turns of each system (default: 3)")
    command = add(
        "latency", "from an external writer to the sink at 1,000 records/s, against transformWithState"
    )
    command.add_argument("--rounds", type=int, default=2, help="turns of each system (default: 2)")
    add("lag", "low watermarks behind real time in three stages (Fig. 15), against Structured Streaming")
    add("skew", "one of eight partitions an hour behind: what waits in the store (8.4)")
    command = add("balance", "skewed streams with key intervals that follow the load, and without (7.1)")
    command.add_argument("--rounds", type=int, default=2, help="turns of each (default: 2)")
    command.add_argument("--tablets", action="store_true", help="calculates what finer tablets were worth")
    command.add_argument("--minute", type=float, help="seconds between shifts of the hot range (default: 60)")
    command = add("hotkey", "one key with 90% of the records, with combine= and without (8.4)")
    command.add_argument("--rounds", type=int, default=3, help="turns of each (default: 3)")
    add("slots", "latency with 1 to 32 slots, input in proportion (Fig. 14), and what a slot costs")
    add("timers", "a million timers that wait, and how late wall timers fire")
    command = add("guarantees", "what exactly-once and strong productions cost (8.1)")
    command.add_argument("--rounds", type=int, default=2, help="turns of each case (default: 2)")
    command = add("sweeps", "throughput against keys, record size, levels and state size")
    command.add_argument("--most-keys", type=int, default=10_000_000, help="default: 10,000,000")
    command = add("recovery", "from kill -9 of the driver to the first new output, against state size")
    command.add_argument("--rounds", type=int, default=3, help="kills for each size (default: 3)")
    command = add("start", "from mw.run to the first output, with the archive of classes and without")
    command.add_argument("--rounds", type=int, default=7, help="turns of each (default: 7)")
    command = add(
        "growth", "time a record in long runs and with many keys; the store's size against its state"
    )
    command.add_argument("--minutes", type=float, default=25.0, help="of the long run at most (default: 25)")
    command.add_argument("--most-keys", type=int, default=10_000_000, help="default: 10,000,000")
    add("dedup", "five million record IDs in one interval")
    command = add("in_order", "windowed counts with in_order=True and without, in turns")
    command.add_argument("--rounds", type=int, default=5, help="turns of each (default: 5)")
    add("cache", "CPU of worker and database against the size of the cache (Fig. 16), on PostgreSQL")
    command = add("overhead", "what the history, the page and the metrics cost, on against off, in turns")
    command.add_argument("--rounds", type=int, default=5, help="turns of each (default: 5)")
    command.add_argument("--parts", action="store_true", help="each part by itself, in CPU time")
    add("looking", "how long status, inspect and explain take on a store of many keys")
    add("nab", "the Numenta Anomaly Benchmark: labelled series, one set of parameters")
    add("planted", "spikes and dips of known size in counts: found, how soon, and false alarms")
    add("wikipedia", "a day of edits: the five most notable spikes")
    add("zeitgeist", "the whole pipeline of Fig. 1, against transformWithState")
    command = add("nexmark", "the NEXMark queries, each compared with a batch computation")
    command.add_argument("--rounds", type=int, default=3, help="turns of each query (default: 3)")
    add("io", "reading, each injector against the plain reader; 10,000 files, and one of 2 GB")
    command = add("memory", "many distinct keys through a driver of 4 GB and workers of 1 GB")
    command.add_argument("--keys", type=int, help="how many keys (default: 10,000,000)")
    command = add("postgres", "windowed counts by key: PostgreSQL, LMDB and transformWithState")
    command.add_argument("--rounds", type=int, default=3, help="turns of each (default: 3)")
    command = add("objects", "windowed counts by key: object storage and LMDB, and the requests it takes")
    command.add_argument("--rounds", type=int, default=3, help="turns of each (default: 3)")
    command = add("manykeys", "an epoch that touches 1,000 of many keys in PostgreSQL")
    command.add_argument("--keys", type=int, help="how many keys (default: 20,000,000)")
    command = add("soak", "many epochs at low load: does anything grow?")
    command.add_argument("--epochs", type=int, help="how many epochs (default: 20,000)")
    command.add_argument(
        "--wide",
        choices=("alternate", "always", "never"),
        default="alternate",
        help="which epochs have a shuffle (default: every other one)",
    )
    return parser


def catalogue() -> dict[str, str]:
    """What each benchmark measures, by name."""
    parsers = next(action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    texts = {choice.dest: choice.help or "" for choice in parsers._choices_actions}
    return {name: texts[name] for name in NAMES}


def _all(*, quick: bool) -> int:
    """Each in its own process: a Spark driver's memory is set once, and a failure stays its own."""
    failed = []
    for name in NAMES:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", "benchmarks", name, *(["--quick"] if quick else [])]
        try:
            code = subprocess.run(command, timeout=_TIME_LIMITS[name]).returncode
        except subprocess.TimeoutExpired:
            print(f"{name} took longer than {_TIME_LIMITS[name]} seconds", file=sys.stderr)
            code = 1
        if code:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
