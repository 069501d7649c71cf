"""One module for each query: the streams that it reads, its computations, and how they are added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import millwheel as mw
from examples.nexmark.events import Kind
from examples.nexmark.queries import q0, q1, q2, q3, q4, q5, q6, q7, q8, q11, q12


class Query(Protocol):
    """What a module of a query has."""

    STREAMS: Sequence[Kind]

    @staticmethod
    def add(p: mw.Pipeline) -> None:
        """Adds its computations, which produce to ``results``."""


QUERIES = {
    "q0": q0, "q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5,
    "q6": q6, "q7": q7, "q8": q8, "q11": q11, "q12": q12,
}  # fmt: skip
