"""``python -m benchmarks [NAME]``: one benchmark, or all of them one after the other."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

from benchmarks import results, suite
from benchmarks.peers import environments
from benchmarks.suite import NAMES
from tests.servers import processes


def main() -> int:
    """Runs what the command line asks for; 0 if it ended, whatever the figures are."""
    arguments = _parser().parse_args()
    if arguments.list:
        print(json.dumps(catalogue()))
        return 0
    # Leaves by the usual way, so that stores and input are removed and Spark is stopped.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if arguments.name is None:
        return suite.run(quick=arguments.quick)
    results.measured_code()  # before the run: the checkout may be moved while it goes on
    results.busy_before()
    try:
        _run(arguments)
    except (environments.Unavailable, processes.Unavailable) as error:
        print(f"{suite.SKIPPED_TEXT}{error}")
        return suite.SKIPPED
    return 0


def _run(arguments: argparse.Namespace) -> None:
    benchmark = importlib.import_module(f"benchmarks.{arguments.name}")
    options = {name: value for name, value in vars(arguments).items() if name not in ("name", "list")}
    entry: Callable[..., Any] = getattr(benchmark, "main", None) or benchmark.run
    if options.pop("tablets", False):
        benchmark.run_tablets()
        return
    if options.pop("parts", False):
        options.pop("rounds", None)
        entry = benchmark.run_parts
    if options["quick"] and "rounds" in inspect.signature(entry).parameters:
        options.setdefault("rounds", 1)
    entry(**options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures millwheel; tables go to the screen, JSON and charts to artifacts/bench.",
        epilog="Without a name, all of them run, each in a process of its own. "
        "Example: python -m benchmarks throughput --quick",
    )
    parser.add_argument("--quick", action="store_true", help="a small version of everything, two at a time")
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

    def rounds(command: argparse.ArgumentParser, text: str) -> None:
        # Without a default: a quick run has one round, and a full one as many as its benchmark says.
        command.add_argument("--rounds", type=int, default=argparse.SUPPRESS, help=text)

    command = add("field", "windowed counts on millwheel and on its peers, two cores, interleaved")
    rounds(command, "turns of each system (default: 3)")
    command.add_argument(
        "--only",
        action="append",
        metavar="SYSTEM",
        help="this system, may be repeated; the others keep their recorded figures",
    )
    command = add("profile", "microseconds a record by part of the hot path, in one process")
    command.add_argument("--keys", type=int, help="how many keys (default: 1,000, then 100,000)")
    command.add_argument("--records", type=int, help="how many records (default: 1,000,000)")
    command.add_argument("--flame", action="store_true", help="draw a flame graph too, with py-spy")
    command.add_argument("--store-tablets", type=int, nargs="+", help="numbers of them (default: 64)")
    command = add("path", "what each special case of a record's path wins against the plain way, in turns")
    rounds(command, "turns of each alternative (default: 7)")
    command.add_argument("--only", action="append", metavar="NAME", help="this alternative; may be repeated")
    command.add_argument("--case", action="append", metavar="TEXT", help="cases with this in their name")
    command = add("compare", "this code against another revision, in turns: throughput and latency")
    command.add_argument(
        "revision", metavar="REVISION", nargs="?", default="HEAD", help="default: HEAD, the last commit"
    )
    rounds(command, "turns of each (default: 5)")
    command.add_argument("--seconds", type=float, default=10.0, help="of a latency test (default: 10)")
    command.add_argument("--records", type=int, default=500_000, help="in a count (default: 500,000)")
    command.add_argument("--only", action="append", metavar="TEXT", help="measures with this in their name")
    command = add("page", "docs/performance.md from the results of full runs; measures nothing")
    command.add_argument(
        "--check", action="store_true", help="say whether it is up to date, and write nothing"
    )
    command = add("throughput", "windowed counts by key, against transformWithState")
    rounds(command, "turns of each system (default: 3)")
    command = add(
        "latency", "from an external writer to the sink at 1,000 records/s, against transformWithState"
    )
    rounds(command, "turns of each system (default: 2)")
    add("lag", "low watermarks behind real time in three stages (Fig. 15), against Structured Streaming")
    add("skew", "one of eight partitions an hour behind: what waits in the store (8.4)")
    command = add("balance", "skewed streams with key intervals that follow the load, and without (7.1)")
    rounds(command, "turns of each (default: 2)")
    command.add_argument("--tablets", action="store_true", help="calculates what finer tablets were worth")
    command.add_argument("--minute", type=float, help="seconds between shifts of the hot range (default: 60)")
    command = add("hotkey", "one key with nine tenths of the records, with combine= and without (8.4)")
    rounds(command, "turns of each (default: 3)")
    add("slots", "latency with 1 to 32 slots, input in proportion (Fig. 14), and what a slot costs")
    add("scale", "the driver's work for an epoch with up to 4,096 slots, and the cost of a Spark task")
    add("timers", "a million timers that wait, and how late wall timers fire")
    command = add("guarantees", "what exactly-once and strong productions cost (8.1)")
    rounds(command, "turns of each case (default: 2)")
    command = add("sweeps", "throughput against keys, record size, levels and state size")
    command.add_argument("--most-keys", type=int, default=10_000_000, help="default: 10,000,000")
    command = add("recovery", "from kill -9 of the driver to the first new output, against state size")
    rounds(command, "kills for each size (default: 3)")
    command.add_argument(
        "--stores",
        nargs="+",
        metavar="STORE",
        help="of lmdb, objects, s3, postgresql, or a postgresql:// URL",
    )
    command.add_argument("--keys", type=int, nargs="+", help="sizes in keys (a key takes 150 to 250 bytes)")
    command.add_argument("--row-bytes", type=int, help="of a key's state, which then does not compress")
    command = add(
        "lost_worker", "from kill -9 of a worker with its disk to a moved slot's first output, by state size"
    )
    rounds(command, "losses for each size (default: 3)")
    command.add_argument(
        "--store", choices=("objects", "s3"), default="objects", help="a folder, or an S3 server of its own"
    )
    command.add_argument("--keys", type=int, nargs="+", help="sizes in keys of 5,000 bytes")
    command = add("takeover", "from kill -9 of a leader to its standby's first output, LMDB and PostgreSQL")
    rounds(command, "kills for each store (default: 5)")
    command = add("start", "from mw.run to the first output, with the archive of classes and without")
    rounds(command, "turns of each (default: 7)")
    add("syncs", "the disk syncs of a compact epoch, by file, and how long each takes; needs strace")
    add("idle", "CPU time of a pipeline that waits for input, against Spark alone")
    command = add(
        "growth", "time a record in long runs and with many keys; the store's size against its state"
    )
    command.add_argument("--minutes", type=float, default=25.0, help="of the long run at most (default: 25)")
    command.add_argument("--most-keys", type=int, default=10_000_000, help="default: 10,000,000")
    add("dedup", "five million record IDs in one interval")
    command = add("in_order", "windowed counts with in_order=True and without, in turns")
    rounds(command, "turns of each (default: 5)")
    command = add(
        "joins", "two streams joined within a minute, beside Structured Streaming's join; its state"
    )
    rounds(command, "turns of each system (default: 3)")
    add("cache", "CPU of worker and database against the size of the cache (Fig. 16), on PostgreSQL")
    command = add("overhead", "what the history, the page and the metrics cost, on against off, in turns")
    rounds(command, "turns of each (default: 5)")
    command.add_argument("--parts", action="store_true", help="each part by itself, in CPU time")
    add("looking", "how long status, inspect and explain take on a store of many keys")
    add("nab", "the Numenta Anomaly Benchmark: labelled series, one set of parameters")
    add("planted", "spikes and dips of known size in counts: found, how soon, and false alarms")
    add("wikipedia", "a day of edits: the five most notable spikes")
    add("zeitgeist", "the whole pipeline of Fig. 1, against transformWithState")
    command = add("watched", "zeitgeist with a million keys: the size of the store, and memory")
    command.add_argument("--keys", type=int, help="how many keys (default: 1,000,000)")
    command = add("nexmark", "the NEXMark queries, each compared with a batch computation")
    rounds(command, "turns of each query (default: 3)")
    command = add("nexmark_field", "the NEXMark queries q0 to q8 from files, beside Flink SQL")
    rounds(command, "turns of each system (default: 3)")
    command.add_argument("--only", action="append", metavar="QUERY", help="this query; may be repeated")
    add("io", "reading, each injector against the plain reader; 10,000 files, and one of 2 GB")
    command = add("s3_input", "a gigabyte of JSON lines from S3 on loopback and from disk, in turns")
    rounds(command, "turns of each (default: 3)")
    command = add("memory", "many distinct keys through a driver of 4 GB and workers of 1 GB")
    command.add_argument("--keys", type=int, help="how many keys (default: 10,000,000)")
    command = add("postgres", "windowed counts by key: PostgreSQL, LMDB and transformWithState")
    rounds(command, "turns of each (default: 3)")
    command = add("objects", "windowed counts by key: object storage and LMDB, and the requests it takes")
    rounds(command, "turns of each (default: 3)")
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


if __name__ == "__main__":
    sys.exit(main())
