"""``python -m benchmarks page``: the tables of docs/performance.md, from the results of full runs.

The results that the page is made from are kept in docs/figures, with their charts. A new full run leaves
its own in artifacts/bench; this command takes them over, and writes what is between

    <!-- figures: NAME -->  and  <!-- end -->

anew, with the machine, the versions, the command, the date and the revision. What is around it is written
by hand. Then it prints which figures are of other code than the one that is checked out.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks import results, tables
from benchmarks.suite import NAMES

_ROOT = Path(__file__).resolve().parent.parent
PAGE = _ROOT / "docs" / "performance.md"
FIGURES = results.KEPT
_MORE = {
    "recovery_stores": "recovery --stores lmdb objects postgresql --keys 2000 200000 1000000 --row-bytes 5000"
}
"""Results of a benchmark with options, which have a table of their own; the command of each."""
_BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def run(*, quick: bool = False, check: bool = False) -> None:
    """Takes over new results and writes the page; with ``check``, ends with 1 where it is not up to date."""
    if not check:
        taken = take_over(named(PAGE.read_text()), results.FOLDER, FIGURES)
        print(f"taken over: {', '.join(taken) or 'nothing new'}")
    old = PAGE.read_text()
    new = rendered(old, FIGURES)
    if check and new != old:
        sys.exit("docs/performance.md is not what docs/figures says: run python -m benchmarks page")
    if not check:
        PAGE.write_text(new)
    code = results.measured_code()
    old_ones = older(named(new), FIGURES, code["code"])
    print(f"figures of other code than {code['revision']}:" if old_ones else "all figures are of this code")
    for line in old_ones:
        print(f"  {line}")


def older(names: list[str], figures: Path, code: str) -> list[str]:
    """The figures that are not of ``code``, the hash of the package's tree, and those that are missing."""
    found = []
    for name in names:
        path = figures / f"{name}.json"
        if not path.is_file():
            found.append(f"{name}: not measured")
            continue
        result = json.loads(path.read_text())
        for part, moment in (result.get("measured") or {"": result}).items():
            if not code or moment.get("code") != code:
                revision = f"revision {moment.get('revision') or 'not recorded'}"
                found.append(": ".join(filter(None, [name, part, f"{_date(moment)}, {revision}"])))
    return found


def _date(moment: dict[str, Any]) -> str:
    return moment.get("date") or "no date"


def named(text: str) -> list[str]:
    """The benchmarks that a page has tables of."""
    return [match[2] for match in _BLOCK.finditer(text)]


def take_over(names: list[str], source: Path, target: Path) -> list[str]:
    """Copies new results of full runs that have ended, each with its chart; returns their names."""
    target.mkdir(parents=True, exist_ok=True)
    taken = []
    for name in names:
        found = source / f"{name}.json"
        if not found.is_file():
            continue
        result = json.loads(found.read_text())
        if result.get("quick") or not result.get("complete", True):
            continue
        if (target / found.name).is_file() and (target / found.name).read_text() == found.read_text():
            continue
        shutil.copyfile(found, target / found.name)
        chart = found.with_suffix(".png")
        if chart.is_file():
            shutil.copyfile(chart, target / chart.name)
        taken.append(name)
    return taken


def rendered(text: str, figures: Path) -> str:
    """The page with its tables; those of which there is no result yet say so."""

    def block(match: re.Match[str]) -> str:
        name = match[2]
        if name not in NAMES and name not in _MORE:
            raise ValueError(
                f"docs/performance.md: there is no benchmark {name!r}; there are {', '.join(NAMES)}"
            )
        path = figures / f"{name}.json"
        if not path.is_file():
            return f"{match[1]}Not measured yet: `python -m benchmarks {_MORE.get(name, name)}`.\n{match[3]}"
        result = json.loads(path.read_text())
        parts = [tables.table(name, result), *_note(result), _circumstances(name, result)]
        if path.with_suffix(".png").is_file():
            parts.append(f"![{name}](figures/{name}.png)")
        return match[1] + "\n\n".join(parts) + "\n" + match[3]

    return _BLOCK.sub(block, text)


def _note(result: dict[str, Any]) -> list[str]:
    """What else is to be known of a result, until it is measured again."""
    return [result["note"]] if "note" in result else []


def _circumstances(name: str, result: dict[str, Any]) -> str:
    machine = result["machine"]
    said = [f"`{result.get('command', f'python -m benchmarks {name}')}`"]
    if "date" in result:
        said.append(result["date"])
    if "revision" in result:
        said.append(f"revision {result['revision']}")
    said.append(f"{machine['cores']} cores")
    if "busy_before" in machine:
        said.append(f"{machine['busy_before']:.0f}% of them busy with other work before the run")
    if "memory_gb" in machine:
        said.append(f"{machine['memory_gb']} GB")
    said.append(f"Python {machine['python']}")
    for package, version in result.get("versions", {}).items():
        said.append(f"{package} {version}")
    return f"*{', '.join(said)}; [data](figures/{name}.json).*"
