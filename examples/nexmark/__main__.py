"""``python -m examples.nexmark QUERY``: runs a query on Spark, and shows what it found."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import millwheel as mw
from examples.nexmark import reference, source
from examples.nexmark.events import House
from examples.nexmark.operators import OPERATORS
from examples.nexmark.pipeline import MAX_SKEW, pipeline
from examples.nexmark.queries import QUERIES
from millwheel.spark.session import local_session

_SHOWN = 10  # rows


def main() -> int:
    """Runs what the command line asks for; 1 where the answer is not that of the batch computation."""
    arguments = _parser().parse_args()
    try:
        house = House(arguments.events, rate=arguments.rate, seed=arguments.seed)
    except ValueError as error:
        print(f"nexmark: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="nexmark-") as work:
        found = _run(arguments, house, Path(work))
    print(json.dumps(found) if arguments.json else _text(found))
    return 0 if found["correct"] in (True, None) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.nexmark",
        description="Runs a NEXMark query on Spark over generated events, and shows its last results.",
        epilog="Example: python -m examples.nexmark q5 --events 100000 --check",
    )
    parser.add_argument("query", choices=OPERATORS, metavar="QUERY", help=", ".join(OPERATORS))
    parser.add_argument("--operators", action="store_true", help="written in operators, not by hand")
    parser.add_argument("--events", type=int, default=100_000, help="how many (default: 100,000)")
    parser.add_argument("--rate", type=int, default=1_000, help="in a second of event time (default: 1,000)")
    parser.add_argument("--seed", type=int, default=1, help="other seeds, other events (default: 1)")
    parser.add_argument("--files", metavar="FOLDER", help="write them there as JSON lines, and read those")
    parser.add_argument("--check", action="store_true", help="compare with a batch computation")
    parser.add_argument("--json", action="store_true", help="for a program: one object with every row")
    return parser


def _run(arguments: argparse.Namespace, house: House, work: Path) -> dict[str, Any]:
    sources = source.made(house)
    if arguments.files:
        source.write(arguments.files, house)
        sources = source.files(arguments.files, house)
    sink = mw.sinks.JsonLines(work / "results")
    p = pipeline(arguments.query, sources, sink, operators=arguments.operators)
    spark = local_session()
    try:
        started = time.perf_counter()
        report = mw.run(p, store=work / "store", spark=spark, max_skew=MAX_SKEW)
        seconds = time.perf_counter() - started
    finally:
        spark.stop()
    rows = [record.value for record in sorted(sink.records(), key=lambda record: record.timestamp)]
    return {
        "query": arguments.query,
        "records": report.records_in,
        "epochs": report.epochs,
        "seconds": round(seconds, 3),
        "records_per_second": round(report.records_in / seconds),
        "late": sum(report.late.values()),
        "correct": reference.same(arguments.query, rows, house.all()) if arguments.check else None,
        "results": rows,
    }


def _text(found: dict[str, Any]) -> str:
    rows = found["results"]
    query = found["query"]
    by_hand = QUERIES.get(query)
    about = OPERATORS[query].add.__doc__ if by_hand is None else sys.modules[by_hand.__name__].__doc__
    lines = [(about or "").partition("\n")[0], ""]
    lines += _table(rows[-_SHOWN:])
    if len(rows) > _SHOWN:
        lines.append(f"... the last {_SHOWN} of {len(rows):,} results, by time")
    lines.append("")
    lines.append(
        f"{found['records']:,} records in {found['seconds']:.1f} s: "
        f"{found['records_per_second']:,} in a second; {found['epochs']} epochs, {found['late']} late"
    )
    if found["correct"] is not None:
        lines.append("the same as the batch answer" if found["correct"] else "NOT THE BATCH ANSWER")
    return "\n".join(lines)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Columns that line up; moments as text, and what only fills a record left out."""
    if not rows:
        return ["no results"]
    names = [name for name in rows[0] if name != "extra"]
    cells = [names, *([_cell(name, row[name]) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]


def _cell(name: str, value: Any) -> str:
    if name in ("dateTime", "window", "time", "start", "end"):
        moment = time.gmtime(value // mw.SECOND)
        return time.strftime("%H:%M:%S", moment) + f".{value % mw.SECOND // 1_000:03d}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
