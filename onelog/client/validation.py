"""Refuses arguments that no request can hold: a number out of its field's range, invalid UTF-8.

protobuf raises a ValueError for these where a request is built, which is in many places. Users
expect the errors of the API. So each class whose methods build requests is decorated with
``refuse_unsendable``: its methods raise InvalidArgument instead, with NUMBER_INVALID or
TEXT_INVALID, before anything is sent.

A class that runs the user's code (a worker) is not decorated: a ValueError may be the user's own.
Methods that are called for every operation check by themselves (``checks_itself``): a wrapping
coroutine cost 1 to 5 µs a call, more with more concurrent calls.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from onelog.errors import InvalidArgument

# The beginning of protobuf's message; it has no exception class for this.
_OUT_OF_RANGE = "Value out of range"

T = TypeVar("T")
_CHECKS_ITSELF = "_checks_itself"


def refuse_unsendable(marked: type[T]) -> type[T]:
    """Decorate a class: its public methods raise InvalidArgument for what cannot be sent."""
    for name, member in list(vars(marked).items()):
        is_public = name == "__init__" or not name.startswith("_")
        if inspect.isfunction(member) and is_public and not hasattr(member, _CHECKS_ITSELF):
            setattr(marked, name, _refusing(member))
    return marked


def checks_itself(method: T) -> T:
    """Exempt a method of such a class: it calls ``refuse`` itself where it builds a request."""
    setattr(method, _CHECKS_ITSELF, True)
    return method


def _refusing(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def run(*arguments: Any, **named: Any) -> Any:
            try:
                return await method(*arguments, **named)
            except ValueError as error:
                refuse(error)
                raise

        return run
    if inspect.isasyncgenfunction(method):

        @wraps(method)
        async def iterate(*arguments: Any, **named: Any) -> Any:
            items = method(*arguments, **named)
            try:
                async for item in items:
                    yield item
            except ValueError as error:
                refuse(error)
                raise
            finally:
                await items.aclose()

        return iterate

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except ValueError as error:
            refuse(error)
            raise

    return call


def refuse(error: ValueError) -> None:
    """Raise InvalidArgument if the error is protobuf's about a value; else do nothing."""
    if isinstance(error, UnicodeEncodeError):
        what = f"{error.object[error.start]!a} at {error.start} of a text is no UTF-8"
        raise InvalidArgument(what, reason="TEXT_INVALID") from error
    said = str(error)
    if said.startswith(_OUT_OF_RANGE):
        number = said.removeprefix(_OUT_OF_RANGE).lstrip(": ")
        raise InvalidArgument(f"{number} is out of range", reason="NUMBER_INVALID") from error
