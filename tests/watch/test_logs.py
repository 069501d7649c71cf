"""Logs that programs read, and traces."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import millwheel as mw
from millwheel.store.memory import MemoryStore
from millwheel.watch.history import Recorder
from millwheel.watch.logs import JsonFormatter, to_json
from tests.spark.sources import Feed
from tests.store.driving import take
from tests.watch.running import HOSTILE, pipeline, visits


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the logger writes while a test runs."""
    logger = logging.getLogger("millwheel")
    level, propagate = logger.level, logger.propagate
    out = io.StringIO()
    handler = to_json(out)
    yield out
    logger.removeHandler(handler)
    logger.setLevel(level)
    logger.propagate = propagate


def two_epochs(on_epoch: Any = None) -> None:
    feed = Feed({"only": visits(20)}, opened=10)
    driver, executor = take(pipeline(feed), MemoryStore(1))
    driver.observer = recorder = Recorder(driver)
    recorder.on_epoch = on_epoch
    for opened in (10, 20):
        feed.opened = opened
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)


def test_each_epoch_is_a_line_with_the_pipeline_and_its_number(lines: io.StringIO) -> None:
    two_epochs()
    found = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(line["pipeline"], line["epoch"], line["records"]) for line in found] == [
        ("visits", 1, 10),
        ("visits", 2, 10),
    ]
    assert all(line["level"] == "info" and line["phases"]["commit"] > 0 for line in found)


def test_what_else_the_driver_says_has_the_epoch_that_it_is_in(lines: io.StringIO) -> None:
    two_epochs()
    logging.getLogger("millwheel").warning("something of %s", HOSTILE)
    last = json.loads(lines.getvalue().splitlines()[-1])
    assert (last["pipeline"], last["epoch"], last["message"]) == ("visits", 3, f"something of {HOSTILE}")


def test_an_error_of_user_code_names_its_computation() -> None:
    error = RuntimeError("job")
    error.__cause__ = mw.UserCodeError("it raised", computation="Visits", key="a")
    record = logging.makeLogRecord({"msg": "failed", "exc_info": (type(error), error, None)})
    found = json.loads(JsonFormatter().format(record))
    assert found["computation"] == "Visits"
    assert "it raised" in found["error"]


def test_a_line_is_one_line_whatever_is_in_it() -> None:
    record = logging.makeLogRecord({"msg": "two\nlines", "value": {b"x": float("nan")}})
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert json.loads(text)["message"] == "two\nlines"


def test_an_epoch_is_a_span_with_its_steps_in_it() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from millwheel.watch.traces import Tracer

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = Tracer("visits")
    tracer.tracer = provider.get_tracer("millwheel")
    two_epochs(tracer)
    spans = exporter.get_finished_spans()
    epochs = [span for span in spans if span.name == "epoch"]
    assert [span.attributes["millwheel.epoch"] for span in epochs] == [1, 2]
    assert [span.attributes["millwheel.records"] for span in epochs] == [10, 10]
    for epoch in epochs:
        steps = [span for span in spans if span.parent and span.parent.span_id == epoch.context.span_id]
        assert [span.name for span in steps] == ["journal", "job", "deliver", "commit"]
        assert (steps[0].start_time, steps[-1].end_time) == (epoch.start_time, epoch.end_time)
        assert steps[1].attributes["millwheel.level_1.seconds"] > 0
