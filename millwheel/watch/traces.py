"""Traces for OpenTelemetry: a span for each epoch, with its phases in it."""

from __future__ import annotations

import time
from typing import Any

from millwheel.errors import MillWheelError

_STEPS = ("journal", "job", "deliver", "commit")


class Tracer:
    """Makes spans of epochs that are over; whoever set up OpenTelemetry decides where they go."""

    def __init__(self, pipeline: str) -> None:
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise MillWheelError("traces need OpenTelemetry: pip install 'millwheel-spark[otel]'") from error
        self._pipeline = pipeline
        self._api: Any = trace
        self._tracer: Any = trace.get_tracer("millwheel")

    def __call__(self, epoch: dict[str, Any], moments: list[float]) -> None:
        """An epoch, and when it began, was planned, run, delivered and committed, on the clock of
        `time.perf_counter`."""
        offset = time.time_ns() - int(time.perf_counter() * 1e9)
        times = [offset + int(moment * 1e9) for moment in moments]
        attributes = {
            "millwheel.pipeline": self._pipeline,
            "millwheel.epoch": epoch["epoch"],
            "millwheel.records": epoch["records"],
            "millwheel.compact": epoch["compact"],
        }
        span = self._tracer.start_span("epoch", start_time=times[0], attributes=attributes)
        inside = self._api.set_span_in_context(span)
        levels = {
            f"millwheel.{name.replace(' ', '_')}.seconds": seconds
            for name, seconds in epoch["phases"].items()
            if name.startswith("level ")
        }
        for name, begin, end in zip(_STEPS, times, times[1:], strict=False):
            child = self._tracer.start_span(
                name, context=inside, start_time=begin, attributes=levels if name == "job" else {}
            )
            child.end(end)
        span.end(times[-1])
