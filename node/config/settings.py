"""What a setting is: its names, its type, its limits, and how its text is read and written.

A section is a frozen dataclass whose fields are made by ``setting``; a tree is a dataclass of
sections. From that alone follow the key in a TOML file (``raft.heartbeat_s``), the flag
(``--raft-heartbeat-s``), the variable (``ONELOG_RAFT_HEARTBEAT_S``) and the row of
``onelog config show``. So there is no second list that could say something else.

Everything is read here and nowhere else: ``Setting.read`` takes the text of a flag or a variable,
or the value that TOML gave, and returns the value or raises ``BadValue`` with what would be right.
Nothing here does I/O.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

TEXT_SIZE_MAX = 4096
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"([0-9]+) ?([A-Za-z]*)")
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class BadValue(ValueError):
    """A text or a value that a setting cannot have; the message says what it can."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def plus(self, number: int) -> "Address":
        """Return the address of a worker: the same host, a later port."""
        return Address(self.host, self.port + number if self.port else 0)


class Kind(Enum):
    """The types that a setting may have; the value is the word for people."""

    INTEGER = "a whole number"
    NUMBER = "a number"
    BOOLEAN = "true or false"
    TEXT = "a text"
    NAME = "a name"
    PATH = "a path"
    SIZE = "a size: bytes, or with KiB, MiB or GiB"
    CHOICE = "one of a few words"
    ADDRESS = "HOST:PORT"
    ADDRESSES = "HOST:PORT, more after commas"
    MEMBERS = "NAME=HOST:PORT, more after commas"


