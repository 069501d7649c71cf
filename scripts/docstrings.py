"""For the site of the docs: examples in docstrings become blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(
    r"(?:^>>> .*\n?(?:^(?!>>> )\S.*\n?|^\.\.\..*\n?|^>>> .*\n?|^[ \t]+\S.*\n?)*)", re.MULTILINE
)


class Examples(griffe.Extension):
    """Puts fences around what doctest runs."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrites the docstring of one object."""
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = _EXAMPLE.sub(
                lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value
            )
