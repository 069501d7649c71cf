"""Every recipe of the cookbook gives what its file says, and the page shows the files as they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from examples.cookbook import RECIPES, pipeline, recipe
from examples.cookbook.page import page
from tests.examples.cooking import cooked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def bag(rows: list[Any]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_gives_what_its_file_says(name: str) -> None:
    assert bag(cooked(name)) == bag(recipe(name).RESULT)


def test_every_file_of_the_cookbook_is_a_recipe() -> None:
    files = {path.stem for path in (ROOT / "examples" / "cookbook").glob("*.py")}
    assert files - {"__init__", "__main__", "page"} == set(RECIPES)


def test_the_page_shows_the_files_as_they_are() -> None:
    shown = (ROOT / "docs" / "cookbook.md").read_text()
    assert shown == page(), "make it again: python -m examples.cookbook --page > docs/cookbook.md"


@pytest.mark.spark
def test_recipes_run_on_spark(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe("stream_to_lake"), "LAKE", tmp_path / "lake")
    for name in ("stream_to_lake", "enrich_from_changes", "funnel"):
        sink = mw.sinks.Collect()
        mw.run(pipeline(name, sink), store=tmp_path / name, spark=spark, progress=False)
        assert bag([record.value for record in sink.records]) == bag(recipe(name).RESULT)
    rows = spark.read.parquet(str(tmp_path / "lake" / "totals")).collect()
    assert sorted(row["total"] for row in rows) == [1, 5, 7]
