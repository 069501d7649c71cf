"""Injectors for common kinds of input (5.2), so that normal users need not write their own."""

from millwheel.injectors.files import Files
from millwheel.injectors.generator import Generator
from millwheel.injectors.http import Http
from millwheel.injectors.kafka import Kafka
from millwheel.injectors.messages import Message
from millwheel.injectors.records import Records
from millwheel.injectors.spark import SparkStream, SparkTable

__all__ = ["Files", "Generator", "Http", "Kafka", "Message", "Records", "SparkStream", "SparkTable"]
