"""Refuses arguments that are wrong: of another type, out of their field's range, invalid UTF-8.

Users expect the errors of the API and not what protobuf, numpy or Python raise inside. So
each class whose methods build requests is decorated with ``refuse_unsendable``: before a method
runs, the types of its arguments are compared with its annotations; what it raises nevertheless is
explained. The outcome is InvalidArgument before anything is sent, with one of these reasons:

* TYPE_INVALID: the type of an argument; the message names the argument, and the element in it
* NUMBER_INVALID, DURATION_INVALID, LIMIT_INVALID: a number out of its range, named like that
* TEXT_INVALID: a text that is no UTF-8

An error that none of this explains is a mistake of ours and stays as it is.

A class that runs the user's code (a worker) is not decorated: a ValueError may be the user's own.
Methods that are called for every operation are marked with ``checks_itself`` and call ``refuse``
when something failed: a wrapping coroutine cost 1 to 5 µs a call, more with more concurrent calls.
What the elements of a list or the fields of a dataclass are is compared only after a failure.
"""

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from itertools import islice
from numbers import Integral, Number, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from onelog.errors import InvalidArgument

# What a wrong argument may raise while a request is built. An InvalidArgument of a wrong type is
# made anew, because the place of the element is known here.
UNSENDABLE = (TypeError, ValueError, AttributeError, OverflowError, InvalidArgument)

# The beginning of protobuf's message; it has no exception class for this.
_OUT_OF_RANGE = "Value out of range"
# The largest numbers of fields of 32 and 64 bits, with and without a sign.
_LARGEST = (2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)
_SHOWN_MAX = 60  # characters of a value in a message

T = TypeVar("T")
_CHECKS_ITSELF = "_checks_itself"


def make_number_error(number: float, expected: str, reason: str) -> InvalidArgument:
    """Return the error for a number that is out of its range; ``refuse`` names its argument."""
    text = f"a number is {number}; it must be {expected}"
    return InvalidArgument(text, reason=reason, metadata={VALUE: str(number), ALLOWED: expected})


# Details of an error about a number.
NAME, VALUE, ALLOWED = "name", "value", "allowed"
# The name of a duration, and of an element of many of them.
_IS_DURATION = re.compile(r"^\w+_s\b")


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
            arguments, named = check(arguments, named)
            try:
                return await method(*arguments, **named)
            except UNSENDABLE as error:
                check.refuse(error, arguments, named)
                raise

        return run
    if inspect.isasyncgenfunction(method):

        @wraps(method)
        async def iterate(*arguments: Any, **named: Any) -> Any:
            arguments, named = check(arguments, named)
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
            arguments, named = check(arguments, named)
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
        if method is not None and given is not None and NAME not in error.metadata:
            _name_number(error, method, given)
        return
    if isinstance(error, UnicodeEncodeError):
        what = f"{error.object[error.start]!a} at {error.start} of a text is no UTF-8"
        raise InvalidArgument(what, reason="TEXT_INVALID") from error
    said = str(error)
    if isinstance(error, ValueError) and said.startswith(_OUT_OF_RANGE):
        number = int(said.removeprefix(_OUT_OF_RANGE).lstrip(": "))
        refused = make_number_error(number, _find_range(number), "NUMBER_INVALID")
        if method is not None and given is not None:
            _name_number(refused, method, given)
        raise refused from error
    if method is not None and given is not None:
        check_arguments(method, given)


def _name_number(
    error: InvalidArgument, method: Callable[..., Any], given: Mapping[str, Any]
) -> None:
    """Say in an error about a number which argument has it, if it is found there."""
    number = error.metadata.get(VALUE)
    found = []
    for name in _find_rules(method):
        places = (
            place
            for place, each in _find_numbers(name, given.get(name))
            if str(each) == number
            and (error.reason != "DURATION_INVALID" or _IS_DURATION.search(place))
        )
        found += list(islice(places, 1))
    if found:
        error.metadata[NAME] = names = " or ".join(found)
        error.message = f"{names} is {number}; it must be {error.metadata[ALLOWED]}"
        error.args = (error.message,)


def _find_range(number: int) -> str:
    """Return what a number must be that its field does not hold."""
    if number < 0:
        return "0 or more" if number >= -(2**63) else f"{-(2**63)} or more"
    return f"at most {max(each for each in _LARGEST if each < number)}"


def explain_element(
    error: Exception, method: Callable[..., Any], name: str, at: int, element: Any
) -> Exception:
    """Return the error of an element of an argument, with the element's place if that is wrong.

    For methods that go on with the other elements: an iterator is exhausted in the end.
    """
    try:
        refuse(error, method, {name: _Remembering(iter(()), at, element)})
    except InvalidArgument as found:
        return found
    return error


