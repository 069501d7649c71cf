"""The tables of docs/performance.md that have other systems in them, or other revisions."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from benchmarks import markdown
from benchmarks.arrival import EARLY, arrives

_PERCENTILES = ("p50", "p95", "p99")


def _field(result: dict[str, Any]) -> str:
    rows: list[list[object]] = []
    for case in result["cases"]:
        for name, part in case["systems"].items():
            ratio = part.get("millwheel_is")
            goal = f"{part['goal']:g}" if part.get("goal") is not None else ""
            windows = "yes" if part["same_windows"] else "NO"
            rows.append(
                [
                    case["keys"],
                    name,
                    part["records"],
                    part["records_per_second"],
                    f"{min(part['rates']):,} to {max(part['rates']):,}",
                    len(part["rates"]),
                    f"{part['start_up_seconds']:.1f} s",
                    f"{ratio:.2f}" if ratio else "",
                    goal,
                    windows,
                    part["guarantee"],
                ]
            )
    head = [
        "keys",
        "system",
        "records",
        "records/s",
        "of the rounds",
        "rounds",
        "start-up",
        "millwheel is, times",
        "goal",
        "right result",
        "guarantee",
    ]
    said = markdown.without_data(result)
    failed = Counter(failure["system"] for failure in result["failures"])
    said += [f"{name}: {count} turns failed." for name, count in failed.items()]
    return "\n\n".join([markdown.table(head, rows), *_goals(result), *said, *_earlier(result)])


def _goals(result: dict[str, Any]) -> list[str]:
    """The goals of the job in operators, case by case."""
    said = []
    for case in result["cases"]:
        for name, part in case["systems"].items():
            if (found := part.get("operators")) is not None:
                what = f"{case['keys']:,} keys, operators against {name}"
                are, least = f"{found['are']:.2f} times", f"at least {found['goal']:g}"
                said.append(markdown.goal(what, are, least, found["passed"]))
            if (found := part.get("of_lines")) is not None:
                what = f"{case['keys']:,} keys, operators from Parquet against JSON lines"
                are, least = f"{found['is']:.2f} times", f"at least {found['goal']:g}"
                said.append(markdown.goal(what, are, least, found["passed"]))
    return ["\n".join(f"* {line}" for line in said)] if said else []


def _earlier(result: dict[str, Any]) -> list[str]:
    """Of a result of several runs: which systems were not measured in the last one, and when they were."""
    runs: dict[tuple[str, ...], list[str]] = {}
    for name, moment in result.get("measured", {}).items():
        found = tuple(moment[part] for part in ("command", "date", "revision"))
        if found != tuple(result[part] for part in ("command", "date", "revision")):
            runs.setdefault(found, []).append(name)
    return [
        f"Measured in another run (`{command}`, {date}, revision {revision or 'not recorded'}): "
        f"{', '.join(names)}."
        for (command, date, revision), names in runs.items()
    ]


def _throughput(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [
            case["keys"],
            case["millwheel"]["median"],
            case["transformWithState"]["median"],
            case["ratio"],
            case["target"],
        ]
        for case in result["cases"]
    ]
    return markdown.table(
        ["keys", "millwheel, records/s", "transformWithState, records/s", "ratio", "goal"], rows
    )


def _latency(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [name, arrives(name), *(f"{part[key]:,.0f} ms" for key in _PERCENTILES)]
        for name, part in result["systems"].items()
    ]
    systems = markdown.table(["", "a record arrives", *_PERCENTILES], rows)
    early = f"{EARLY[0]} and {EARLY[1]} emit a record before anything of it is durable, the others after."
    if not result.get("curve"):
        return f"{systems}\n\n{early}\n\nThe curve from 100 to 50,000 records/s is not measured yet."
    names = [name for name in result["curve"][0] if name.startswith("p")]
    points: list[list[object]] = [
        [
            *(point[part] for part in ("system", "source", "stages")),
            arrives(point["system"]),
            point["rate"],
            *(f"{point[name]:,.1f} ms" for name in names),
        ]
        for point in result["curve"]
    ]
    head = ["system", "source", "stages", "a record arrives", "records/s", *names]
    under_load = markdown.table(head, points)
    goals = [
        markdown.goal(goal["what"], f"{goal['is']:g}", f"at most {goal['most']:g}", goal["passed"])
        for goal in result["curve_goals"]
    ]
    listed = "\n".join(f"* {goal}" for goal in goals)
    part = [] if result.get("complete", True) else ["The run did not end: this is what it measured."]
    return "\n\n".join([systems, early, under_load, listed, *part, *markdown.without_data(result)])


def _postgres(result: dict[str, Any]) -> str:
    systems = {name: part for name, part in result.items() if isinstance(part, dict) and "median" in part}
    rows: list[list[object]] = [[name, part["median"]] for name, part in systems.items()]
    said = (
        f"{result['keys']:,} keys: PostgreSQL has {result['ratio']:.1f} times the rate of "
        f"`transformWithState` (goal: {result['target']:g}), and {result['of_lmdb']:.2f} of that of LMDB."
    )
    return "\n\n".join([markdown.table(["", "records/s"], rows), said])


def _nexmark(result: dict[str, Any]) -> str:
    head = ["query", "records read", "results", "records/s (median)", "slowest", "fastest"]
    keys = ("records", "results", "records_per_second", "slowest", "fastest")
    return markdown.table(
        head, [[name, *(case[key] for key in keys)] for name, case in result["queries"].items()]
    )


def _joins(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [
            name,
            part["records_per_second"],
            f"{min(part['rates']):,} to {max(part['rates']):,}",
            f"{part['start_up_seconds']:.1f} s",
            "yes" if part["same_pairs"] else "NO",
        ]
        for name, part in result["systems"].items()
    ]
    state = result["state"]
    what = f"The largest store of the later part of {state['records']:,} records against the earlier"
    said = [
        markdown.goal(
            "millwheel against Structured Streaming's join",
            f"{result['millwheel_is']:.2f} times",
            f"at least {result['goal']:g}",
            result["passed"],
        ),
        markdown.goal(what, f"{state['growth']:.2f} times", f"at most {state['limit']:g}", state["bounded"]),
    ]
    head = ["", "records/s", "of the rounds", "start-up", "right result"]
    return "\n\n".join([markdown.table(head, rows), *said])


def _objects(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [
            case["keys"],
            case["objects"]["median"],
            case["LMDB"]["median"],
            f"{case['of_lmdb']:.2f}",
            f"{case['target']:g}",
        ]
        for case in result["cases"]
    ]
    costs: list[list[object]] = [
        [
            case["keys"],
            ", ".join(f"{count:,} {name}" for name, count in case["requests"].items()),
            f"{case['dollars']:.4f}",
            *(f"{count / 1e6:,.1f} MB" for count in case["bytes"].values()),
            "; ".join(f"{name} {price:.4f}" for name, price in case["dollars_of_bytes"].items()),
        ]
        for case in result["cases"]
    ]
    delayed: list[list[object]] = [
        [
            case["keys"],
            case["without"]["median"],
            case["with"]["median"],
            f"{case['ratio']:.2f}",
            f"{case['target']:g}",
            f"{case['shortest']:.0f} s",
        ]
        for case in result["delayed"]
    ]
    head = ["keys", "object storage, records/s", "LMDB, records/s", "ratio", "goal"]
    cost = ["keys", "requests for a million records", "dollars", "sent", "received", "dollars for the bytes"]
    late = f"with {result['delay'] * 1e3:.0f} ms before each request"
    slow = [f"keys, epochs of {result['epoch']:g} s", "without delay, records/s", late, "ratio", "goal"]
    return "\n\n".join(
        [
            markdown.table(head, rows),
            markdown.table(cost, costs),
            markdown.table([*slow, "shortest run"], delayed),
        ]
    )


def _start(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [f"{name} an archive", f"{found['session']:.1f} s", f"{found['first']:.1f} s"]
        for name, found in result["medians"].items()
    ]
    tables = [markdown.table(["from `mw.run`", "to Spark", "to the first output"], rows)]
    if "systems" not in result:
        return tables[0]
    empty: list[list[object]] = [
        [name, *(f"{both[way]:.1f} s" if way in both else "" for way in ("with", "without"))]
        for name, both in result["systems"].items()
    ]
    head = ["from an empty process to the first output", "with an archive", "without"]
    tables.append(markdown.table(head, empty))
    return "\n\n".join([*tables, *markdown.without_data(result)])


def _compare(result: dict[str, Any]) -> str:
    rows: list[list[object]] = []
    for name, (median, low, high) in result["ratios"].items():
        mine, theirs = (statistics.median(result["found"][side][name]) for side in ("this", "other"))
        change = "no change beyond the noise" if low <= 1 <= high else "changed"
        rows.append(
            [name, f"{mine:,.1f}", f"{theirs:,.1f}", f"{median:.2f}", f"{low:.2f} to {high:.2f}", change]
        )
    return markdown.table(["", "this", result["other"], "ratio", "between", ""], rows)


def _nexmark_field(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [
            query,
            name,
            part["records_per_second"],
            f"{part['state_bytes'] / 1e6:,.1f} MB",
            part["lines"],
            "yes" if part["correct"] and found["same_number_of_results"] else "NO",
        ]
        for query, found in result["queries"].items()
        for name, part in found["systems"].items()
    ]
    head = ["query", "system", "records/s", "state at most", "lines of code", "right result"]
    return "\n\n".join([markdown.table(head, rows), *markdown.without_data(result)])


def _zeitgeist(result: dict[str, Any]) -> str:
    throughput, lag = result["throughput"], result["lag_milliseconds"]
    rows: list[list[object]] = [
        [name, round(throughput[name]["median"]), f"{lag[name]['mean']:,.0f} ms"]
        for name in ("millwheel", "transformWithState")
    ]
    found = throughput["anomalies"]
    said = (
        f"{throughput['ratio']:.1f} times the rate; anomalies found by both: {found['same']}, by millwheel "
        f"{found['millwheel']}, by `transformWithState` {found['transformWithState']}."
    )
    head = ["", "queries/s", "watermark behind real time (mean)"]
    return "\n\n".join([markdown.table(head, rows), said])


RENDERERS = {
    "field": _field,
    "throughput": _throughput,
    "latency": _latency,
    "postgres": _postgres,
    "nexmark": _nexmark,
    "nexmark_field": _nexmark_field,
    "joins": _joins,
    "objects": _objects,
    "start": _start,
    "compare": _compare,
    "zeitgeist": _zeitgeist,
}
