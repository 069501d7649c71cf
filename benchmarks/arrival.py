"""When a record counts as arrived, by system: what a latency ends with."""

from __future__ import annotations

EARLY = ("Bytewax", "PyFlink", "PyFlink, threads")
"""Peers that emit a record before anything of it is durable: one that then fails emits it again."""


def arrives(system: str) -> str:
    """Whether a record of a system is durable when it has arrived.

    >>> arrives("millwheel"), arrives("Bytewax")
    ('durable', 'before it is durable')
    """
    return "before it is durable" if system in EARLY else "durable"
