"""Decoding of stored states: by their computation's codec, or without it."""

from __future__ import annotations

import json
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.model import codec as codecs
from millwheel.model.pipeline import Pipeline


def codecs_of(pipeline: Pipeline) -> dict[str, codecs.Codec]:
    """By computation: the codec of its state."""
    return {name: node.computation.codec for name, node in pipeline.nodes.items()}


def decoded(data: bytes, codec: codecs.Codec | None) -> tuple[str, Any]:
    """The state, and how it was decoded; a user's codec may raise anything."""
    if codec is not None:
        try:
            return type(codec).__name__.strip("_").removesuffix("Codec").lower(), codec.decode(data)
        except Exception as error:
            return "raw", f"{data!r} ({type(error).__name__}: {error})"
    for name, decode in (("msgpack", codecs.msgpack.decode), ("json", json.loads)):
        try:
            return name, decode(data)
        except (MillWheelError, ValueError):
            continue
    return "raw", data
