"""Traces for OpenTelemetry: a span for each epoch, with its phases in it."""

from __future__ import annotations

import time
from typing import Any

from millwheel.errors import MillWheelError

_STEPS = ("journal", "job", "deliver", "commit")


class Tracer:
    """Makes spans of finished epochs; OpenTelemetry's settings decide their target."""

    def __init__(self, pipeline: str) -> None:
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise MillWheelError("traces need OpenTelemetry: pip install 'millwheel-spark[otel]'") from error
        self._pipeline = pipeline
        self._api: Any = trace
        self.tracer: Any = trace.get_tracer("millwheel")

    def __call__(self, epoch: dict[str, Any], moments: list[float]) -> None:
        """Makes the spans of an epoch from the times of its steps.

        They are: begun, planned, run, delivered, committed, on the clock of `time.perf_counter`."""
        offset = time.time_ns() - int(time.perf_counter() * 1e9)
        times = [offset + int(moment * 1e9) for moment in moments]
        attributes = {
            "millwheel.pipeline": self._pipeline,
            "millwheel.epoch": epoch["epoch"],
            "millwheel.records": epoch["records"],
            "millwheel.compact": epoch["compact"],
        }
        span = self.tracer.start_span("epoch", start_time=times[0], attributes=attributes)
        inside = self._api.set_span_in_context(span)
        levels = {
            f"millwheel.{name.replace(' ', '_')}.seconds": seconds
            for name, seconds in epoch["phases"].items()
            if name.startswith("level ")
        }
        for name, begin, end in zip(_STEPS, times, times[1:], strict=False):
            child = self.tracer.start_span(
                name, context=inside, start_time=begin, attributes=levels if name == "job" else {}
            )
            child.end(end)
        span.end(times[-1])
