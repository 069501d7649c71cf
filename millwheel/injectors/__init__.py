"""Injectors for common kinds of input (5.2), so that normal users need not write their own."""

from millwheel.injectors.files import Files
from millwheel.injectors.generator import Generator
from millwheel.injectors.kafka import Kafka
from millwheel.injectors.messages import Message
from millwheel.injectors.records import Records

__all__ = ["Files", "Generator", "Kafka", "Message", "Records"]
