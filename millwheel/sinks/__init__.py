"""Sinks for common kinds of output."""

from millwheel.sinks.collect import Collect
from millwheel.sinks.jsonlines import JsonLines

__all__ = ["Collect", "JsonLines"]
