"""The form of the rows of an operator: another operator cannot read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StateForm:
    """What the stored rows of an operator are, in words."""

    text: str


def state_form(computation: Any) -> str:
    """The form of a computation's state; empty if it is not an operator's."""
    found = getattr(computation, "_state_form", None)
    return found.text if isinstance(found, StateForm) else ""  # it may be a user's attribute
