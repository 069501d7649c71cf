"""The tables of docs/performance.md on reading: each injector, and object storage beside the disk."""

from __future__ import annotations

from typing import Any

from benchmarks import markdown

_NAMES = {
    "jsonl": "JSON lines",
    "csv": "CSV",
    "parquet": "Parquet",
    "lines": "lines with a parser in Python, against Spark's reader of text",
    "SparkTable": "SparkTable, with the writing of its spool",
    "kafka": "Kafka",
}


def _io(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [
            _NAMES.get(name, name),
            round(found["millwheel"]),
            round(found["plain"]),
            f"{found['plain'] / found['millwheel']:.1f}",
        ]
        for name, found in result["rates"].items()
    ]
    rows.append(["HTTP, POSTs of 100 by four callers, synced", round(result["http"]), "", ""])
    starts: list[list[object]] = [
        [
            name if found["files"] > 1 else f"one file of {found['MB']:,} MB",
            found["files"],
            f"{found['first']:.1f} s",
            f"{found['again']:.1f} s",
            f"{found['memory']:,.0f} MB",
            f"{found['reading']:,.0f} MB",
        ]
        for name, found in result["starts"].items()
    ]
    head = ["start", "files", "first poll", "polls after it", "memory of the polls", "of reading all"]
    return "\n\n".join(
        [
            markdown.table(["injector", "records/s", "plain reader", "times slower"], rows),
            markdown.table(head, starts),
        ]
    )


def _s3_input(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [name, *(f"{case[place]['median']:,.0f}" for place in ("disk", "S3")), f"{case['of_disk']:.2f}"]
        for name, case in result["cases"].items()
    ]
    windows = "the right windows in all" if result["same_windows"] else "NOT the right windows"
    said = markdown.goal(
        f"{result['bytes'] / 1e9:.1f} GB in {result['records']:,} records, {windows}; S3 against disk",
        f"{result['of_disk']:.2f} times the rate at the least",
        f"at least {result['target']:g}",
        result["passed"],
    )
    return "\n\n".join([markdown.table(["", "disk, MB/s", "S3, MB/s", "ratio"], rows), said])


RENDERERS = {"io": _io, "s3_input": _s3_input}
