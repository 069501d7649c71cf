"""``millwheel bench NAME``: runs a benchmark of a checkout (not installed)."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from millwheel.errors import MillWheelError

NEEDED = ("matplotlib", "pandas", "psutil")
_WHAT_TO_DO = (
    "they are in the source tree, not in the installed package. Go to a checkout of millwheel, or name "
    "it with --checkout, and run it there; `make bench` makes the environment and runs them all"
)


def add_bench_command(commands: Any) -> None:
    """Adds ``millwheel bench``."""
    command = commands.add_parser(
        "bench",
        help="run a benchmark of a checkout",
        description="Runs one of the benchmarks of the source tree: one for each figure of the paper, and "
        "our place in the field. Tables go to the screen, JSON and charts to artifacts/bench.",
        epilog="example: millwheel bench field --quick",
    )
    command.add_argument("name", nargs="?", metavar="NAME", help="which one; --list names them")
    command.add_argument("--list", action="store_true", help="name the benchmarks, with what each measures")
    command.add_argument("--quick", action="store_true", help="a small version, to see that it works")
    command.add_argument("--checkout", type=Path, default=Path(), metavar="FOLDER", help="default: this one")
    command.add_argument(
        "--json", action="store_true", help="print the result as JSON, the table as an error"
    )
    command.set_defaults(call=_bench)


def _bench(options: argparse.Namespace) -> int:
    root = _checkout(options.checkout)
    names = _names(root)
    if options.list:
        width = max(map(len, names))
        lines = [f"{name:{width}}  {text}" for name, text in names.items()]
        print(json.dumps(names) if options.json else "\n".join(lines))
        return 0
    if options.name not in names:
        asked = "name a benchmark" if options.name is None else f"there is no benchmark {options.name!r}"
        raise MillWheelError(f"{asked}; there are {', '.join(names)} (see millwheel bench --list)")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MillWheelError(f"the benchmarks need {', '.join(missing)}: pip install -e '.[bench]' in {root}")
    command = [sys.executable, "-m", "benchmarks", options.name, *(["--quick"] if options.quick else [])]
    done = subprocess.run(
        command, cwd=root, env=_environment(root), stdout=sys.stderr if options.json else None
    )
    if options.json and not done.returncode:
        name = f"{options.name}-quick" if options.quick else options.name
        print((root / "artifacts" / "bench" / f"{name}.json").read_text(), end="")
    return 1 if done.returncode else 0


def _checkout(folder: Path) -> Path:
    """The folder of the benchmarks: the given one, or that of this package."""
    here = Path(__file__).resolve().parents[2]
    for root in (folder.resolve(), here) if folder == Path() else (folder.resolve(),):
        if (root / "benchmarks" / "__main__.py").is_file() and (root / "millwheel").is_dir():
            return root
    raise MillWheelError(f"there are no benchmarks in {folder.resolve()}: {_WHAT_TO_DO}")


def _names(root: Path) -> dict[str, str]:
    command = [sys.executable, "-m", "benchmarks", "--list"]
    done = subprocess.run(command, cwd=root, env=_environment(root), capture_output=True, text=True)
    if done.returncode:
        raise MillWheelError(f"the benchmarks in {root} do not start: {done.stderr.strip()[-500:]}")
    names: dict[str, str] = json.loads(done.stdout)
    return names


def _environment(root: Path) -> dict[str, str]:
    """The environment in which benchmarks measure their checkout's code."""
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.fspath(root) + (os.pathsep + path if path else "")}
