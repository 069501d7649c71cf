"""Sample data for tutorials and first pipelines: small, from a seed."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.model.time import HOUR, MINUTE, SECOND

Row = dict[str, Any]

_BEGIN = 1_700_000_000_000_000  # 2023-11-14 22:13:20 UTC, in microseconds
_SHUFFLED = 200  # rows that are shuffled, as in logs of several machines
_FILES = 2


def queries(rng: random.Random) -> Iterator[tuple[str, Row]]:
    """Two minutes of search queries: one spikes, one is silent for ten seconds."""
    number = 0
    for second in range(120):
        for query, usual in {"cat videos": 20, "television listings": 12, "weather": 8}.items():
            count = usual + rng.randrange(-2, 3)
            if query == "weather" and 60 <= second < 65:
                count = 60
            if query == "cat videos" and 90 <= second < 100:
                count = 0
            for _ in range(count):
                number += 1
                time = _BEGIN + second * SECOND + rng.randrange(SECOND)
                yield "queries", {"time": time, "id": number, "query": query}


def clicks(rng: random.Random) -> Iterator[tuple[str, Row]]:
    """Clicks of forty users in sessions, over two hours; times in milliseconds."""
    pages = ["home", "search", "product", "cart", "help"]
    countries = ["de", "fr", "in", "us"]
    for user in range(40):
        country = rng.choice(countries)
        time = rng.randrange(HOUR)
        for _ in range(rng.randrange(1, 4)):
            for _ in range(rng.randrange(1, 12)):
                price = round(rng.uniform(1, 90), 2) if rng.random() < 0.2 else 0
                yield (
                    "clicks",
                    {
                        "at": (_BEGIN + time) // 1_000,
                        "user": f"user-{user:02d}",
                        "device": rng.choice(["phone", "laptop"]),
                        "country": country,
                        "url": f"/{rng.choice(pages)}",
                        "price": price,
                    },
                )
                time += rng.randrange(5 * SECOND, 4 * MINUTE)
            time += rng.randrange(31 * MINUTE, 50 * MINUTE)


def orders(rng: random.Random) -> Iterator[tuple[str, Row]]:
    """Orders, and their payments in another file: some are late, some never come."""
    for number in range(500):
        order = f"order-{number:04d}"
        time = _BEGIN + number * 7 * SECOND + rng.randrange(5 * SECOND)
        amount = round(rng.uniform(5, 300), 2)
        yield (
            "orders",
            {"at": time, "order": order, "customer": f"c{rng.randrange(60):02d}", "amount": amount},
        )
        fate = rng.random()
        if fate < 0.8:
            paid = time + rng.randrange(5 * SECOND, 9 * MINUTE)
        elif fate < 0.9:
            paid = time + rng.randrange(11 * MINUTE, 30 * MINUTE)
        else:
            continue
        yield "payments", {"at": paid, "order": order, "amount": amount}


def taxi(rng: random.Random) -> Iterator[tuple[str, Row]]:
    """Taxi rides of a city: start in ISO 8601, duration, pickup zone, fare."""
    from datetime import datetime, timezone

    zones = ["airport", "centre", "harbour", "station", "university"]
    for number in range(2_000):
        time = _BEGIN // SECOND + number * 3 + rng.randrange(3)
        minutes = rng.randrange(3, 45)
        yield (
            "rides",
            {
                "start": datetime.fromtimestamp(time, timezone.utc).isoformat().replace("+00:00", "Z"),
                "ride": number,
                "zone": rng.choices(zones, [3, 5, 1, 4, 2])[0],
                "minutes": minutes,
                "fare": round(3 + minutes * rng.uniform(0.8, 1.4), 2),
            },
        )


SAMPLES: dict[str, Callable[[random.Random], Iterator[tuple[str, Row]]]] = {
    "queries": queries,
    "clicks": clicks,
    "orders": orders,
    "taxi": taxi,
}
_OTHER_NAMES = {"payments": "orders", "rides": "taxi", "taxis": "taxi"}


def write_sample(name: str, folder: Path, seed: int = 1) -> dict[str, int]:
    """Writes a sample as JSON lines; returns the number of records by file."""
    name = _OTHER_NAMES.get(name, name)
    if name not in SAMPLES:
        raise MillWheelError(f"there is no sample {name!r}: choose one of {', '.join(SAMPLES)}")
    rng = random.Random(f"{name} {seed}")
    streams: dict[str, list[Row]] = {}
    for stream, row in SAMPLES[name](rng):
        streams.setdefault(stream, []).append(row)
    written: dict[str, int] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stream, rows in streams.items():
            for number in range(_FILES):
                part = _out_of_order(rows[number::_FILES], rng)
                path = folder / f"{stream}-{number + 1}.jsonl"
                path.write_text("".join(json.dumps(row) + "\n" for row in part))
                written[path.name] = len(part)
    except OSError as error:
        raise MillWheelError(
            f"the folder {folder} cannot be written ({error.strerror}): name another one"
        ) from error
    return written


def _out_of_order(rows: list[Row], rng: random.Random) -> list[Row]:
    field = next(name for name in ("time", "at", "start") if name in rows[0])
    rows = sorted(rows, key=lambda row: str(row[field]))
    places = [(number + rng.randrange(_SHUFFLED), number) for number in range(len(rows))]
    return [rows[number] for _, number in sorted(places)]


def add_sample_command(commands: Any) -> None:
    """Adds ``millwheel sample``."""
    command = commands.add_parser(
        "sample",
        help="write sample data to try things on",
        description="Writes sample data as JSON lines, out of order as logs are: queries (search queries per "
        "second), clicks (sessions of users), orders (orders and their payments), taxi (rides of a city). "
        "The same name and seed give the same files everywhere.",
        epilog="example: millwheel sample queries logs/",
    )
    command.add_argument("name", metavar="NAME", choices=[*SAMPLES, *_OTHER_NAMES], help=", ".join(SAMPLES))
    command.add_argument(
        "folder", metavar="FOLDER", type=Path, help="the folder for the files; it is created"
    )
    command.add_argument("--seed", type=int, default=1, help="another seed, other data (default: 1)")
    command.add_argument("--json", action="store_true", help="print the files and their records as JSON")
    command.set_defaults(call=_call)


def _call(options: argparse.Namespace) -> int:
    written = write_sample(options.name, options.folder, options.seed)
    if options.json:
        print(json.dumps({str(options.folder / name): count for name, count in written.items()}))
        return 0
    for name, count in written.items():
        print(f"{options.folder / name}: {count:,} records")
    return 0
