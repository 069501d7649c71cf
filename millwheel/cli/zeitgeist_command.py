"""``millwheel zeitgeist INPUT``: anomalies in your own data, without code."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millwheel.apps.zeitgeist.alerts import open_alert
from millwheel.apps.zeitgeist.episodes_page import write_page
from millwheel.apps.zeitgeist.feedback import open_feedback
from millwheel.apps.zeitgeist.inputs import Columns, open_source
from millwheel.apps.zeitgeist.pipeline import count_anomalies, value_anomalies
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.injectors.units import UNITS, to_time
from millwheel.launch import run
from millwheel.master.status import Report
from millwheel.model.keys import by
from millwheel.model.pipeline import Pipeline
from millwheel.model.record import Record
from millwheel.model.time import DAY, HOUR, MINUTE, SECOND
from millwheel.sinks import JsonLines

_UNITS = {"ms": 1_000, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}

Following = Callable[[Pipeline, dict[str, Any]], Report]


def add_command(commands: Any) -> argparse.ArgumentParser:
    """Adds the command to a parser's sub-commands."""
    command: argparse.ArgumentParser = commands.add_parser(
        "zeitgeist",
        help="find anomalies in your own data",
        description="Reads records of (time, key[, value]), learns what is usual for each key, and writes an "
        "anomaly as it begins to OUT/anomalies and once it is over to OUT/episodes, as JSON lines. Without "
        "--value the frequency of a key is compared, with it the measured value. Run again on the same "
        "store it continues where it ended, with what was added since.",
        epilog="example: millwheel zeitgeist 'logs/*.jsonl' --key query --width 1m --out anomalies/",
    )
    add = command.add_argument
    add(
        "input",
        metavar="INPUT",
        help="a pattern of JSON-lines or CSV files, plain or gzip; table:NAME; or kafka://HOST:PORT/TOPIC",
    )
    add(
        "--key",
        metavar="FIELD[,FIELD]",
        help="what is watched: fields of the records (default: all records together)",
    )
    add(
        "--value",
        metavar="FIELD[,FIELD]",
        help="fields with a number that was measured, each watched by itself (default: count records)",
    )
    add("--time", default="time", metavar="FIELD", help="the field with the time (default: time)")
    add("--unit", choices=UNITS, help="how it is written (default: us, if it can be that)")
    add("--id", metavar="FIELD", help="a field that names a record: one that comes again counts once")
    add("--out", required=True, type=Path, metavar="DIR", help="where the anomalies go")
    add("--store", default="memory:", help="where the models are kept (default: memory:, for one run)")
    add("--width", type=duration, default=None, help="of a bucket, such as 1s or 5m (default: 1s, values 5m)")
    add("--day", type=duration, default=DAY, help="the season; the second one is seven of it (default: 1d)")
    add("--sensitivity", type=float, help="decades of confidence; less reports more (default: 7, values 2.7)")
    add("--slack", type=duration, help="how late records may be (default: until a file is read, or 10s)")
    add(
        "--begin",
        metavar="TIME",
        help="when the stream began, as in 2011-01-27: later keys are new",
    )
    add("--follow", action="store_true", help="keep running, and read what is added")
    add(
        "--once",
        action="store_true",
        help="leave the last bucket open for the next run on the same store: none is cut in two where the "
        "input ends, and a key that falls silent between two runs is found",
    )
    add(
        "--errors",
        choices=["stop", "divert"],
        default="stop",
        help="divert: what is no record, or cannot be counted, goes to OUT/errors, and the rest goes on",
    )
    add(
        "--alert",
        action="append",
        default=[],
        metavar="TARGET",
        help="send anomalies there too: kafka://HOST:PORT/TOPIC, http(s)://..., command:COMMAND (repeatable)",
    )
    add(
        "--feedback",
        type=Path,
        metavar="FILE",
        help="lines of OUT/anomalies that were none: their keys must be odder from now on",
    )
    add("--page", action="store_true", help="write OUT/index.html: the episodes, with their plots")
    add("--json", action="store_true", help="print the report as JSON")
    return command


def duration(text: str) -> int:
    """A length of time in microseconds.

    >>> duration("90s") == duration("1.5m")
    True
    """
    unit = "ms" if text.endswith("ms") else text[-1:]
    try:
        length = round(float(text.removesuffix(unit)) * _UNITS[unit])
    except (KeyError, ValueError):
        length = 0
    if length < 1:
        raise argparse.ArgumentTypeError(f"a length of time such as 500ms, 1s, 5m, 2h or 1d, not {text!r}")
    return length


def everything(record: Record) -> str:
    """The one key of records that are watched together."""
    return "all"


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that the options describe."""
    begin = None
    if options.begin is not None:
        begin = to_time(options.begin, "iso", "--begin", text=True)
    return Settings(
        kind="values" if options.value else "counts",
        width=options.width or (5 * MINUTE if options.value else SECOND),
        day=options.day,
        sensitivity=options.sensitivity,
        begin=begin,
    )


def pipeline(options: argparse.Namespace) -> Pipeline:
    """The pipeline that the options describe."""
    settings = settings_of(options)
    columns = Columns(options.time, options.unit, options.id, options.slack, options.errors)
    source = open_source(options.input, columns)
    key = by(*options.key.split(",")) if options.key else everything
    more: dict[str, Any] = {
        "errors": options.errors,
        "feedback": open_feedback(options.feedback) if options.feedback else None,
    }
    if options.value:
        fields = options.value.split(",")
        p = value_anomalies(source, key, fields if len(fields) > 1 else fields[0], settings, **more)
    else:
        p = count_anomalies(source, {"WindowCounter": key}, settings, **more)
    p.sink("anomalies", JsonLines(options.out / "anomalies"))
    p.sink("episodes", JsonLines(options.out / "episodes"))
    for target in options.alert:
        p.sink("anomalies", open_alert(target))
    if options.errors == "divert":
        counter = "WindowMean" if options.value else "WindowCounter"
        p.sink(f"{counter}.errors", JsonLines(options.out / "errors" / "records"))
        p.sink("records.errors", JsonLines(options.out / "errors" / "input"))
    if options.page:
        p.sink("windows", JsonLines(options.out / "windows"))
    return p


def call(options: argparse.Namespace, follow: Following) -> int:
    """Runs the command; ``follow`` runs a pipeline until it is interrupted."""
    arguments: dict[str, Any] = {"store": options.store}
    p = pipeline(options)
    report = follow(p, arguments) if options.follow else run(p, close=not options.once, **arguments)
    if options.page:
        write_page(options.out, settings_of(options))
    if options.json:
        print(json.dumps(dataclasses.asdict(report)))
        return 0
    first = next(iter(report.dropped))
    records = report.records_in - report.streams.get("feedback", 0)
    print(
        f"{records:,} records, {report.dropped[first]:,} of them late and dropped; "
        f"{report.user.get('spikes', 0):,} spikes, {report.user.get('dips', 0):,} dips"
    )
    for record in sorted(JsonLines(options.out / "anomalies").records(), key=lambda record: record.timestamp):
        told = record.value
        began = datetime.datetime.fromtimestamp(told["start"] / SECOND, datetime.timezone.utc)
        print(
            f"{began:%Y-%m-%d %H:%M:%S}  {told['kind']:5}  {told['key']}: {told['actual']:g} "
            f"instead of {told['expected']:.4g} (confidence {told['confidence']}; {told['why']})"
        )
    if options.page:
        print(f"The plots are in {options.out / 'index.html'}")
    return 0
