"""Arguments of operators: a missing or misspelt one is a `PipelineError`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from millwheel.errors import PipelineError

P = ParamSpec("P")
R = TypeVar("R")


def operator(of: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator of operators, which checks the arguments against the signature.

    ``of`` is what a function belongs to; a method belongs to its object.

    >>> @operator("agg")
    ... def total(field, *, default=0): ...
    >>> total("price", defualt=1)
    Traceback (most recent call last):
    millwheel.errors.PipelineError: agg.total: got an unexpected keyword argument 'defualt'. \
It takes total(field, *, default=0)
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            where = of or repr(args[0])
            check_arguments(f"{where}.{function.__name__}", function, args, kwargs)
            return function(*args, **kwargs)

        return checked

    return decorate


def check_arguments(
    where: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Refuses arguments that a function does not take, and names those that it takes."""
    signature = inspect.signature(function)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    if inspect.Parameter.VAR_KEYWORD in kinds.values():  # before Python 3.13 `bind` refuses what a call takes
        kwargs = {n: v for n, v in kwargs.items() if kinds.get(n) is not inspect.Parameter.POSITIONAL_ONLY}
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        taken = [
            parameter.replace(annotation=inspect.Parameter.empty)
            for name, parameter in signature.parameters.items()
            if name != "self"
        ]
        shown = signature.replace(parameters=taken, return_annotation=inspect.Signature.empty)
        raise PipelineError(f"{where}: {error}. It takes {function.__name__}{shown}") from None