def check_element(method: Callable[..., Any], name: str, at: int, element: Any) -> None:
    """Raise InvalidArgument if an element of an argument has a wrong type."""
    check_arguments(method, {name: _Remembering(iter(()), at, element)})


def refuse_zero(name: str, count: int) -> None:
    """Refuse a count of none, which on the wire would mean the default."""
    if count == 0 and not isinstance(count, bool):
        raise InvalidArgument(f"{name} is 0; it must be 1 or more", reason="LIMIT_INVALID")


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

    __slots__ = ("_iterables", "_method", "_named", "_positional", "_rest")

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self._named: Mapping[str, _Rule] | None = None  # made with the first call
        self._positional: Sequence[tuple[str, _Rule]] = ()
        self._iterables: Sequence[tuple[int, str]] = ()  # the arguments that may be iterators
        self._rest: tuple[str, _Rule] | None = None

    def __call__(
        self, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Raise InvalidArgument for an argument of a wrong type; ``self`` is the first.

        Returns the arguments, with iterators that remember their place.
        """
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
        for at, name in self._iterables:
            if at < len(arguments):
                if isinstance(arguments[at], Iterator):
                    watched = _Remembering(arguments[at])
                    arguments = (*arguments[:at], watched, *arguments[at + 1 :])
            elif isinstance(named.get(name), Iterator):
                named = {**named, name: _Remembering(named[name])}
        return arguments, named

    def refuse(
        self, error: Exception, arguments: tuple[Any, ...], named: Mapping[str, Any]
    ) -> None:
        """Raise InvalidArgument if one of the arguments explains the error."""
        names = list(_find_rules(self._method))[1:]
        given = dict(zip(names, arguments[1:], strict=False)) | dict(named)
        refuse(error, self._method, given)

    def _prepare(self) -> None:
        self._named = _find_rules(self._method)
        positional, iterables = [], []
        for at, (name, parameter) in enumerate(inspect.signature(self._method).parameters.items()):
            if at == 0:
                continue  # self
            if self._named[name].is_iterable:
                is_named = parameter.kind is parameter.KEYWORD_ONLY
                iterables.append((sys.maxsize if is_named else at, name))
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._rest = name, self._named[name]
            elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                positional.append((name, self._named[name]))
        self._positional, self._iterables = positional, iterables


# Types


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a value may be."""

    expected: str
    accepts: Callable[[Any], bool]

    # Returns what is wrong inside of an accepted value, given its name.
    look: Callable[[str, Any], InvalidArgument | None] = lambda _name, _value: None

    # Whether a value may be an iterator, which can be looked into only once.
    is_iterable: bool = False

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
    expected = f"{', '.join(most)} or {last}" if most else last
    return _Rule(expected, accepts, look, any(rule.is_iterable for rule in rules))


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
        if not hasattr(value, needed) or isinstance(value, _NO_LIST):
            return False
        # What each element of a tuple means follows from its place.
        return fixed is None or (hasattr(value, "__len__") and hasattr(value, "__getitem__"))

    def look(name: str, given: Any) -> InvalidArgument | None:
        if isinstance(given, _Remembering):
            return element.find(f"{name}[{given.at}]", given.element) if given.at >= 0 else None
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

    expected = "a list" if issubclass(origin, Sequence) else "iterable"
    made = _Rule(expected, accepts, look, is_iterable=expected == "iterable")
    return made


class _Remembering(Iterator[Any]):
    """An iterator over the elements of an argument, which remembers the last one and its place."""

    __slots__ = ("_rest", "at", "element")

    def __init__(self, rest: Iterator[Any], at: int = -1, element: Any = None) -> None:
        self._rest = rest
        self.at = at
        self.element = element

    def __next__(self) -> Any:
        self.element = element = next(self._rest)
        self.at += 1
        return element


def _find_numbers(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of an argument and what they are called."""
    if isinstance(value, Number):
        if not isinstance(value, bool):
            yield name, value
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _find_numbers(f"{each.name} of {name}", getattr(value, each.name))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _find_numbers(f"a key of {name}", key)
            yield from _find_numbers(f"{name}[{key!r}]", inner)
    elif isinstance(value, _Remembering):
        if value.at >= 0:
            yield from _find_numbers(f"{name}[{value.at}]", value.element)
    elif hasattr(value, "tolist"):  # an array
        yield from _find_numbers(name, value.tolist())
    elif isinstance(value, list | tuple | set | frozenset):
        for at, inner in enumerate(value):
            yield from _find_numbers(f"{name}[{at}]", inner)


def _find_in_fields(kind: type, name: str, value: Any) -> InvalidArgument | None:
    scope = vars(inspect.getmodule(kind) or object)
    for each in fields(kind):
        wrong = _resolved(each.type, scope).find(
            f"{each.name} of {name}", getattr(value, each.name)
        )
        if wrong is not None:
            return wrong
    return None
