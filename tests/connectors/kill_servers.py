"""The servers that a killed pipeline has written to."""

from __future__ import annotations

import warnings
from typing import Any

import pytest


def server_or_none(request: pytest.FixtureRequest, name: str) -> Any:
    """A server, or None where it cannot be had: what needs it is left out."""
    try:
        return request.getfixturevalue(name)
    except pytest.skip.Exception as reason:
        warnings.warn(f"left out: {reason}", stacklevel=2)
        return None
