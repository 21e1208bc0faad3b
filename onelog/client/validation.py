"""Refuses arguments that are wrong: of another type, out of their field's range, invalid UTF-8.

Users expect the errors of the API and not what protobuf, numpy or Python raise inside. So
each class whose methods build requests is decorated with ``refuse_unsendable``: before a method
runs, the types of its arguments are compared with its annotations; what it raises nevertheless is
explained. The outcome is InvalidArgument before anything is sent, with one of these reasons:

* TYPE_INVALID: the type of an argument; the message names the argument, and the element in it
* NUMBER_INVALID: a number out of its field's range
* TEXT_INVALID: a text that is no UTF-8

An error that none of this explains is a mistake of ours and stays as it is.

A class that runs the user's code (a worker) is not decorated: a ValueError may be the user's own.
Methods that are called for every operation are marked with ``checks_itself`` and call ``refuse``
when something failed: a wrapping coroutine cost 1 to 5 µs a call, more with more concurrent calls.
What the elements of a list or the fields of a dataclass are is compared only after a failure.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from numbers import Integral, Number, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from onelog.errors import InvalidArgument

# What a wrong argument may raise while a request is built. An InvalidArgument of a wrong type is
# made anew, because the place of the element is known here.
UNSENDABLE = (TypeError, ValueError, AttributeError, OverflowError, InvalidArgument)

# The beginning of protobuf's message; it has no exception class for this.
_OUT_OF_RANGE = "Value out of range"
_SHOWN_MAX = 60  # characters of a value in a message

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
    """Exempt a method of a decorated class: it calls ``refuse`` where it builds a request."""
    setattr(method, _CHECKS_ITSELF, True)
    return method


def _refusing(method: Callable[..., Any]) -> Callable[..., Any]:
    check = _Check(method)
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def run(*arguments: Any, **named: Any) -> Any:
            check(arguments, named)
            try:
                return await method(*arguments, **named)
            except UNSENDABLE as error:
                check.refuse(error, arguments, named)
                raise

        return run
    if inspect.isasyncgenfunction(method):

        @wraps(method)
        async def iterate(*arguments: Any, **named: Any) -> Any:
            check(arguments, named)
            items = method(*arguments, **named)
            try:
                async for item in items:
                    yield item
            except UNSENDABLE as error:
                check.refuse(error, arguments, named)
                raise
            finally:
                await items.aclose()

        return iterate

    # Most objects are made by others of ours, which have checked what the user gave.
    is_made = method.__name__ == "__init__"

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        if not is_made:
            check(arguments, named)
        try:
            return method(*arguments, **named)
        except UNSENDABLE as error:
            check.refuse(error, arguments, named)
            raise

    return call


def refuse(
    error: Exception,
    method: Callable[..., Any] | None = None,
    given: Mapping[str, Any] | None = None,
) -> None:
    """Raise InvalidArgument if a wrong argument explains the error; else do nothing.

    ``given`` are the arguments of ``method`` by name, if they are known; other names are ignored.
    """
    if isinstance(error, InvalidArgument) and error.reason != "TYPE_INVALID":
        return
    if isinstance(error, UnicodeEncodeError):
        what = f"{error.object[error.start]!a} at {error.start} of a text is no UTF-8"
        raise InvalidArgument(what, reason="TEXT_INVALID") from error
    said = str(error)
    if isinstance(error, ValueError) and said.startswith(_OUT_OF_RANGE):
        number = said.removeprefix(_OUT_OF_RANGE).lstrip(": ")
        raise InvalidArgument(f"{number} is out of range", reason="NUMBER_INVALID") from error
    if method is not None and given is not None:
        check_arguments(method, given)


def check_arguments(method: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise InvalidArgument if an argument of ``method`` has a wrong type, or something in it."""
    for name, rule in _find_rules(method).items():
        if name in given:
            rule.check(name, given[name])


def check_fields(instance: Any) -> None:
    """Raise InvalidArgument if a field of a dataclass has a value of a wrong type."""
    _rule(type(instance)).check(type(instance).__name__, instance)


