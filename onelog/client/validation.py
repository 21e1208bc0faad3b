"""What no request can hold: a number that its field has no room for, text that is no UTF-8.

protobuf says so with a ValueError where a request is built, which is everywhere. Users of the API
expect its errors, so each class whose methods build requests is marked with ``refuse_unsendable``:
they raise InvalidArgument instead, with NUMBER_INVALID or TEXT_INVALID, before anything is sent.

A class that runs what its user wrote (a worker) is not marked: errors from there are the user's.
Methods that are called for every operation do it themselves (``checks_itself``): a coroutine around
another one took 1 to 5 µs of each call, the more the more of them wait at the same time.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from onelog.errors import InvalidArgument

# How protobuf begins to say it; it has no class for it.
_OUT_OF_RANGE = "Value out of range"

T = TypeVar("T")
_CHECKS_ITSELF = "_checks_itself"


def refuse_unsendable(marked: type[T]) -> type[T]:
    """Let all public methods of a class refuse what cannot be sent."""
    for name, member in list(vars(marked).items()):
        is_public = name == "__init__" or not name.startswith("_")
        if inspect.isfunction(member) and is_public and not hasattr(member, _CHECKS_ITSELF):
            setattr(marked, name, _refusing(member))
    return marked


def checks_itself(method: T) -> T:
    """Leave a method of such a class as it is: it calls ``refuse`` where it builds a request."""
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
    """Raise what it is for users of the API; any other error is left as it is."""
    if isinstance(error, UnicodeEncodeError):
        what = f"{error.object[error.start]!a} at {error.start} of a text is no UTF-8"
        raise InvalidArgument(what, reason="TEXT_INVALID") from error
    said = str(error)
    if said.startswith(_OUT_OF_RANGE):
        number = said.removeprefix(_OUT_OF_RANGE).lstrip(": ")
        raise InvalidArgument(f"{number} is out of range", reason="NUMBER_INVALID") from error
