"""The hierarchy of errors. A message has what happened, where, and what to do."""

from __future__ import annotations

from typing import Any


class MillWheelError(Exception):
    """The base of every error that millwheel raises on purpose."""


class PipelineError(MillWheelError):
    """The pipeline is invalid; nothing has run."""


class CodecError(MillWheelError):
    """A value or a state could not be encoded or decoded."""


class InputError(MillWheelError):
    """An injector has input that is not a record, or cannot reach its input."""


class StoreError(MillWheelError):
    """The backing store cannot be opened, read or written, or is another pipeline's."""


class FencedError(MillWheelError):
    """A write had an old sequencer (6.2): the interval or pipeline has a new owner."""


class EngineError(MillWheelError):
    """Spark gave up on an epoch, which is not committed. Run again to continue it."""


class Interrupted(EngineError):
    """An epoch was cancelled because the run was to stop. Running again continues it."""


class EngineGone(EngineError):
    """Spark's JVM has ended. The epoch is not committed; running again continues it."""


class StandbyEnded(MillWheelError):
    """The pipeline of a standby was stopped on request, or has finished."""


class UserCodeError(MillWheelError):
    """User code raised: a hook, a key extractor or a codec.

    ``computation``, ``key`` and ``record`` (a `Record` or a `Timer`) are where; ``cause`` is the
    exception itself. Nothing of the epoch is committed.
    """

    def __init__(
        self,
        message: str,
        *,
        computation: str,
        key: str | None = None,
        record: Any = None,
        cause: BaseException | None = None,
        details: str = "",
    ) -> None:
        super().__init__(message)
        self.computation = computation
        self.key = key
        self.record = record
        self.cause = cause
        self.details = details
        self.__cause__ = cause

    def __str__(self) -> str:
        text = str(self.args[0])
        return f"{text}\n{self.details}" if self.details else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_user_code_error, (
            self.args[0],
            self.computation,
            self.key,
            self.record,
            self.cause,
            self.details,
        )


def _rebuild_user_code_error(
    message: str, computation: str, key: str | None, record: Any, cause: BaseException | None, details: str
) -> UserCodeError:
    return UserCodeError(
        message, computation=computation, key=key, record=record, cause=cause, details=details
    )


def shorten(value: object, limit: int = 200) -> str:
    """A representation short enough for a message.

    >>> shorten("x" * 10, limit=6)
    "'xx..."
    """
    try:
        text = repr(value)
    except Exception as error:  # a user's __repr__ may raise
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."
