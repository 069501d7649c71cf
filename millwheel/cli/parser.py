"""The command line: ``millwheel demo``, ``run``, ``zeitgeist`` and others."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from millwheel.cli import zeitgeist_command
from millwheel.cli.bench import add_bench_command
from millwheel.cli.control import add_accept, add_asking_commands
from millwheel.cli.monitor import add_commands
from millwheel.cli.sample import add_sample_command
from millwheel.cli.store_tools import add_store_commands
from millwheel.errors import MillWheelError, PipelineError, StandbyEnded
from millwheel.launch import INTERRUPTED, run, start, tell_of_the_stop
from millwheel.master.options import NAMES
from millwheel.master.status import Report
from millwheel.model.pipeline import Pipeline
from millwheel.tracebacks import brief
from millwheel.version import VERSION

_UI = "serve a page at this port, or at an address such as 0.0.0.0:8080 (then with a token)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 done, 1 failed, 2 called wrongly."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    if getattr(options, "verbose", False):
        os.environ.setdefault("MILLWHEEL_SPARK_LOG", "WARN")
        logging.basicConfig(level=logging.INFO)
    try:
        status: int = options.call(options)
        return status
    except StandbyEnded as ended:
        print(f"millwheel: {ended}", file=sys.stderr)
        return 0
    except MillWheelError as error:
        print(f"millwheel: {brief(error)}", file=sys.stderr)
        return 1
    except _Terminated:
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="millwheel", description="MillWheel on Spark: low-latency, exactly-once stream processing."
    )
    parser.add_argument("--version", action="version", version=f"millwheel {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    demo, command = _add_demo(commands), _add_run(commands)
    found = zeitgeist_command.add_command(commands)
    found.set_defaults(call=lambda options: zeitgeist_command.call(options, _until_interrupted))
    for each in (demo, command, found):
        each.add_argument("--verbose", action="store_true", help="show the log, and Spark's own lines")
    add_commands(commands, load_pipeline)
    add_asking_commands(commands, load_factory)
    add_store_commands(commands, _export)
    add_sample_command(commands)
    add_bench_command(commands)
    return parser


def _add_demo(commands: Any) -> argparse.ArgumentParser:
    demo: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="find what is unusual in a generated stream of search queries",
        description="Counts three days of generated search queries, out of order, and reports spikes and "
        "dips, and a region that goes offline; then compares them with the planted ones.",
        epilog="example: millwheel demo --records 1,000,000 --seed 3",
    )
    demo.add_argument("--records", type=_count, default=300_000, help="number of records (default: 300,000)")
    demo.add_argument("--seed", type=int, default=1, help="another seed, another three days (default: 1)")
    demo.add_argument("--store", default="memory:", help="where state is kept (default: memory:)")
    demo.add_argument("--ui", metavar="PORT", help=_UI + "; default: at a free port, in a terminal")
    demo.add_argument(
        "--report", type=Path, metavar="FILE", help="write the plots here (default: artifacts/zeitgeist.html)"
    )
    demo.add_argument("--json", action="store_true", help="print the result as JSON; a report if asked for")
    demo.set_defaults(call=_demo)
    return demo


def _add_run(commands: Any) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a pipeline",
        description="Runs the pipeline that a function returns. It keeps running until it is interrupted "
        "(Ctrl-C, or SIGTERM), and continues when it is run again on the same store. With "
        "--drain or --once it ends by itself, and the same command run every day over growing input "
        "processes each day's new records.",
        epilog="example: millwheel run zeitgeist:pipeline --store state/ --drain; on a cluster: "
        "millwheel run zeitgeist:pipeline --store postgresql://db/state --master spark://host:7077",
    )
    command.add_argument("pipeline", metavar="MODULE:FACTORY", help="a function that returns a Pipeline")
    command.add_argument(
        "--store",
        required=True,
        help="a path (LMDB) or a URL: postgresql://host/database?schema=NAME, s3://bucket/prefix, memory:",
    )
    command.add_argument(
        "--master", help="Spark master, such as spark://host:7077, yarn, k8s://… (default: local, every core)"
    )
    command.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="a setting of Spark, such as spark.executor.memory=4g; repeatable",
    )
    command.add_argument("--cache", type=int, metavar="BYTES", help="of the store that an executor caches")
    ends = command.add_mutually_exclusive_group()
    ends.add_argument(
        "--drain",
        action="store_true",
        help="end when the injectors are exhausted, and close every window as though event time had ended: "
        "all timers fire and holds end; a window with more records in the next run is emitted again there "
        "(`millwheel stop --drain` closes no window that the watermark has not passed)",
    )
    ends.add_argument(
        "--once",
        action="store_true",
        help="end when the input at the start is processed, and leave windows, timers and holds open for "
        "the next run",
    )
    command.add_argument(
        "--take-over",
        dest="takeover",
        action="store_true",
        help="take the store from a driver that hangs; its later writes are refused",
    )
    command.add_argument(
        "--standby",
        action="store_true",
        help="start Spark, and wait until no other driver leads the pipeline; then run it. Start it twice, "
        "and one takes over when the other ends",
    )
    command.add_argument(
        "--takeover-after",
        type=float,
        metavar="SECONDS",
        help="without a heartbeat of a leader that still has the store (default: 2)",
    )
    add_accept(command)
    command.add_argument("--slots", type=_count, help="pieces of the key space worked on at once")
    command.add_argument(
        "--tablets",
        type=_count,
        help="of a new store: the most slots that it can have, a power of two from 64 to 4096 (default: 64, "
        "with more slots four for each)",
    )
    command.add_argument("--ui", metavar="PORT", help=_UI)
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.set_defaults(call=_run)
    return command


def _count(text: str) -> int:
    try:
        number = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"a number of 1 or more, not {text!r}")
    return number


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name.startswith("spark.") or not separator:
        raise argparse.ArgumentTypeError(f"spark.NAME=VALUE, not {text!r}")
    return name, value


def _demo(options: argparse.Namespace) -> int:
    from millwheel.apps.zeitgeist.demo import demo, tell

    report = options.report
    if report is None and not options.json:
        report = Path("artifacts/zeitgeist.html")
    out = io.StringIO() if options.json else sys.stdout
    ui = options.ui
    if ui is None and out.isatty():
        ui = "0"
    summary = demo(options.records, options.seed, options.store, report, out, ui)
    print(json.dumps(summary) if options.json else tell(summary))
    return 0


def _run(options: argparse.Namespace) -> int:
    pipeline = load_pipeline(options.pipeline)
    arguments: dict[str, Any] = {"store": options.store}
    arguments |= {name: given for name, given in vars(options).items() if name in NAMES and given is not None}
    if options.standby:
        signal.signal(signal.SIGTERM, _terminate)
    if options.master is not None or options.conf:
        from millwheel.spark.session import local_session

        arguments["spark"] = local_session(options.master, dict(options.conf))
    if options.drain or options.once:
        signal.signal(signal.SIGTERM, _terminate)
        report = run(pipeline, close=not options.once, **arguments)
    else:
        report = _until_interrupted(pipeline, arguments)
    print(json.dumps(dataclasses.asdict(report)) if options.json else report)
    return 0


def _export(store: str, folder: str, pipeline: str | None) -> dict[str, int]:
    """Exports with pyarrow if it is installed, otherwise with Spark.

    3,000 rows take 0.5 s with pyarrow and 17 s with Spark, mostly until its first query."""
    found = load_pipeline(pipeline) if pipeline is not None else None
    if importlib.util.find_spec("pyarrow") is not None:
        from millwheel.watch.history_tables import export

        return export(store, folder, found)
    from millwheel.spark.session import local_session
    from millwheel.tables import export as export_with_spark

    return export_with_spark(local_session(), store, folder, found)


class _Terminated(KeyboardInterrupt):
    """SIGTERM: stops the run as Ctrl-C does."""


def _terminate(*_: object) -> None:
    raise _Terminated


def _until_interrupted(pipeline: Pipeline, arguments: dict[str, Any]) -> Report:
    job = start(pipeline, **arguments)
    interrupted = threading.Event()
    again = threading.Event()

    def interrupt(*_: object) -> None:
        (again if interrupted.is_set() else interrupted).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    while not interrupted.is_set():
        if job.wait(0.2) is not None:
            return job.stop()
    tell_of_the_stop()
    job.ask_to_stop(timeout=INTERRUPTED)
    while job.wait(0.2) is None:
        if again.is_set():
            job.ask_to_stop(timeout=0.0)
    return job.stop()


def _load(name: str) -> Any:
    """The object ``MODULE:FACTORY``; modules in the working directory are found."""
    module_name, _, factory_name = name.partition(":")
    if not module_name or not factory_name:
        raise PipelineError(f"a pipeline is named MODULE:FACTORY, such as zeitgeist:pipeline, not {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise PipelineError(
            f"there is no module {error.name!r}: name one that can be imported from {os.getcwd()}"
        ) from error
    factory = getattr(module, factory_name, None)
    if factory is None:
        raise PipelineError(f"the module {module_name!r} has no {factory_name!r}")
    return factory


def load_factory(name: str) -> Callable[[], Pipeline]:
    """The function that makes a pipeline, for another process to call."""
    factory: Callable[[], Pipeline] = _load(name)
    if not callable(factory):
        raise PipelineError(f"{name} is {factory!r}, not a function that returns a millwheel.Pipeline")
    return factory


def load_pipeline(name: str) -> Pipeline:
    """The pipeline that ``MODULE:FACTORY`` makes, or is."""
    factory = _load(name)
    pipeline = factory() if callable(factory) else factory
    if not isinstance(pipeline, Pipeline):
        raise PipelineError(f"{name} returned {pipeline!r}, not a millwheel.Pipeline")
    return pipeline
