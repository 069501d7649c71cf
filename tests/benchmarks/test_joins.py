"""The benchmark of joins: its reference is right, and the pipeline gives the same pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import millwheel as mw
from benchmarks import joins
from benchmarks.pipelines import joined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_pairs_of_the_pipeline_are_those_of_the_loop(tmp_path: Path, spark: SparkSession) -> None:
    source = joins.generate(tmp_path / "in", keys=600, records=6_000)
    wanted = joins.truth(source)
    assert wanted
    mw.run(
        joined.pipeline(source.folder, tmp_path / "out"),
        store=tmp_path / "store",
        spark=spark,
        progress=False,
    )
    assert joined.read(tmp_path / "out") == wanted


def test_a_partner_just_within_a_minute_counts_and_one_beyond_does_not(tmp_path: Path) -> None:
    source = joins.generate(tmp_path / "in", keys=1, records=2)
    for side, times in (("left", [0]), ("right", [-joined.WITHIN - 1, -joined.WITHIN, joined.WITHIN])):
        (path,) = (source.folder / side).glob("*.jsonl")
        rows = (f'{{"time": {time}, "key": "a", "number": {n}}}\n' for n, time in enumerate(times))
        path.write_text("".join(rows))
    assert joins.truth(source) == {(0, 1): 1, (0, 2): 1}