class _Check:
    """Compares the arguments of a method with its annotations."""

    __slots__ = ("_method", "_named", "_positional", "_rest")

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self._named: Mapping[str, _Rule] | None = None  # made with the first call
        self._positional: Sequence[tuple[str, _Rule]] = ()
        self._rest: tuple[str, _Rule] | None = None

    def __call__(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Raise InvalidArgument for an argument of a wrong type; ``self`` is the first."""
        if self._named is None:
            self._prepare()
            assert self._named is not None
        for (name, rule), value in zip(self._positional, arguments[1:], strict=False):
            if not rule.accepts(value):
                raise rule.make_error(name, value)
        for name, value in named.items():
            known = self._named.get(name)
            if known is not None and not known.accepts(value):
                raise known.make_error(name, value)
        if self._rest is not None:
            name, rule = self._rest
            for value in arguments[1 + len(self._positional) :]:
                if not rule.accepts(value):
                    raise rule.make_error(name, value)

    def refuse(
        self, error: Exception, arguments: tuple[Any, ...], named: Mapping[str, Any]
    ) -> None:
        """Raise InvalidArgument if one of the arguments explains the error."""
        names = list(_find_rules(self._method))[1:]
        given = dict(zip(names, arguments[1:], strict=False)) | dict(named)
        refuse(error, self._method, given)

    def _prepare(self) -> None:
        self._named = _find_rules(self._method)
        positional = []
        for name, parameter in list(inspect.signature(self._method).parameters.items())[1:]:
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._rest = name, self._named[name]
            elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                positional.append((name, self._named[name]))
        self._positional = positional


# Types


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a value may be."""

    expected: str
    accepts: Callable[[Any], bool]

    # Returns what is wrong inside of an accepted value, given its name.
    look: Callable[[str, Any], InvalidArgument | None] = lambda _name, _value: None

    def check(self, name: str, value: Any) -> None:
        """Raise InvalidArgument for a wrong value, also inside of it."""
        found = self.find(name, value)
        if found is not None:
            raise found from None

    def find(self, name: str, value: Any) -> InvalidArgument | None:
        """Return the error for a value that is wrong, also inside of it."""
        if not self.accepts(value):
            return self.make_error(name, value)
        return self.look(name, value)

    def make_error(self, name: str, value: Any) -> InvalidArgument:
        """Return the error for a value that is not accepted."""
        shown = repr(value)
        if len(shown) > _SHOWN_MAX:
            shown = shown[:_SHOWN_MAX] + "…"
        text = f"{name} is {shown} ({type(value).__name__}); it must be {self.expected}"
        return InvalidArgument(text, reason="TYPE_INVALID")


_BYTES = (bytes, bytearray, memoryview)
_NO_LIST = (str, *_BYTES, Mapping, Number)
_ANYTHING = _Rule("anything", lambda _: True)


def _is_integer(value: Any) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


_RULES: dict[Any, _Rule] = {
    Any: _ANYTHING,
    object: _ANYTHING,
    None: _Rule("None", lambda value: value is None),
    NoneType: _Rule("None", lambda value: value is None),
    bool: _Rule("True or False", lambda value: isinstance(value, bool)),
    int: _Rule("an integer", _is_integer),
    float: _Rule("a number", _is_number),
    str: _Rule("str", lambda value: isinstance(value, str)),
    bytes: _Rule("bytes", lambda value: isinstance(value, _BYTES)),
}


@cache
def _find_rules(method: Callable[..., Any]) -> Mapping[str, _Rule]:
    """Return the rules of a method's parameters, by name."""
    scope = getattr(method, "__globals__", {})
    return {
        name: _resolved(parameter.annotation, scope)
        for name, parameter in inspect.signature(method).parameters.items()
    }


def _resolved(hint: Any, scope: Mapping[str, Any]) -> _Rule:
    if hint is inspect.Parameter.empty:
        return _ANYTHING
    if isinstance(hint, str):
        try:
            hint = eval(hint, dict(scope))  # noqa: S307 - an annotation of our own
        except (NameError, AttributeError):
            return _ANYTHING  # imported for the type checker only
    return _rule(hint)


def _rule(hint: Any) -> _Rule:
    """Return the rule that an annotation means; what it does not know is accepted."""
    found = _RULES.get(hint)
    if found is None:
        found = _RULES[hint] = _make_rule(hint)
    return found


def _make_rule(hint: Any) -> _Rule:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _rule_of_union([_rule(part) for part in parts])
    if origin is Literal:
        return _rule(type(parts[0]))
    if isinstance(origin, type):
        if issubclass(origin, Mapping):
            return _rule_of_mapping(_rule(parts[0]), _rule(parts[1]))
        if issubclass(origin, Iterable):
            return _rule_of_elements(origin, parts)
    if origin is Callable or hint is Callable:
        return _Rule("callable", callable)
    if not isinstance(hint, type):
        return _rule(origin) if origin is not None else _ANYTHING
    name = hint.__name__.removeprefix("Async")
    accepts = _make_type_check(hint)
    if not is_dataclass(hint):
        return _Rule(name, accepts)
    return _Rule(name, accepts, lambda path, value: _find_in_fields(hint, path, value))


def _make_type_check(hint: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, hint)


def _rule_of_union(rules: Sequence[_Rule]) -> _Rule:
    def accepts(value: Any) -> bool:
        return any(rule.accepts(value) for rule in rules)

    def look(name: str, value: Any) -> InvalidArgument | None:
        found = [rule.look(name, value) for rule in rules if rule.accepts(value)]
        return None if None in found else found[0]

    *most, last = dict.fromkeys(rule.expected for rule in rules)
    return _Rule(f"{', '.join(most)} or {last}" if most else last, accepts, look)


def _rule_of_mapping(key: _Rule, value: _Rule) -> _Rule:
    def look(name: str, given: Any) -> InvalidArgument | None:
        for each, inner in given.items():
            wrong = key.find(f"a key of {name}", each) or value.find(f"{name}[{each!r}]", inner)
            if wrong is not None:
                return wrong
        return None

    return _Rule("a mapping", lambda given: isinstance(given, Mapping), look)


def _rule_of_elements(origin: type, parts: tuple[Any, ...]) -> _Rule:
    """Return the rule of a list of elements; a text or a mapping is none by mistake."""
    element = _rule(parts[0]) if parts else _ANYTHING
    fixed = [_rule(part) for part in parts] if origin is tuple and ... not in parts else None

    needed = "__len__" if issubclass(origin, Sequence) else "__iter__"

    def accepts(value: Any) -> bool:
        return hasattr(value, needed) and not isinstance(value, _NO_LIST)

    def look(name: str, given: Any) -> InvalidArgument | None:
        if not isinstance(given, Collection):
            return None  # it can be iterated over only once
        try:
            listed = list(given)
        except TypeError:
            return made.make_error(name, given)  # an array without dimensions
        rules = fixed if fixed is not None else [element] * len(listed)
        for at, (rule, inner) in enumerate(zip(rules, listed, strict=False)):
            wrong = rule.find(f"{name}[{at}]", inner)
            if wrong is not None:
                return wrong
        if fixed is not None and len(listed) != len(fixed):
            text = f"{name} has {len(listed)} elements; it must have {len(fixed)}"
            return InvalidArgument(text, reason="TYPE_INVALID")
        return None

    made = _Rule("a list" if issubclass(origin, Sequence) else "iterable", accepts, look)
    return made


def _find_in_fields(kind: type, name: str, value: Any) -> InvalidArgument | None:
    scope = vars(inspect.getmodule(kind) or object)
    for each in fields(kind):
        wrong = _resolved(each.type, scope).find(
            f"{each.name} of {name}", getattr(value, each.name)
        )
        if wrong is not None:
            return wrong
    return None
