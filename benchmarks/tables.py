"""The tables of docs/performance.md: from the result of a benchmark to Markdown."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import input_tables, markdown, peer_tables, planted

_PERCENTILES = ("p50", "p95", "p99")


def _guarantees(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [name, *(f"{part[key]:,.0f} ms" for key in _PERCENTILES), part["records_per_second"]]
        for name, part in result["cases"].items()
    ]
    return markdown.table(["", *_PERCENTILES, "records/s"], rows)


def _lag(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [name, f"{part['mean']:,.0f} ms", f"{part['stdev']:,.0f} ms"]
        for name, part in result["lag_milliseconds"].items()
    ]
    return markdown.table(["", "behind real time (mean)", "standard deviation"], rows)


def _sweeps(result: dict[str, Any]) -> str:
    tables = []
    for name, parts in result["sweeps"].items():
        rows: list[list[object]] = [["records/s", *(part["records_per_second"] for part in parts)]]
        tables.append(markdown.table([name, *(f"{part['x']:,}" for part in parts)], rows))
    return "\n\n".join(tables)


def _recovery(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [
            part["keys"],
            f"{part['store_bytes'] / 1e6:,.0f} MB",
            f"{part['median']:.1f} s",
            f"{max(part['seconds']):.1f} s",
        ]
        for part in result["points"]
    ]
    return markdown.table(
        ["keys in state", "store", "kill -9 to the first new output (median)", "longest"], rows
    )


def _recovery_stores(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [
            part["store"],
            part["keys"],
            f"{part['store_bytes'] / 1e6:,.0f} MB",
            f"{part['median']:.1f} s",
            f"{max(part['seconds']):.1f} s",
        ]
        for part in result["points"]
    ]
    head = ["store", "keys in state", "size", "kill -9 to the first new output (median)", "longest"]
    said = [
        f"{store}: {ratio:.2f} times as long with the largest state as with the smallest"
        for store, ratio in result["ratios"].items()
    ]
    goal = f"Goal on object storage: at most {result['goal']:g} times."
    return "\n\n".join([markdown.table(head, rows), f"{'; '.join(said)}. {goal}"])


def _lost_worker(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [
            part["keys"],
            f"{part['state_bytes'] / 1e6:,.0f} MB",
            f"{part['median']:.1f} s",
            f"{max(part['seconds']):.1f} s",
        ]
        for part in result["points"]
    ]
    head = [
        "keys in state",
        "state",
        "kill -9 of a worker to a moved slot's first output (median)",
        "longest",
    ]
    said = (
        f"{result['ratio']:.2f} times as long with the largest state as with the smallest (goal: at most "
        f"{result['goal']:g})."
    )
    return "\n\n".join([markdown.table(head, rows), said])


def _takeover(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [part["store"], part["keys"], f"{part['median']:.2f} s", f"{max(part['seconds']):.2f} s"]
        for part in result["points"]
    ]
    head = ["store", "keys in state", "kill -9 to the standby's first output (median)", "longest"]
    return markdown.table(head, rows)


def _syncs(result: dict[str, Any]) -> str:
    syncs: list[list[object]] = [
        [name, sync["file"], sync["call"], f"{sync['an_epoch']:g}"]
        + [f"{sync[key]:.2f} ms" for key in ("median_ms", "p99_ms")]
        for name, case in result["cases"].items()
        for sync in case["syncs"]
    ]
    parts = next(iter(result["cases"].values()))["parts"]
    times: list[list[object]] = [
        [name, *(f"{case['parts'][part]:.1f} ms" for part in parts)] for name, case in result["cases"].items()
    ]
    head = ["pipeline", "file", "call", "syncs an epoch", "each (median)", "p99"]
    return markdown.table(head, syncs) + "\n\n" + markdown.table(["pipeline", *parts], times)


def _idle(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [[name, f"{100 * used:.1f}%"] for name, used in result["of_a_core"].items()]
    return markdown.table(["idle", "of a core"], rows)


def _growth(result: dict[str, Any]) -> str:
    length, keys, store = result["length"], result["keys"], result["store"]
    costs = markdown.table(
        ["records, millions", *(f"{at / 1e6:,.0f}" for at in length["at"])],
        [["µs a record", *(f"{cost:.1f}" for cost in length["microseconds"])]],
    )
    by_keys = markdown.table(
        ["keys", *(f"{part['keys']:,}" for part in keys["points"])],
        [["µs a record", *(f"{part['microseconds']:.1f}" for part in keys["points"])]],
    )
    sizes = markdown.table(
        ["bytes of state", *(f"{part['state']:,}" for part in store["points"])],
        [["bytes of the store for each", *(f"{part['ratio']:.2f}" for part in store["points"])]],
    )
    said = (
        f"The last records of {length['records']:,} in one run took {length['last_to_first']:.2f} times as "
        f"long as the first (goal: at most {length['limit']:g}); over the keys the most costly took "
        f"{keys['most_to_least']:.2f} times the least (goal: {keys['limit']:g})."
    )
    return "\n\n".join([costs, by_keys, sizes, said])


def _profile(result: dict[str, Any]) -> str:
    cases = result["cases"]
    parts = list(dict.fromkeys(part for case in cases.values() for part in case["cpu"]))
    rows: list[list[object]] = [
        [part, *(f"{case['cpu'].get(part, 0.0):.2f}" for case in cases.values())] for part in parts
    ]
    rows.append(["all", *(f"{case['cpu_microseconds']:.2f}" for case in cases.values())])
    return markdown.table(["µs of CPU a record", *cases], rows)


def _memory(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [part["role"], f"{part['peak_rss'] / 1e6:,.0f} MB", f"{part['peak_private'] / 1e6:,.0f} MB"]
        for part in result["processes"]
    ]
    said = (
        f"{result['keys']:,} keys, {result['records_per_second']:,} records/s, a store of "
        f"{result['store_bytes'] / 1e6:,.0f} MB."
    )
    return "\n\n".join([said, markdown.table(["process", "peak resident", "of that its own"], rows)])


def any_table(result: dict[str, Any]) -> str:
    """The first list or dict of cases in a result, with what of them is text or a number.

    >>> print(any_table({"machine": {"cores": 2}, "cases": {"a": {"seconds": 1.5, "all": [1, 2]}}}))
    |  | seconds |
    |---|---|
    | a | 1.5 |
    """
    for place, value in result.items():
        if place in ("machine", "versions"):
            continue
        cases = dict(enumerate(value)) if isinstance(value, list) else value
        if not isinstance(cases, dict) or not cases or not all(isinstance(c, dict) for c in cases.values()):
            continue
        first: dict[str, Any] = next(iter(cases.values()))
        heads = [head for head, cell in first.items() if isinstance(cell, str | int | float)]
        rows = [
            [name if isinstance(name, str) else "", *(case.get(head, "") for head in heads)]
            for name, case in cases.items()
        ]
        return markdown.table(["", *(head.replace("_", " ") for head in heads)], rows)
    raise ValueError("a result without cases has no table: write a renderer for it")


def _cache(result: dict[str, Any]) -> str:
    return "\n\n".join(_cache_job(title, job, result["target"]) for title, job in result["jobs"].items())


def _cache_job(title: str, job: dict[str, Any], target: float) -> str:
    rows: list[list[object]] = [
        [
            f"{part['megabytes']} MB",
            f"{part['worker']:.1f} s",
            f"{part['database']:.1f} s",
            f"{part['total']:.1f} s",
            f"{part['hit_rate']:.0%}",
        ]
        for part in job["sizes"]
    ]
    said = (
        f"{title[0].upper()}{title[1:]}: the cache saves {job['saved_of_the_database']:.0%} of the "
        f"database's CPU (goal: {target:.0%}) and {job['saved_of_all']:.0%} of all."
    )
    if len(job.get("turns", ())) > 1:
        turns = ", ".join(f"{base:.1f} and {best:.1f} s" for base, best in job["turns"])
        said += f" By medians of turns without it and with the size that saves most: {turns}."
    head = ["cache", "CPU of the worker", "of the database", "together", "rows from the cache"]
    return "\n\n".join([said, markdown.table(head, rows)])


def _timers(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [[name, f"{value:.1f} ms"] for name, value in result["epoch_ms"].items()]
    late = result["wall_late_ms"]
    said = (
        f"{result['ratio']:.2f} times (goal: {result['target']:g}). Wall timers in a pipeline that is "
        f"otherwise idle fire {late['p50']:.0f} ms after their time (p95 {late['p95']:.0f} ms, worst "
        f"{late['max']:.0f} ms; goal: {result['wall_target_ms']:.0f} ms)."
    )
    return "\n\n".join([markdown.table(["timers pending", "an epoch"], rows), said])


def _dedup(result: dict[str, Any]) -> str:
    found = "all" if result["no_duplicate_passed"] else "NOT ALL"
    return (
        f"With {result['ids']:,} IDs known, {result['share_of_new_ids_without_a_read']:.1%} of new ones are "
        f"answered by a filter of {result['filter_bytes'] / 1e6:.1f} MB, without a lookup in the store; "
        f"{found} duplicates are found."
    )


def _in_order(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [name, f"{case['plain']:.2f}", f"{case['in_order']:.2f}", f"{case['ratio']:.2f}"]
        for name, case in result["cases"].items()
    ]
    said = f"CPU time, median of the turns; the goal is {result['target']:g} times."
    return "\n\n".join([markdown.table(["", "µs a record", "in order", "ratio"], rows), said])


def _looking(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [
            f"`millwheel {name}`",
            f"{sorted(found)[len(found) // 2] * 1e3:,.0f} ms",
            f"{max(found) * 1e3:,.0f} ms",
        ]
        for name, found in result["seconds"].items()
    ]
    said = f"A store of {result['keys']:,} keys, {result['bytes'] / 1e9:.1f} GB."
    return "\n\n".join([said, markdown.table(["", "median", "longest"], rows)])


def _nab(result: dict[str, Any]) -> str:
    found: dict[str, list[int]] = {}
    for name, part in result["series"].items():
        counts = found.setdefault(name.split("/")[0], [0, 0, 0])
        for place, key in enumerate(("found", "windows", "false")):
            counts[place] += part[key]
    scores = result["categories"]
    rows: list[list[object]] = [
        [
            name,
            f"{hits} of {windows}" if windows else "-",
            false,
            f"{scores[name]:.1f}" if name in scores else "-",
            f"{result['nested'][name]:.1f}" if name in scores else "-",
        ]
        for name, (hits, windows, false) in found.items()
    ]
    near = result["score_by_sensitivity"]
    grids = result["nested_of_each_grid"]
    said = (
        f"**{result['nested_by_category']:.1f}** nested by category (goal 65; standard error "
        f"{result['nested_error']:.1f}): all parameters are chosen without the category that is scored, from "
        f"{len(grids)} grids of 60 shapes, which have {min(grids):.1f} to {max(grids):.1f}; by file "
        f"{result['nested_by_file']:.1f}. With the sensitivity alone chosen so, "
        f"{result['validated_by_category']:.1f} by category and {result['validated_by_file']:.1f} by file; "
        f"fitted, {result['score']:.1f}, with sensitivities from "
        f"{min(near, key=float)} to {max(near, key=float)} between {min(near.values()):.1f} and "
        f"{max(near.values()):.1f}. A sliding mean with its standard deviation has "
        f"{result['sliding_mean']:.1f}. A value takes {result['microseconds_a_value']:.1f} microseconds of "
        "CPU, model and detector."
    )
    generated: list[list[object]] = [
        [
            kind,
            f"{told['found']} of {told['anomalies']}" if told["anomalies"] else "-",
            f"{told['false_per_1000']:.1f}",
        ]
        for kind, told in result["generated"].items()
    ]
    return "\n\n".join(
        [
            said,
            markdown.table(["category", "windows found", "false alarms", "score", "nested"], rows),
            markdown.table(
                ["change", "validated", "difference", "its error", *result["categories"]], _ablation(result)
            ),
            markdown.table(["generated", "found", "false alarms in 1,000 rows"], generated),
        ]
    )


def _ablation(result: dict[str, Any]) -> list[list[object]]:
    """Each change of the model by category, a mean of several shapes, each with its validated sensitivity."""
    return [
        [
            name,
            f"{part['by_category']:.1f}",
            f"{part['difference']:+.1f}",
            f"{part['error']:.1f}",
            *(f"{part['categories'][category]:.1f}" for category in result["categories"]),
        ]
        for name, part in result["ablation"].items()
    ]


def _planted(result: dict[str, Any]) -> str:
    parts = []
    for source, found in result.items():
        if isinstance(found, dict) and "zeitgeist" in found:
            parts += [
                f"{planted.said(source.capitalize(), found)}.",
                markdown.table(planted.HEADS, planted.rows(found)),
            ]
    return "\n\n".join(parts)


def _manykeys(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [
            int(keys),
            f"{spent:.1f} ms",
            f"{result['behind_a_checkpoint'][keys]:.1f} ms",
            f"{result['without_spark'][keys]:.1f} ms",
            result["round_trips"][keys],
            f"{result['bytes'][keys] / 1e6:,.0f} MB",
        ]
        for keys, spent in result["milliseconds"].items()
    ]
    head = ["keys", "an epoch (median)", "behind a checkpoint of the server", "without Spark"]
    head += ["round trips", "store"]
    said = (
        f"{result['ratio']:.2f} times as long on Spark; without what Spark adds to every epoch "
        f"{result['ratio_without_spark']:.2f} times (goal: at most {result['target']:g})."
    )
    return "\n\n".join([markdown.table(head, rows), said])


def _balance(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [name, case["off"], case["on"], f"{case['ratio']:.2f}", str(case["target"] or "")]
        for name, case in result["streams"].items()
    ]
    return markdown.table(["stream", "balancer off, records/s", "on, records/s", "ratio", "goal"], rows)


def _hotkey(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [hashes, case["plain"], case["combined"], f"{case['ratio']:.1f}"]
        for hashes, case in result["cases"].items()
    ]
    return markdown.table(
        ["hashes of 16 kB a record", "plain, records/s", "combined, records/s", "ratio"], rows
    )


def _slots(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [slots, case["rate"], *(f"{case[name]:.0f} ms" for name in ("p50", "p95", "p99", "empty_epoch"))]
        for slots, case in result["slots"].items()
    ]
    return markdown.table(["slots", "records/s", "p50", "p95", "p99", "empty epoch"], rows)


def _overhead(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [name, round(statistics.median(rates)), f"{statistics.median(result['cpu_seconds'][name]):.1f} s"]
        for name, rates in result["rates"].items()
    ]
    said = markdown.goal(
        "Everything on against everything off",
        f"{result['ratio']:.3f} times the throughput ({min(result['pairs']):.3f} to "
        f"{max(result['pairs']):.3f} in a round), {result['cpu_ratio']:.3f} times the CPU time, "
        f"{result['looks']} events and scrapes read",
        f"at least {1 - result['goal']:.2f} of the throughput",
        result["passed"],
    )
    return "\n\n".join([markdown.table(["watched", "records/s", "CPU"], rows), said])


def _skew(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [name, part["records"], part["peak_open_windows"], f"{part['peak_state_bytes'] / 1e6:,.1f} MB"]
        for name, part in result["cases"].items()
    ]
    what = "The store with the limit against the even run's"
    limit = f"at most {result['target']:g}"
    said = markdown.goal(what, f"{result['store_ratio']:.2f} times", limit, result["passed"])
    return "\n\n".join([markdown.table(["", "records", "open windows at most", "state"], rows), said])


def _soak(result: dict[str, Any]) -> str:
    rows: list[list[object]] = []
    for name, metric in result["metrics"].items():
        scale = 1e6 if name.endswith("_bytes") else 1
        flat = {True: "flat", False: "GROWS", None: ""}[metric.get("flat")]
        shown = [f"{metric[part] / scale:,.1f}" for part in ("first", "last")]
        rows.append([name.replace("_bytes", ", MB").replace("_", " "), *shown, flat])
    said = (
        f"{result['epochs']:,} epochs in {result['seconds']:,.0f} s. An epoch of the last quarter took "
        f"{result['epoch_time_ratio']:.2f} times one of the first, while the machine took "
        f"{result['machine_time_ratio']:.2f} times as long for the same work."
    )
    beside = result.get("beside_a_new_one")
    if beside is not None:
        said += (
            f" Beside a pipeline that had just started, in the same minutes, the old one's epochs took "
            f"{beside['ratio']:.2f} times as long ({beside['old_epoch_ms']:.1f} and "
            f"{beside['new_epoch_ms']:.1f} ms)."
        )
    return "\n\n".join([said, markdown.table(["", "first quarter", "last quarter", ""], rows)])


def _wikipedia(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [told["key"], _clock(told["start"]), told["edits"], f"{told['confidence']:.1f}"]
        for told in result["notable"]
    ]
    said = f"{result['edits']:,} edits, {result['articles']:,} articles, {result['spikes']} spikes."
    head = ["article", "from (UTC)", "edits meanwhile", "confidence"]
    return "\n\n".join([said, markdown.table(head, rows)])


def _clock(moment: int) -> str:
    return datetime.datetime.fromtimestamp(moment / 1e6, datetime.timezone.utc).strftime("%H:%M")


RENDERERS: dict[str, Callable[[dict[str, Any]], str]] = {
    **peer_tables.RENDERERS,
    **input_tables.RENDERERS,
    "overhead": _overhead,
    "skew": _skew,
    "soak": _soak,
    "wikipedia": _wikipedia,
    "balance": _balance,
    "hotkey": _hotkey,
    "slots": _slots,
    "cache": _cache,
    "timers": _timers,
    "dedup": _dedup,
    "in_order": _in_order,
    "looking": _looking,
    "nab": _nab,
    "planted": _planted,
    "guarantees": _guarantees,
    "lag": _lag,
    "sweeps": _sweeps,
    "recovery": _recovery,
    "lost_worker": _lost_worker,
    "recovery_stores": _recovery_stores,
    "takeover": _takeover,
    "syncs": _syncs,
    "idle": _idle,
    "growth": _growth,
    "profile": _profile,
    "memory": _memory,
    "manykeys": _manykeys,
}


def table(name: str, result: dict[str, Any]) -> str:
    """Of a benchmark: its own table, or one of its cases."""
    return RENDERERS.get(name, any_table)(result)