_KINDS: dict[object, Kind] = {
    bool: Kind.BOOLEAN,
    int: Kind.INTEGER,
    float: Kind.NUMBER,
    str: Kind.TEXT,
    Path: Kind.PATH,
    Path | None: Kind.PATH,
    Address: Kind.ADDRESS,
    Address | None: Kind.ADDRESS,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as its field in the tree describes it."""

    section: str
    field: str
    name: str  # with hyphens; flag and variable come from it
    kind: Kind
    default: Any
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its section and name in a TOML file."""
        return f"{self.section}.{self.field}"

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return "ONELOG_" + self.name.replace("-", "_").upper()

    def read(self, given: object) -> Any:
        """Return the value that a text, or a value of TOML, stands for."""
        if isinstance(given, str):
            if len(given) > TEXT_SIZE_MAX:
                raise BadValue(f"is longer than {TEXT_SIZE_MAX} characters")
            value = _READERS[self.kind](given.strip())
        else:
            value = self._take(given)
        if self.choices and value not in self.choices:
            raise BadValue(f"is {_shown(given)}; choose {', '.join(self.choices)}")
        if self.minimum is not None and value < self.minimum:
            raise BadValue(f"is {_shown(given)}; at least {_plain(self.minimum)}")
        if self.maximum is not None and value > self.maximum:
            raise BadValue(f"is {_shown(given)}; at most {_plain(self.maximum)}")
        return value

    def _take(self, given: object) -> object:
        """Take a value that TOML has given a type already."""
        kind = type(given)
        if self.kind is Kind.BOOLEAN and kind is bool:
            return given
        if self.kind in (Kind.INTEGER, Kind.SIZE) and kind is int:
            return given
        if self.kind is Kind.NUMBER and isinstance(given, int | float) and kind is not bool:
            return _number(repr(given))
        if self.kind in (Kind.ADDRESSES, Kind.MEMBERS) and isinstance(given, list):
            if all(isinstance(each, str) and "," not in each for each in given):
                return _READERS[self.kind](",".join(given))
        elif self.kind is Kind.MEMBERS and isinstance(given, dict):
            return _members(",".join(f"{name}={at}" for name, at in given.items()))
        raise BadValue(f"is {_shown(given)}; expected {self.kind.value}")

    def show(self, value: Any) -> str:
        """Return a value as text that ``read`` would understand."""
        match value:
            case None:
                return ""
            case bool():
                return "true" if value else "false"
            case tuple():
                return ",".join(
                    f"{each[0]}={each[1]}" if isinstance(each, tuple) else str(each)
                    for each in value
                )
            case int() if self.kind is Kind.SIZE:
                return _size_text(value)
            case float():
                return _plain(value)
            case _:
                return str(value)


def setting(
    default: Any,
    text: str,
    *,
    name: str | None = None,
    kind: Kind | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Return a dataclass field that is a setting; ``name`` instead of ``section-field``."""
    described = {
        "help": text, "name": name, "kind": kind,
        "minimum": minimum, "maximum": maximum, "choices": choices,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=described)


def list_settings(tree: type[Any]) -> Iterator[Setting]:
    """Yield every setting of a tree of sections, in the order of the fields."""
    for section in dataclasses.fields(tree):
        if not dataclasses.is_dataclass(section.type):
            continue
        for each in dataclasses.fields(section.type):
            described = each.metadata
            if "help" not in described:
                continue
            kind = Kind.CHOICE if described["choices"] else described["kind"]
            yield Setting(
                section.name,
                each.name,
                described["name"] or f"{section.name}-{each.name}".replace("_", "-"),
                kind or _KINDS[each.type],
                each.default,
                described["help"],
                described["minimum"],
                described["maximum"],
                described["choices"],
            )


def built(tree: type[Any], values: Mapping[str, Any]) -> Any:
    """Return a tree with these values by key; what is not named has its default."""
    sections = {}
    for section in dataclasses.fields(tree):
        if dataclasses.is_dataclass(section.type):
            names = {each.name for each in dataclasses.fields(section.type)}
            given = {
                name: values[f"{section.name}.{name}"]
                for name in names
                if f"{section.name}.{name}" in values
            }
            assert isinstance(section.type, type)
            sections[section.name] = section.type(**given)
    return tree(**sections)


# How the text of each kind is read


def _text(given: str) -> str:
    if not given.isprintable():
        raise BadValue("has characters that cannot be printed")
    return given


def _name(given: str) -> str:
    if not _NAME.fullmatch(given):
        raise BadValue(
            f"is {_shown(given)}; use 1 to 63 letters, digits, dots, hyphens and underscores, "
            "beginning with a letter or a digit"
        )
    return given


def _integer(given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise BadValue(f"is {_shown(given)}; expected {Kind.INTEGER.value}") from None


def _number(given: str) -> float:
    try:
        number = float(given)
    except ValueError:
        raise BadValue(f"is {_shown(given)}; expected {Kind.NUMBER.value}") from None
    if not number - number == 0:  # infinite, or not a number
        raise BadValue(f"is {_shown(given)}; expected {Kind.NUMBER.value}")
    return number


def _boolean(given: str) -> bool:
    if given.lower() not in _BOOLEANS:
        raise BadValue(f"is {_shown(given)}; expected {Kind.BOOLEAN.value}")
    return _BOOLEANS[given.lower()]


def _path(given: str) -> Path | None:
    return Path(_text(given)) if given else None


def _size(given: str) -> int:
    found = _SIZE.fullmatch(given)
    unit = None if found is None else _UNITS.get(found[2].upper())
    if found is None or unit is None:
        raise BadValue(f"is {_shown(given)}; expected {Kind.SIZE.value}")
    return int(found[1]) * unit


def _address(given: str) -> Address | None:
    if not given:
        return None
    host, colon, port = given.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadValue(f"is {_shown(given)}; write an IPv6 address as [HOST]:PORT")
    if not colon or not host or not host.isprintable() or " " in host or "," in host:
        raise BadValue(f"is {_shown(given)}; expected {Kind.ADDRESS.value}")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise BadValue(f"is {_shown(given)}; a port is a number from 0 to 65535")
    return Address(host, int(port))


def _addresses(given: str) -> tuple[Address, ...]:
    found = tuple(_address(each.strip()) for each in given.split(",") if each.strip())
    assert None not in found, found
    return tuple(each for each in found if each is not None)


def _members(given: str) -> tuple[tuple[str, Address], ...]:
    members: dict[str, Address] = {}
    for each in given.split(","):
        if not each.strip():
            continue
        name, equals, text = (part.strip() for part in each.partition("="))
        at = _address(text) if equals else None
        if at is None:
            raise BadValue(f"has {_shown(each)}; expected {Kind.MEMBERS.value}")
        if _name(name) in members:
            raise BadValue(f"names {name} twice")
        if at in members.values():
            raise BadValue(f"has the address {at} twice")
        members[name] = at
    return tuple(sorted(members.items()))


_READERS: dict[Kind, Callable[[str], Any]] = {
    Kind.INTEGER: _integer,
    Kind.NUMBER: _number,
    Kind.BOOLEAN: _boolean,
    Kind.TEXT: _text,
    Kind.NAME: _name,
    Kind.PATH: _path,
    Kind.SIZE: _size,
    Kind.CHOICE: str.lower,
    Kind.ADDRESS: _address,
    Kind.ADDRESSES: _addresses,
    Kind.MEMBERS: _members,
}


def _shown(given: object) -> str:
    return repr(given)[:80]


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _size_text(size: int) -> str:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _UNITS[unit.upper()]
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
